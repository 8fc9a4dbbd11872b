fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(outbound_sender::Deps::from_env, outbound_sender::run)
}

fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(outbox_relay::Deps::from_env, outbox_relay::run)
}

fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(outbound_sweep::Deps::from_env, outbound_sweep::run)
}

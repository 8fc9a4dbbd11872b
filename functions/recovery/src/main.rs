fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(recovery::Deps::from_env, recovery::run)
}

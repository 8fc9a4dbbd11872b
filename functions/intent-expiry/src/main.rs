fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(intent_expiry::Deps::from_env, intent_expiry::run)
}

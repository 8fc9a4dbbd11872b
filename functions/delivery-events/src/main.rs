fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(delivery_events::Deps::from_env, delivery_events::run)
}

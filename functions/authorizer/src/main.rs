fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(authorizer::Deps::from_env, authorizer::run)
}

fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_http(webhook_intake::ROUTES, webhook_intake::Deps::from_env, webhook_intake::run)
}

fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_http(mailings_api::ROUTES, mailings_api::Deps::from_env, mailings_api::run)
}

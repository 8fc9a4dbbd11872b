fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_http(
        conversations_api::ROUTES,
        conversations_api::Deps::from_env,
        conversations_api::run,
    )
}

fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_http(outbound_api::ROUTES, outbound_api::Deps::from_env, outbound_api::run)
}

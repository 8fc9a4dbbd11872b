fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_http(admin::ROUTES, admin::Deps::from_env, admin::run)
}

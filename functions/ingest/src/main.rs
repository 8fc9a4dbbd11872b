fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_http(ingest::ROUTES, ingest::Deps::from_env, ingest::run)
}

fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(backfill_worker::Deps::from_env, backfill_worker::run)
}

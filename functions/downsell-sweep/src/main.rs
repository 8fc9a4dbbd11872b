fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(downsell_sweep::Deps::from_env, downsell_sweep::run)
}

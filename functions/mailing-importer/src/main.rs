fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(mailing_importer::Deps::from_env, mailing_importer::run)
}

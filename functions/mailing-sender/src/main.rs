fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(mailing_sender::Deps::from_env, mailing_sender::run)
}

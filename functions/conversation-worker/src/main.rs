fn main() -> Result<(), lambda_runtime::Error> {
    umavez_platform::entry::serve_events(conversation_worker::Deps::from_env, conversation_worker::run)
}

use lambda_runtime::Error;
use probe::Deps;
use umavez_platform::entry;

fn main() -> Result<(), Error> {
    entry::serve_events(Deps::from_env, probe::worker::run)
}

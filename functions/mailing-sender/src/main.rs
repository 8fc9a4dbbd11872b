use lambda_runtime::Error;
use mailing_sender::{Deps, run};
use umavez_platform::entry;

fn main() -> Result<(), Error> {
    entry::serve_events(Deps::from_env, run)
}

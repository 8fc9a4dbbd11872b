use lambda_runtime::Error;
use umavez_platform::entry;
use webhook_intake::{Deps, ROUTES, run};

fn main() -> Result<(), Error> {
    entry::serve_http(ROUTES, Deps::from_env, run)
}

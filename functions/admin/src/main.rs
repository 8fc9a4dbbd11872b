use admin::{Deps, ROUTES, run};
use lambda_runtime::Error;
use umavez_platform::entry;

fn main() -> Result<(), Error> {
    entry::serve_http(ROUTES, Deps::from_env, run)
}

use lambda_runtime::Error;
use probe::Deps;
use umavez_platform::entry;

fn main() -> Result<(), Error> {
    entry::serve_http(probe::api::ROUTES, Deps::from_env, probe::api::run)
}

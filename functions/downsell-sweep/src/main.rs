use downsell_sweep::{Deps, run};
use lambda_runtime::Error;
use umavez_platform::entry;

fn main() -> Result<(), Error> {
    entry::serve_events(Deps::from_env, run)
}

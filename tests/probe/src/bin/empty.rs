//! The smallest possible function, as the control of measurements.

use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::Value;

fn main() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(lambda_runtime::run(service_fn(|event: LambdaEvent<Value>| async move {
        Ok::<_, Error>(event.payload)
    })))
}

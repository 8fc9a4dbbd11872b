//! Backoff with jitter, and a retry limit, for writes that lost a race.

use std::time::Duration;

use super::StoreError;
use crate::invocation::Invocation;

const ATTEMPTS: u32 = 6;
const WAIT_MS: u64 = 25;

#[derive(Debug, Default)]
pub(crate) struct Conflicts(u32);

impl Conflicts {
    /// Waits before the next attempt, or gives up with the error.
    pub(crate) async fn wait(&mut self, invocation: &Invocation, error: StoreError) -> Result<(), StoreError> {
        self.0 += 1;
        if self.0 >= ATTEMPTS {
            return Err(error);
        }
        let wait = Duration::from_millis(fastrand::u64(1..=WAIT_MS << self.0));
        Ok(invocation.within(tokio::time::sleep(wait)).await?)
    }
}

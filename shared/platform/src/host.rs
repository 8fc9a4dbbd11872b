//! What a process gets from its machine: variables, network and time.
//!
//! By default these are the machine's own. The simulator runs many functions in one process, each
//! as if it had a machine to itself: it builds their dependencies within [`Host::provide`]. Nothing
//! looks for a host later, so only the construction needs one.

use std::cell::RefCell;
use std::collections::BTreeMap;

use aws_sdk_dynamodb::config::SharedHttpClient;
use aws_sdk_dynamodb::config::retry::RetryPartition;
use aws_smithy_runtime_api::client::http::SharedHttpConnector;
use tokio::time::Instant;

#[derive(Debug, Clone)]
pub struct Host {
    pub variables: BTreeMap<String, String>,
    /// The network of the AWS clients.
    pub http: SharedHttpClient,
    /// The network of calls to other services.
    pub connector: SharedHttpConnector,
    /// An instant, and the milliseconds since 1970 at that instant.
    pub epoch: (Instant, i64),
    /// The retry budget of the AWS clients. The SDK shares it between all clients of a process with
    /// the same partition.
    pub retries: RetryPartition,
}

thread_local! {
    static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
}

impl Host {
    /// Runs `build` with this host instead of the machine.
    pub fn provide<T>(&self, build: impl FnOnce() -> T) -> T {
        let before = HOST.replace(Some(self.clone()));
        let built = build();
        HOST.set(before);
        built
    }
}

/// Reads something of the host, if there is one.
pub(crate) fn provided<T>(read: impl FnOnce(&Host) -> T) -> Option<T> {
    HOST.with_borrow(|host| host.as_ref().map(read))
}

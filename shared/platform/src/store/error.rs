//! Errors of the store: it did not answer, or its answer is not readable. The `http` module decides
//! what the client reads about them.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use crate::invocation::TimedOut;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The request rate is too high, and the SDK has already retried.
    #[error("the store is throttling")]
    Throttled,
    /// The store did not answer, or answered with a 5xx. A write may or may not have been made.
    #[error("the store did not answer")]
    Unavailable,
    /// The write conflicted with other transactions on the same rows too often.
    #[error("the write conflicted with others too often")]
    Conflict,
    /// A row does not parse as the type that it should be.
    #[error("the stored data is not as expected: {0}")]
    Corrupt(&'static str),
    /// The store rejects the request itself: the fault is ours or the deployment's.
    #[error("the store refused the request: {0}")]
    Rejected(String),
}

impl StoreError {
    /// Returns whether the same request may succeed a little later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Throttled | Self::Unavailable | Self::Conflict)
    }

    /// Returns a code for logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Conflict => "conflict",
            Self::Corrupt(_) => "corrupt",
            Self::Rejected(code) => refusal_code(code),
        }
    }

    pub(crate) fn from_sdk<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> Self {
        let SdkError::ServiceError(service) = error else { return Self::Unavailable };
        match service.err().code() {
            Some(code) if is_throttle(code) => Self::Throttled,
            None => Self::Unavailable,
            Some(code) if is_outage(code) => Self::Unavailable,
            Some("TransactionConflictException" | "TransactionInProgressException") => Self::Conflict,
            Some(code) => Self::Rejected(code.to_owned()),
        }
    }
}

impl From<TimedOut> for StoreError {
    fn from(_: TimedOut) -> Self {
        Self::Unavailable
    }
}

pub(crate) fn is_outage(code: &str) -> bool {
    matches!(code, "InternalServerError" | "InternalFailure" | "InternalError" | "ServiceUnavailable")
}

/// Returns the code to log for a request that a service refused with this error code.
pub(crate) fn refusal_code(code: &str) -> &'static str {
    match code {
        "AccessDeniedException" | "AccessDenied" => "access_denied",
        code if is_throttle(code) => "throttled",
        _ => "rejected",
    }
}

pub(super) fn is_throttle(code: &str) -> bool {
    matches!(
        code,
        "ThrottlingException"
            | "Throttling"
            | "ThrottlingError"
            | "ProvisionedThroughputExceededException"
            | "ProvisionedThroughputExceeded"
            | "RequestLimitExceeded"
            | "RequestThrottled"
            | "SlowDown"
    )
}

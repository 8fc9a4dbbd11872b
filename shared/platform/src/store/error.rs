//! When the store did not answer, or not with anything readable. What the caller reads of it is
//! decided in `http`.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use crate::invocation::TimedOut;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Too much at once; the SDK has retried already.
    #[error("the store is throttling")]
    Throttled,
    /// No answer, or a 5xx: a write may have been made or not.
    #[error("the store did not answer")]
    Unavailable,
    /// Transactions met on the same rows, again and again.
    #[error("the write conflicted with others too often")]
    Conflict,
    /// A row that does not read as the type that it should be.
    #[error("a row cannot be read as {0}")]
    Corrupt(&'static str),
    /// The store refuses the request itself: a fault of ours or of the deployment.
    #[error("the store refused the request: {0}")]
    Rejected(String),
}

impl StoreError {
    /// Whether the same request may succeed a little later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Throttled | Self::Unavailable | Self::Conflict)
    }

    /// A code for logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Conflict => "conflict",
            Self::Corrupt(_) => "corrupt",
            Self::Rejected(code) => refusal_code(code),
        }
    }

    pub(crate) fn of<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> Self {
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

/// A code for logs of a request that a service refused with this error code.
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

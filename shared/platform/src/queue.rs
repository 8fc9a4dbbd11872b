//! Errors of requests to a queue.

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};

use crate::invocation::TimedOut;
use crate::store::{is_outage, refusal_code};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// No answer, or a 5xx: the queue may or may not have carried out the request.
    #[error("the queue did not answer")]
    Unavailable,
    /// The queue refused the request, or one message of it, with this code.
    #[error("the queue refused the request: {0}")]
    Rejected(String),
    /// The request lacks a field.
    #[error("the request to the queue cannot be built: {0}")]
    Malformed(String),
}

impl QueueError {
    /// Returns a code for logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Rejected(code) => refusal_code(code),
            Self::Malformed(_) => "malformed",
        }
    }

    /// Checks the answer to a call that was made with [`crate::invocation::Invocation::within`].
    pub(crate) fn check<T, E, R>(answer: Result<Result<T, SdkError<E, R>>, TimedOut>) -> Result<T, Self>
    where
        E: ProvideErrorMetadata,
    {
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(SdkError::ServiceError(service))) => match service.err().code() {
                Some(code) if !is_outage(code) => Err(Self::Rejected(code.to_owned())),
                _ => Err(Self::Unavailable),
            },
            Ok(Err(_)) | Err(TimedOut) => Err(Self::Unavailable),
        }
    }
}

//! Conversations. Every burst of messages gets one answer, and every message is answered.

pub mod batch;
mod course;
mod identity;
pub mod inbound;
pub mod reply;
pub mod requests;
pub mod responder;
mod rows;
pub mod views;

pub use course::{ConversationHold, Course, HeldBy, PartEnd, Phase, WorkerStep};
pub use identity::{BatchId, ConversationId, Via};
pub use rows::{
    AnsweredBy, Author, BatchProgress, BatchRow, ConversationRow, KeptMessages, ReceiveOutcome, Received,
    StoredMessage, UNANSWERED_DAYS, unanswered_before,
};

//! Messages: accept, read, cancel, settle and resend them; and the suppressed addresses.

pub mod accept;
pub mod explain;
pub mod message;
pub mod orders;
pub mod suppressions;

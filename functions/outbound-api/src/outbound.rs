//! Messages: taken in, looked at, cancelled, sent again; and the addresses that are not written to.

pub mod accept;
pub mod explain;
pub mod message;
pub mod orders;
pub mod suppressions;

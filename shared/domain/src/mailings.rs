//! Mailings: a CSV becomes a mailing once, a recipient gets it once, a crash changes neither.
//!
//! [`normalize_email`] gives each recipient the one form that it is known by.

mod recipient;

pub use recipient::normalize_email;

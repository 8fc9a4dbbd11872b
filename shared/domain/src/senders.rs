//! Senders: the bots and instances that send messages, the credentials of each, and its rate
//! limits.

pub mod bots;
pub mod instances;
pub mod limiter;
pub mod rates;
mod resolution;

pub use resolution::Resolved;

const LONGEST_NAME: usize = 64;

/// Returns whether `text` is a valid name of a bot, a token or an instance, for keys and paths.
pub fn is_name(text: &str) -> bool {
    (1..=LONGEST_NAME).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

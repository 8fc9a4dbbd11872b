//! What clients, operators and providers do in a play, and what must hold at its end.

mod conversations;
mod downsells;
mod everything;
mod ingest;
mod limits;
mod mailings;
mod outbound;
mod windows;

pub use windows::ROLLING;

use std::rc::Rc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use serde_json::Value;

use crate::play::Setting;

pub trait Workload {
    fn name(&self) -> &'static str;

    /// The programs of the functions that take part.
    fn functions(&self) -> Vec<&'static str>;

    /// The longest virtual time for everything to end once nothing goes wrong any more.
    fn longest_rest(&self) -> Duration {
        Duration::from_secs(12 * 3_600)
    }

    /// The longest virtual time for the clients to end.
    fn longest_run(&self) -> Duration {
        self.longest_rest()
    }

    /// How long a provider that throttles may ask its callers to wait.
    fn longest_retry_after_seconds(&self) -> u64 {
        3
    }

    /// What the clients do while things go wrong.
    fn run(&self, setting: Rc<Setting>) -> LocalBoxFuture<'_, ()>;

    /// Returns whether everything that was accepted has ended.
    fn is_at_rest(&self, setting: &Setting) -> bool;

    /// Returns what the play has reached, to show that the audit had something to look at.
    fn reached(&self, setting: &Setting) -> Vec<String>;

    /// What some of many plays must reach.
    fn must_reach(&self) -> &'static [&'static str];

    /// Returns what does not hold.
    fn audit(&self, setting: &Setting) -> Vec<String>;
}

pub const NAMES: &[&str] =
    &["outbound", "downsells", "conversations", "absences", "mailings", "ingest", "windows", "limits", "everything"];

/// Returns a new workload. It keeps the history of one play.
pub fn workload(name: &str) -> Option<Box<dyn Workload>> {
    match name {
        "absences" => Some(Box::new(conversations::Conversations::with_absence())),
        "conversations" => Some(Box::new(conversations::Conversations::default())),
        "downsells" => Some(Box::new(downsells::Downsells::default())),
        "everything" => Some(Box::new(everything::Everything::default())),
        "ingest" => Some(Box::new(ingest::Ingest::default())),
        "limits" => Some(Box::new(limits::Limits::default())),
        "mailings" => Some(Box::new(mailings::Mailings::default())),
        "outbound" => Some(Box::new(outbound::Outbound::default())),
        "windows" => Some(Box::new(windows::Windows::default())),
        _ => None,
    }
}

/// The token of Telegram's webhooks in the local secrets.
const TELEGRAM_SECRET: &str = "local-telegram-secret";

/// Returns how long a client waits before its next step: half of the time almost nothing, so that
/// requests conflict.
fn pause(draw: &mut fastrand::Rng, longest_ms: u64) -> Duration {
    Duration::from_millis(if draw.bool() { draw.u64(1..60) } else { draw.u64(1..longest_ms) })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the key of a row, as attempts name it.
fn key_of(row: &Value) -> String {
    format!("{} {}", text(&row["pk"]), text(&row["sk"]))
}

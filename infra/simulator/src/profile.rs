//! How rough the world of a play is.

use std::collections::BTreeSet;

#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Calls to AWS that fail, in percent.
    pub calls: u32,
    /// Calls to providers that do not end as they should, in percent.
    pub providers: u32,
    /// Invocations that are killed, in percent.
    pub kills: u32,
    /// Invocations that are frozen for a while, in percent.
    pub freezes: u32,
    /// Deliveries of queues and streams, and ticks, that are late, doubled or lost, in percent.
    pub deliveries: u32,
    /// How far the clocks of instances differ, in milliseconds.
    pub skew_ms: i64,
    /// How long a provider that throttles asks its callers to wait, at most.
    pub retry_after_seconds: u64,
    /// Whether the play lists the broken variants of what it writes.
    pub collects_variants: bool,
    /// The broken variant of the product that is played.
    pub broken: Option<String>,
    /// The faults that do not happen, by name: how a failing play is shrunk.
    pub left_out: BTreeSet<String>,
}

impl Profile {
    /// A world with so many faults that several hit the same work.
    pub fn rough() -> Self {
        Self { calls: 8, providers: 25, kills: 6, freezes: 4, deliveries: 8, skew_ms: 2_000, ..Self::default() }
    }

    /// A world in which nothing goes wrong.
    pub fn calm() -> Self {
        Self::default()
    }
}

//! The start of an attempt.
//!
//! Interleavings:
//!
//! - Two senders claim the same row: the second one finds `SENDING(n)` and leaves the row alone.
//! - A cancel precedes the claim: the claim finds `CANCELED`.
//! - A gate closes before the claim (a suppression, a payment): the claim's own transaction is
//!   refused. If a gate closes after the claim, it finds the attempt under way.
//! - A row that the claim changes too (the guard of an intent) has changed since it was read: the
//!   claim is refused, and its caller decides again.
//! - The reply to a claim is lost: the claim is recognized by its token. Without this check, an
//!   attempt that was never made would end as unknown.

use umavez_domain::delivery::{Delivered, Gate, State};
use umavez_domain::suppression::SuppressionRow;

use crate::invocation::Invocation;
use crate::store::{Condition, Refusal, Store, StoreError, Transacted, Write, Written, read_row};
use crate::suppressions;

/// The tables of the rows that a claim uses.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// The table of the claimed row.
    pub own: &'a str,
    /// The table of the suppressions.
    pub outbound: &'a str,
}

/// The outcome of a claim.
#[derive(Debug)]
pub enum Claimed<R> {
    /// This sender makes the attempt.
    Yes(R),
    /// The row has changed. Contains its current state; `None` if it no longer exists.
    Lost(Option<R>),
    /// A row that the decision depends on has changed.
    GateChanged,
    /// The row was put off, because the window of another send is not over.
    Deferred(R),
    Suppressed(Box<SuppressionRow>),
}

impl Store {
    /// Starts an attempt: replaces `before` by `after`, which contains the claim, and makes the
    /// other writes `with` it, if all gates are open.
    pub async fn claim<R: Delivered>(
        &self,
        invocation: &Invocation,
        tables: Tables<'_>,
        before: &R,
        after: R,
        gates: &[Gate],
        with: Vec<Write>,
    ) -> Result<Claimed<R>, StoreError> {
        let mut writes = vec![Write::of_change(tables.own, before, &after)?];
        for gate in gates {
            writes.push(check(tables, gate)?);
        }
        writes.extend(with);
        let refusals = match self.all_or_none(invocation, writes).await {
            Ok(Transacted::Done) => return Ok(Claimed::Yes(after)),
            Ok(Transacted::Refused(refusals)) => refusals,
            // It is unknown whether the store made the claim.
            Err(error) if error.is_passing() => {
                return match self.get::<R>(invocation, tables.own, &before.key()).await {
                    Ok(Some(stored)) if is_claimed_as(&stored, &after) => Ok(Claimed::Yes(after)),
                    _ => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        let mut refusals = refusals.into_iter();
        if let Some(Some(refusal)) = refusals.next() {
            let stored: Option<R> = refusal.item.map(read_row).transpose()?;
            return Ok(match stored {
                Some(stored) if is_claimed_as(&stored, &after) => Claimed::Yes(after),
                stored => Claimed::Lost(stored),
            });
        }
        for (gate, refusal) in gates.iter().zip(refusals.by_ref()) {
            match (gate, refusal) {
                (_, None) => {}
                (Gate::Unchanged { .. }, Some(_)) => return Ok(Claimed::GateChanged),
                (Gate::NotSuppressed { .. }, Some(Refusal { item: Some(item) })) => {
                    return Ok(Claimed::Suppressed(Box::new(read_row(item)?)));
                }
                // Another writer has removed the suppression in between.
                (Gate::NotSuppressed { .. }, Some(Refusal { item: None })) => return Ok(Claimed::GateChanged),
            }
        }
        match refusals.any(|refusal| refusal.is_some()) {
            true => Ok(Claimed::GateChanged),
            false => Err(StoreError::Corrupt("a refused claim without a failed condition")),
        }
    }

    /// Makes all writes or none. A single write needs no transaction.
    async fn all_or_none(&self, invocation: &Invocation, mut writes: Vec<Write>) -> Result<Transacted, StoreError> {
        if writes.len() > 1 {
            return self.transact(invocation, writes).await;
        }
        let Some(write) = writes.pop() else { return Ok(Transacted::Done) };
        Ok(match self.write(invocation, write).await? {
            Written::New | Written::Mine => Transacted::Done,
            Written::Refused(item) => Transacted::Refused(vec![Some(Refusal { item })]),
        })
    }
}

fn is_claimed_as<R: Delivered>(stored: &R, claimed: &R) -> bool {
    let (stored, claimed) = (stored.delivery(), claimed.delivery());
    stored.state == State::Sending && stored.claim.is_some() && stored.claim == claimed.claim
}

fn check(tables: Tables<'_>, gate: &Gate) -> Result<Write, StoreError> {
    match gate {
        Gate::NotSuppressed { channel, to, sender } => {
            suppressions::not_suppressed(tables.outbound, *channel, to, sender)
        }
        Gate::Unchanged { key, fence } => Ok(Write::check(tables.own, key.clone(), Condition::of(fence)?)),
    }
}

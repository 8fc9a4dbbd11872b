//! Rate limits as rows: each grant is one conditional update. The rules, their invariant and the
//! interleavings are in `umavez_domain::senders::limiter`.
//!
//! A sender reads the buckets before it asks, because a refused write costs more than a read. So a
//! refusal costs a read, and a grant one write.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use umavez_domain::delivery::Outcome;
use umavez_domain::keys::Key;
use umavez_domain::senders::limiter::{
    ADDRESS_DELAY_MS, ADDRESS_REACH_MS, Ask, Bound, Bucket, Check, FREE_AT_US, FreeAt, Limit, PARKED_UNTIL, SEEN_US,
    SharedClock, Slot, TOLERANCE_MS, Take, Wanted, ask, check, looked,
};
use umavez_domain::telemetry::Event;
use umavez_domain::time::Timestamp;

use crate::invocation::Invocation;
use crate::store::{Condition, Item, Returned, Store, StoreError, WRITER, Write, read_row};

#[derive(Debug, Clone)]
pub struct Limiter {
    store: Store,
    table: String,
    /// How far the clock of this process is known to be behind, in microseconds: see
    /// [`SharedClock`]. It only grows.
    behind_us: Arc<AtomicI64>,
}

/// The buckets of one call. The sender's slot is taken first.
#[derive(Debug, Clone)]
pub struct Buckets {
    pub sender: (Key, Limit),
    /// How far ahead the slot of the sender may be.
    pub reach_ms: i64,
    pub address: Option<(Key, Limit)>,
}

/// A slot that a sender holds, and the slots of buckets that it can release.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    pub slot: Slot,
    taken: Vec<Taken>,
}

impl Held {
    /// Returns one slot of a row of slots. A part of a row cannot be released.
    pub fn of_row(slot: Slot) -> Self {
        Self { slot, taken: Vec::new() }
    }
}

/// A slot of one bucket, and the token of the write that took it.
#[derive(Debug, Clone, PartialEq)]
struct Taken {
    key: Key,
    slot_us: i64,
    writer: Option<AttributeValue>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Grant {
    At(Held),
    /// No slot within reach. Ask again at this time.
    Later(Timestamp),
}

/// The outcome of asking one bucket.
enum Granted {
    /// The first slot.
    At(Slot, Taken),
    Later(i64),
}

/// The number of tries to take a slot while others are faster. After that, a later delivery tries
/// again.
const ROUNDS: usize = 5;
/// The wait of an attempt whose slot could not be checked because the store did not answer.
const UNREAD_WAIT_MS: i64 = 1_000;

impl Limiter {
    pub fn new(store: Store, table: String) -> Self {
        Self { store, table, behind_us: Arc::default() }
    }

    /// Takes a slot of the sender and one of the address for the same call, and waits until its
    /// time. The call may then begin.
    ///
    /// Nothing is lost by a refusal: both buckets are read before a slot of either is taken, and
    /// the address is waited for without a slot. If another message takes the slot of the address
    /// meanwhile, the slot of the sender is released.
    pub async fn take(&self, invocation: &Invocation, buckets: &Buckets) -> Result<Grant, StoreError> {
        for round in 0..ROUNDS {
            let (sender, address) = self.look(invocation, buckets).await?;
            let time_us = self.follow(invocation, &[sender, address]);
            // If the table is slow, a slot of this moment is over when the second one is taken. So
            // each further round asks for a slot a little further ahead.
            let lead_ms = TOLERANCE_MS * i64::try_from(round).unwrap_or(0);
            let from_us = time_us + lead_ms * 1_000;
            let wanted = Wanted { from_us, ..Wanted::one(buckets.sender.1, buckets.reach_ms) };
            if let Ask::Later(at_us) = ask(sender, wanted, time_us) {
                return Ok(self.later(at_us));
            }
            if let Some((_, limit)) = buckets.address {
                match ask(address, Wanted::one(limit, ADDRESS_REACH_MS), time_us) {
                    Ask::Later(at_us) => return Ok(self.later(at_us)),
                    Ask::Take(Take { free_at: FreeAt::Add(_), .. }) => {
                        let wait_us = address.free_at_us - time_us;
                        sleep_us(wait_us).await;
                        if wait_us > TOLERANCE_MS * 1_000 {
                            continue;
                        }
                    }
                    Ask::Take(_) => {}
                }
            }
            let mut held = match self.ask(invocation, &buckets.sender.0, wanted, sender).await? {
                Granted::At(slot, taken) => Held { slot, taken: vec![taken] },
                Granted::Later(at_us) => return Ok(self.later(at_us)),
            };
            if let Some((key, limit)) = &buckets.address {
                // The call is at the slot of the sender, or a little later if the address needs it.
                let wanted = Wanted { from_us: held.slot.at_us, ..Wanted::one(*limit, ADDRESS_DELAY_MS) };
                match self.ask(invocation, key, wanted, address).await? {
                    Granted::At(at_address, taken) => {
                        held.slot.at_us = at_address.at_us;
                        held.taken.push(taken);
                    }
                    Granted::Later(_) => {
                        self.release(invocation, &held).await?;
                        continue;
                    }
                }
            }
            if self.is_good(invocation, buckets, &mut held.slot).await? {
                return Ok(Grant::At(held));
            }
            self.release(invocation, &held).await?;
        }
        Ok(Grant::Later(invocation.current().plus_ms(buckets.reach_ms)))
    }

    /// Takes consecutive slots of one bucket with one write. The first one is at most `reach_ms`
    /// ahead.
    pub async fn take_row(&self, invocation: &Invocation, buckets: &Buckets, slots: i64) -> Result<Grant, StoreError> {
        let (seen, _) = self.look(invocation, buckets).await?;
        let wanted = Wanted { slots, ..Wanted::one(buckets.sender.1, buckets.reach_ms) };
        Ok(match self.ask(invocation, &buckets.sender.0, wanted, seen).await? {
            Granted::At(slot, _) => Grant::At(Held::of_row(slot)),
            Granted::Later(at_us) => self.later(at_us),
        })
    }

    /// Waits for the time of a slot. Returns whether the call may begin now. If not, the slot is
    /// lost: it is over, or its bucket was parked meanwhile. It is called again directly before the
    /// call, and then usually neither waits nor reads.
    pub async fn is_good(
        &self,
        invocation: &Invocation,
        buckets: &Buckets,
        slot: &mut Slot,
    ) -> Result<bool, StoreError> {
        for _ in 0..ROUNDS {
            let time_us = self.time_us(invocation);
            match check(*slot, time_us) {
                Check::Wait(at_us) => sleep_us(at_us - time_us).await,
                Check::Call => return Ok(true),
                Check::Over => return Ok(false),
                Check::Look => {
                    let (sender, address) = self.look(invocation, buckets).await?;
                    self.follow(invocation, &[sender, address]);
                    let known = looked(*slot, sender, time_us).and_then(|slot| looked(slot, address, time_us));
                    let Some(known) = known else { return Ok(false) };
                    *slot = known;
                }
            }
        }
        Ok(false)
    }

    /// Checks a slot directly before the call, because the claim may have taken long. If the slot
    /// is over, gives it back, takes another one and waits for it. If there is none, returns the
    /// outcome of an attempt whose call was not made.
    pub async fn before_call(&self, invocation: &Invocation, buckets: &Buckets, mut held: Held) -> Result<(), Outcome> {
        let granted = match self.is_good(invocation, buckets, &mut held.slot).await {
            Ok(true) => return Ok(()),
            Ok(false) => self.take_instead(invocation, buckets, &held).await,
            Err(error) => Err(error),
        };
        let wait_ms = match granted {
            Ok(Grant::At(_)) => return Ok(()),
            Ok(Grant::Later(at)) => (at.millis() - invocation.current().millis()).max(0),
            Err(error) => {
                let (event, request_id) = (Event::RateLimitNotRead.as_str(), &invocation.request_id);
                tracing::warn!(event, cause = %error, request_id);
                UNREAD_WAIT_MS
            }
        };
        Err(Outcome::NoSlot { wait_ms })
    }

    async fn take_instead(&self, invocation: &Invocation, buckets: &Buckets, held: &Held) -> Result<Grant, StoreError> {
        self.release(invocation, held).await?;
        self.take(invocation, buckets).await
    }

    /// Parks a bucket because the provider asked to wait: it grants no slot for this time. A
    /// shorter wait does not shorten a longer one. The row is read first, because the clock of
    /// another sender may be ahead, and the wait would be over too early for it.
    pub async fn park(&self, invocation: &Invocation, key: &Key, wait_ms: i64) -> Result<(), StoreError> {
        let row = self.store.get_item(invocation, &self.table, key).await?;
        let time_us = self.follow(invocation, &[bucket_of(row)?]);
        let time = Timestamp::from_millis(time_us.div_euclid(1_000));
        let until = time.plus_ms(wait_ms);
        let write = self.bucket(key, until).set_number(PARKED_UNTIL, until.millis());
        let not_longer = render(&[vec![Bound::AtMost(PARKED_UNTIL, until.millis())]]);
        self.store.write(invocation, write.when(not_longer)).await.map(drop)
    }

    /// Returns when the clock of this process shows the time of a slot.
    pub fn own_time(&self, slot: Slot) -> Timestamp {
        self.clock().own(slot.at_us)
    }

    /// Takes slots of one bucket that was read in the state `bucket`. The clock is read again in
    /// each round. A slot that is over when the reply arrives is lost, and the next one is asked
    /// for.
    async fn ask(
        &self,
        invocation: &Invocation,
        key: &Key,
        wanted: Wanted,
        mut bucket: Bucket,
    ) -> Result<Granted, StoreError> {
        for _ in 0..ROUNDS {
            let time_us = self.follow(invocation, &[bucket]);
            let take = match ask(bucket, wanted, time_us) {
                Ask::Take(take) => take,
                Ask::Later(at_us) => return Ok(Granted::Later(at_us)),
            };
            bucket = match self.make(invocation, key, &take).await? {
                Returned::Row(item) => {
                    let writer = item.get(WRITER).cloned();
                    let after = read_row(item)?;
                    let slot = Slot::new(take.slot_us(after), time_us);
                    if check(slot, self.time_us(invocation)) != Check::Over {
                        return Ok(Granted::At(slot, Taken { key: key.clone(), slot_us: slot.at_us, writer }));
                    }
                    after
                }
                Returned::Refused(item) => bucket_of(item)?,
            };
        }
        Ok(Granted::Later(self.time_us(invocation) + wanted.reach_ms * 1_000))
    }

    /// Releases slots that were not used: each if no other write to its row followed the grant.
    async fn release(&self, invocation: &Invocation, held: &Held) -> Result<(), StoreError> {
        for Taken { key, slot_us, writer } in &held.taken {
            let Some(writer) = writer.clone() else { continue };
            let write = Write::update(&self.table, key.clone()).set_number(FREE_AT_US, slot_us);
            let not_written_since = Condition::Is(WRITER.to_owned(), writer);
            self.store.write(invocation, write.when(not_written_since)).await?;
        }
        Ok(())
    }

    /// Reads the buckets of a call in one request.
    async fn look(&self, invocation: &Invocation, buckets: &Buckets) -> Result<(Bucket, Bucket), StoreError> {
        let (sender, address) = (&buckets.sender.0, buckets.address.as_ref().map(|(key, _)| key));
        let Some(address) = address else {
            let row = self.store.get_item(invocation, &self.table, sender).await?;
            return Ok((bucket_of(row)?, Bucket::default()));
        };
        let keys = [sender.clone(), address.clone()];
        let mut rows = self.store.get_many(invocation, &self.table, &keys).await?;
        Ok((bucket_of(rows.remove(sender))?, bucket_of(rows.remove(address))?))
    }

    /// Follows the time in these rows. Returns the time of the buckets now.
    fn follow(&self, invocation: &Invocation, rows: &[Bucket]) -> i64 {
        let now = invocation.current();
        let clock = rows.iter().fold(self.clock(), |clock, row| clock.follow(row.seen_us, now));
        self.behind_us.fetch_max(clock.behind_us, Ordering::Relaxed);
        clock.time_us(now)
    }

    fn clock(&self) -> SharedClock {
        SharedClock { behind_us: self.behind_us.load(Ordering::Relaxed) }
    }

    fn time_us(&self, invocation: &Invocation) -> i64 {
        self.clock().time_us(invocation.current())
    }

    fn later(&self, at_us: i64) -> Grant {
        Grant::Later(self.clock().own(at_us))
    }

    /// Makes the write of a grant: the expression of [`Take::apply`].
    pub async fn make(&self, invocation: &Invocation, key: &Key, take: &Take) -> Result<Returned, StoreError> {
        let used_at = Timestamp::from_millis(take.seen_us.div_euclid(1_000));
        let write = self.bucket(key, used_at).set_number(SEEN_US, take.seen_us);
        let write = match take.free_at {
            FreeAt::Add(us) => write.add(FREE_AT_US, us),
            FreeAt::Set(us) => write.set_number(FREE_AT_US, us),
        };
        self.store.update_returning(invocation, write.when(render(&take.when))).await
    }

    /// Starts a write to a bucket. TTL removes an unused bucket after a day, when it no longer
    /// limits anything.
    fn bucket(&self, key: &Key, used_at: Timestamp) -> Write {
        Write::update(&self.table, key.clone()).set_number("expires_at", used_at.plus_days(1).seconds())
    }
}

/// Renders the condition of a grant. A missing attribute counts as zero, as in the rule.
fn render(when: &[Vec<Bound>]) -> Condition {
    let bound = |bound: &Bound| match *bound {
        Bound::AtMost(name, number) => Condition::any([Condition::has_not(name), Condition::at_most(name, number)]),
        Bound::MoreThan(name, number) => Condition::more_than(name, number),
    };
    Condition::any(when.iter().map(|all| Condition::all(all.iter().map(bound))))
}

fn bucket_of(row: Option<Item>) -> Result<Bucket, StoreError> {
    row.map_or(Ok(Bucket::default()), read_row)
}

async fn sleep_us(us: i64) {
    // Rounded up, so that a sender is never early.
    let ms = us.saturating_add(999).div_euclid(1_000);
    if let Ok(ms @ 1..) = u64::try_from(ms) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

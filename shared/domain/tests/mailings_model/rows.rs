//! The rows of a mailing as the model stores them: small copies of the product's rows, with only
//! what a rule of this world reads. Every rule runs on the product's own row, which is made from
//! the copy.
//!
//! A time is past or future: what lies ahead is over after one step of time.

use std::sync::LazyLock;

use umavez_domain::access::KeyId;
use umavez_domain::change::Row;
use umavez_domain::delivery::{Delivery, Marks};
use umavez_domain::keys::{self, Wake};
use umavez_domain::lease::Lease;
use umavez_domain::mailings::{
    EntryCounts, EntryState, ImportProgress, ImportState, MailingEntryId, MailingEntryRow, MailingId, MailingRow,
    MailingState, SendingRun, ShardRow, ShardState, UploadRequest,
};
use umavez_domain::queue::{ImportJob, emit_hand_out};
use umavez_domain::time::Timestamp;
use umavez_domain::uploaded::Position;
use umavez_domain::work::Work;

/// The present. Everything up to here is over.
pub const NOW: Timestamp = Timestamp::from_seconds(1_000_000);
/// The number of shards of the mailing. The model plays the first group: shards 0 and 3. The
/// others have no entries and are finished from the start.
const SHARDS: u32 = 4;
/// The numbers of the two shards that have entries.
pub const OWN: [u32; 2] = [0, 3];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum When {
    Past,
    Future,
}

impl When {
    pub fn of(at: Timestamp) -> Self {
        // Runs of the mailing differ by a few milliseconds.
        if at > NOW.plus_ms(100) { Self::Future } else { Self::Past }
    }

    pub fn at(self) -> Timestamp {
        if self == Self::Past { NOW } else { NOW.plus_ms(20_000) }
    }

    pub fn pass(&mut self) {
        *self = Self::Past;
    }
}

fn small<T>(number: T) -> u8
where
    u8: TryFrom<T>,
{
    u8::try_from(number).unwrap_or_else(|_| panic!("a small number"))
}

/// A lease: its owner, its epoch and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    pub owner: u8,
    pub epoch: u8,
    pub until: When,
}

impl Held {
    pub fn of(lease: &Lease) -> Self {
        let owner = lease.lease_owner.parse().expect("a number");
        Self { owner, epoch: small(lease.lease_epoch), until: When::of(lease.until()) }
    }

    pub fn lease(self) -> Lease {
        let (lease_owner, lease_epoch) = (self.owner.to_string(), u64::from(self.epoch));
        Lease { lease_owner, lease_epoch, lease_until: self.until.at().millis() }
    }
}

/// Copies the fields that differ between `before` and `after` to a stored row, as the product's
/// writes do.
macro_rules! merge {
    ($stored:expr, $before:expr, $after:expr, [$($field:ident),*]) => {
        $(if $before.$field != $after.$field { $stored.$field = $after.$field; })*
    };
}

/// The row of the mailing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mailing {
    pub state: MailingState,
    pub import: ImportState,
    pub retry: u8,
    pub retry_unknown: u8,
    pub emits: u8,
    /// Whether the job of the last emission is still needed.
    pub emits_now: bool,
    pub wake: Option<When>,
    pub lease: Option<Held>,
    /// The number of lines that the importer has read, and the recipients in each shard.
    pub lines: u8,
    pub by_shard: [u8; 2],
    pub partial: bool,
    /// Which run of sending it is.
    pub run: Option<u8>,
    /// 1 in the stored row, 0 in copies that were read before its latest change.
    pub version: u8,
}

static BASE: LazyLock<MailingRow> = LazyLock::new(|| {
    let request = UploadRequest::of_csv([("filename", "a.csv")]).expect("a request");
    let row = MailingRow::new(&request, 0, &KeyId::parse("0123456789abcdef").expect("a key"), NOW);
    MailingRow { content_version: 1, shards: SHARDS, ..row }
});

static BASE_SHARDS: LazyLock<Vec<ShardRow>> =
    LazyLock::new(|| (0..SHARDS).map(|shard| ShardRow::new(id(), shard, EntryCounts::default())).collect());

static BASE_ENTRY: LazyLock<MailingEntryRow> = LazyLock::new(|| {
    let entry = MailingEntryId::of(id(), "a@example.com", SHARDS);
    let keys::Key { pk, sk } = keys::mailing_entry(&entry);
    MailingEntryRow {
        pk,
        sk,
        email: "a@example.com".to_owned(),
        line: 1,
        variables: Default::default(),
        delivery: Delivery::default(),
        marks: Marks::default(),
        retried: 0,
        last_attempt: None,
    }
});

pub fn id() -> &'static MailingId {
    &BASE.mailing_id
}

/// The kind of job that a mailing emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Emitted {
    Import,
    HandOut,
}

pub fn emitted(row: &MailingRow) -> Option<Emitted> {
    Some(match ImportJob::read(&row.work.emit.as_ref()?.body).expect("a job") {
        ImportJob::Import(_) => Emitted::Import,
        ImportJob::HandOut(_) => Emitted::HandOut,
        ImportJob::Uploaded(_) => panic!("no row emits this"),
    })
}

impl Mailing {
    pub fn of(row: &MailingRow) -> Self {
        let recipients = row.progress.recipients;
        let counted = |shard: u32| small(row.progress.of_shard(shard).pending);
        let is_counted = !row.progress.by_shard.is_empty();
        Self {
            state: row.state,
            import: row.import,
            retry: small(row.retry),
            retry_unknown: small(row.retry_unknown),
            emits: small(row.work.emits),
            emits_now: row.work.emit.is_some(),
            wake: row.work.wakes_at(Wake::Check, id().as_str()).map(When::of),
            lease: row.lease.as_ref().map(Held::of),
            lines: small(row.progress.rows),
            // After the import, only the number of recipients is left.
            by_shard: if is_counted { OWN.map(counted) } else { [small(recipients), 0] },
            partial: row.progress.partial,
            run: row.run.map(|run| small(run.since.millis() - NOW.millis())),
            version: 1,
        }
    }

    pub fn row(&self) -> MailingRow {
        let mut progress = ImportProgress { rows: self.lines.into(), partial: self.partial, ..BASE.progress.clone() };
        progress.place = Position { next_line: u64::from(self.lines) + 1, ..Position::START };
        for (shard, count) in OWN.into_iter().zip(self.by_shard) {
            (0..count).for_each(|_| progress.add_recipient(shard));
        }
        if self.import == ImportState::Done {
            progress.by_shard.clear();
        }
        let since = |run: u8| SendingRun { since: NOW.plus_ms(run.into()), sent: 0, tried: 0 };
        let mut row = MailingRow {
            state: self.state,
            import: self.import,
            retry: self.retry.into(),
            retry_unknown: self.retry_unknown.into(),
            lease: self.lease.map(Held::lease),
            progress,
            run: self.run.map(since),
            version: self.version.into(),
            ..BASE.clone()
        };
        // What the job asks for is known from the queue.
        let emits = u64::from(self.emits);
        row.work = Work { emits, emit: self.emits_now.then(|| emit_hand_out(id(), emits)), ..Work::default() };
        if let Some(wake) = self.wake {
            row.wait_until(wake.at());
        }
        row
    }

    /// Returns whether the fence of this copy still holds on the stored row.
    pub fn is_as_read(&self, stored: &Self) -> bool {
        self == stored || self.row().fence() == stored.row().fence()
    }

    pub fn merge(&mut self, before: &Self, after: &Self) {
        merge!(self, before, after, [state, import, retry, retry_unknown, emits, emits_now, wake, lease, lines]);
        merge!(self, before, after, [by_shard, partial, run]);
    }

    pub fn pass(&mut self) {
        self.wake.iter_mut().for_each(When::pass);
        self.lease.iter_mut().for_each(|held| held.until.pass());
    }
}

/// The row of a shard that has entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    pub number: u32,
    pub state: ShardState,
    /// The number of entries in each state, in the order of [`EntryState::ALL`].
    pub counts: [u8; 8],
    pub lease: Option<Held>,
    pub cursor: Option<u8>,
    pub cursor_order: u8,
    pub begun: bool,
    pub due: Option<When>,
    pub retried: u8,
    pub retried_unknown: u8,
    pub touched: u8,
    pub emits: u8,
    pub wake: Option<When>,
}

pub fn counts_of(counts: &EntryCounts) -> [u8; 8] {
    let EntryCounts { pending, sending, sent, failed, invalid, unknown, suppressed, canceled } = *counts;
    [pending, sending, sent, failed, invalid, unknown, suppressed, canceled].map(small)
}

fn entry_counts(counts: [u8; 8]) -> EntryCounts {
    let [pending, sending, sent, failed, invalid, unknown, suppressed, canceled] = counts.map(u64::from);
    EntryCounts { pending, sending, sent, failed, invalid, unknown, suppressed, canceled }
}

impl Shard {
    pub fn of(row: &ShardRow) -> Self {
        let wake_id = keys::mailing_shard_id(id(), row.shard);
        Self {
            number: row.shard,
            state: row.state,
            counts: counts_of(&row.counts),
            lease: row.lease.as_ref().map(Held::of),
            cursor: row.cursor.as_ref().map(|cursor| cursor.parse().expect("a number")),
            cursor_order: small(row.cursor_order),
            begun: row.begun,
            due: row.due.map(When::of),
            retried: small(row.retried),
            retried_unknown: small(row.retried_unknown),
            touched: small(row.touched),
            emits: small(row.work.emits),
            wake: row.work.wakes_at(Wake::Check, &wake_id).map(When::of),
        }
    }

    pub fn row(&self) -> ShardRow {
        let mut row = ShardRow {
            state: self.state,
            counts: entry_counts(self.counts),
            lease: self.lease.map(Held::lease),
            cursor: self.cursor.map(|cursor| cursor.to_string()),
            cursor_order: self.cursor_order.into(),
            begun: self.begun,
            due: self.due.map(When::at),
            retried: self.retried.into(),
            retried_unknown: self.retried_unknown.into(),
            touched: self.touched.into(),
            ..BASE_SHARDS[self.number as usize].clone()
        };
        row.work.emits = self.emits.into();
        if let Some(wake) = self.wake {
            row.wait_until(wake.at());
        }
        row
    }

    /// Returns a shard without entries.
    fn finished(number: u32, retried: u8) -> ShardRow {
        let base = BASE_SHARDS[number as usize].clone();
        ShardRow { state: ShardState::Finished, begun: true, retried: retried.into(), ..base }
    }

    pub fn is_as_read(&self, stored: &Self) -> bool {
        self == stored || self.row().fence() == stored.row().fence()
    }

    pub fn merge(&mut self, before: &Self, after: &Self) {
        merge!(self, before, after, [state, counts, lease, cursor, cursor_order, begun, due, retried]);
        merge!(self, before, after, [retried_unknown, touched, emits, wake]);
    }

    pub fn moved(&mut self, from: EntryState, to: EntryState) {
        let mut counts = entry_counts(self.counts);
        counts.moved(from, to);
        self.counts = counts_of(&counts);
    }

    pub fn pass(&mut self) {
        self.wake.iter_mut().for_each(When::pass);
        self.due.iter_mut().for_each(When::pass);
        self.lease.iter_mut().for_each(|held| held.until.pass());
    }
}

/// All shards of the mailing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shards {
    pub own: [Shard; 2],
    /// The order that the shards without entries follow.
    pub idle_retried: u8,
}

impl Shards {
    /// Returns the shards after an import that created these rows. A shard to which no line of the
    /// file belongs counts as sent through.
    pub fn of(rows: &[ShardRow], has_lines: impl Fn(usize) -> bool) -> Self {
        let row = |at: usize| match has_lines(at) {
            true => Shard::of(&rows[OWN[at] as usize]),
            false => Shard::of(&Shard::finished(OWN[at], 0)),
        };
        Self { own: [row(0), row(1)], idle_retried: 0 }
    }

    pub fn rows(&self) -> Vec<ShardRow> {
        let own = |number: u32| self.own.iter().find(|shard| shard.number == number).map(Shard::row);
        (0..SHARDS).map(|number| own(number).unwrap_or_else(|| Shard::finished(number, self.idle_retried))).collect()
    }
}

/// The row of a recipient.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    pub delivery: Delivery,
    pub marks: Marks,
    pub retried: u32,
}

impl Entry {
    pub fn of(row: MailingEntryRow) -> Self {
        let when = |at: Timestamp| When::of(at).at();
        let MailingEntryRow { delivery, marks, retried, .. } = row;
        let delivery = Delivery {
            claim: None,
            reason: None,
            sent_at: None,
            provider_id: None,
            not_before: delivery.not_before.map(when).filter(|at| *at > NOW),
            deadline: delivery.deadline.map(|at| when(Timestamp::from_millis(at)).millis()),
            ..delivery
        };
        Self { delivery, marks, retried }
    }

    pub fn row(&self) -> MailingEntryRow {
        let Self { delivery, marks, retried } = self.clone();
        MailingEntryRow { delivery, marks, retried, ..BASE_ENTRY.clone() }
    }

    pub fn state(&self) -> EntryState {
        self.delivery.state.into()
    }

    pub fn is_as_read(&self, stored: &Self) -> bool {
        self == stored || self.delivery.fence() == stored.delivery.fence()
    }

    pub fn pass(&mut self) {
        self.delivery.not_before = None;
        self.delivery.deadline = self.delivery.deadline.map(|_| NOW.millis());
    }
}

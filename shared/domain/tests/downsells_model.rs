//! Payment against send, checked in every interleaving of a small world: two offers of one contact, two senders that are
//! handed either of them again and again and may die, a payment that is told twice, an expiry, recovery, triggers, and time
//! that passes. The product's own functions decide every step.
//!
//! A step is what happens between two requests: rows are read, or one transaction is written on the condition that the
//! versions are as they were read. Where the product writes one row and on a refusal decides again on the row that won
//! (outcomes, cancels, recalls), that is one step here: nothing but the row as it stands at the commit decides. What hands an
//! offer to a sender is left open: whoever is free may take whatever is due.
//!
//! A contact has two charges. The second one is open from the beginning, is not there at all, or is made on the way while the
//! first expires: then the offer of the first must not be lost to it.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde_json::json;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};
use umavez_domain::delivery::{Next, Outcome, Progress, State, UnknownPolicy, Verdict, code, next, settle};
use umavez_domain::downsells::charges::{self, Charge, OpenCharge, Told};
use umavez_domain::downsells::{
    Asked, Cancel, ChargeStatus, ChargesRow, Contact, Delivery, DownsellRow, End, Gate, Learned, NewDownsell, OfferRow,
    Outdated, Plan, Recalled, SlotRow, Status, Step, TransactionRow, Trigger, Why, plan,
};
use umavez_domain::senders::bots::BotRow;
use umavez_domain::time::Timestamp;

const BOT: &str = "loja";
const PERSON: i64 = 7;
const KEEP_DAYS: i64 = 90;
/// By the next moment a deadline has passed, a backoff is over, and a payment is looked after.
const MOMENT_MS: i64 = 60_000;
/// The first at which no charge is open any more.
const CHARGES_END: u8 = 3;
/// The offer of the /start, that of the charge, that of the charge for the downsell of the /start, and that of the second
/// charge.
const PLACES: usize = 4;

/// A row as it stands or was read. Its hash is taken once: it is looked at in thousands of states.
struct Row<T>(Arc<(T, u64)>);

impl<T: Hash> Row<T> {
    fn of(row: T) -> Self {
        let hash = digest(&row);
        Self(Arc::new((row, hash)))
    }
}

fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<T> Clone for Row<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Row<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.0
    }
}

impl<T> Hash for Row<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.1);
    }
}

impl<T> PartialEq for Row<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.1 == other.0.1
    }
}

impl<T> Eq for Row<T> {}

impl<T: fmt::Debug> fmt::Debug for Row<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}

/// What no rule of this world reads would only make two states of one.
fn bare_offer(row: OfferRow) -> Row<OfferRow> {
    Row::of(OfferRow {
        code: None,
        last_attempt_at: None,
        claim: None,
        provider_id: None,
        sent_at: None,
        late_ms: None,
        enqueued: false,
        emit: None,
        wake: None,
        wake_at: None,
        listed_at: String::new(),
        created_at: at(0),
        updated_at: at(0),
        expires_at: None,
        ..row
    })
}

fn bare_charges(row: ChargesRow) -> Row<ChargesRow> {
    Row::of(ChargesRow { paid_at: None, wake: None, wake_at: None, created_at: at(0), updated_at: at(0), ..row })
}

fn bare_transaction(row: TransactionRow) -> Row<TransactionRow> {
    Row::of(TransactionRow { created_at: at(0), updated_at: at(0), expires_at: None, ..row })
}

fn at(moment: u8) -> Timestamp {
    Timestamp::from_millis(i64::from(moment) * MOMENT_MS)
}

/// A set of places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Places(u8);

impl Places {
    fn has(self, place: usize) -> bool {
        self.0 & (1 << place) != 0
    }

    fn with(self, place: usize) -> Self {
        Self(self.0 | (1 << place))
    }

    fn first(self) -> Option<usize> {
        (0..PLACES).find(|place| self.has(*place))
    }

    fn without(self, place: usize) -> Self {
        Self(self.0 & !(1 << place))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Sent,
    /// Known not to have been sent.
    Refused,
    /// It was sent, and nobody knows.
    Lost,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Sender {
    Idle,
    Seen {
        place: usize,
        offer: Row<OfferRow>,
        charges: Row<ChargesRow>,
    },
    Claimed {
        place: usize,
        offer: Row<OfferRow>,
    },
    /// The call was made, or given up.
    Made {
        place: usize,
        offer: Row<OfferRow>,
        answer: Answer,
    },
}

/// What a webhook says of the offers that it concerns, and those that it has still to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Counted {
    to_end: Places,
    canceled: Places,
    in_flight: Places,
    sent: Places,
    passed_on: Places,
}

/// One telling of a payment or of an expiry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Teller {
    Waits,
    /// The contact was read, and the transaction is not yet: only in a flawed world.
    Early(Counted, Row<ChargesRow>),
    Read {
        transaction: Option<Row<TransactionRow>>,
        charges: Row<ChargesRow>,
    },
    /// It is written; the contact is read next.
    Told,
    Ends(Counted),
    Answered,
}

/// Recovery, while it sees to what follows from the charges.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Looker {
    Idle,
    Seen { charges: Row<ChargesRow>, outdated: Places },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Asker {
    Waits,
    Read(Box<View>),
    Done,
}

/// Everything about the contact, as it stands or was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct View {
    now: u8,
    charges: Row<ChargesRow>,
    /// The first transaction. Of the second, only its creation is reported.
    transaction: Option<Row<TransactionRow>>,
    offers: [Option<Row<OfferRow>>; PLACES],
    /// Of each downsell: which offer, whether it is pending, and the version.
    slots: [Option<(usize, bool, u64)>; 2],
}

/// Promises that were broken on the way here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Broken {
    sent_after_answer: bool,
    sent_twice: bool,
    sent_through_the_gate: bool,
    ended_without_reason: bool,
    moved_backwards: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    view: View,
    senders: [Sender; 2],
    /// Two tellings of the payment, and one of the expiry.
    tellers: [Option<Teller>; 3],
    /// A /start and a charge that is made.
    askers: [Option<Asker>; 2],
    looker: Looker,
    deliveries: u8,
    looks: u8,
    deaths: u8,
    refusals: u8,
    losses: u8,
    /// What has reached the person.
    reached: Places,
    /// What every answer to a payment said is in flight or sent; nothing while there is none. And to an expiry.
    may_leave: [Option<Places>; 2],
    told: Counted,
    broken: Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Act {
    Tick,
    Take(usize, usize),
    Decide(usize),
    Call(usize, Answer),
    /// The claim took so long that the call could not end before its deadline.
    GiveUp(usize),
    Settle(usize),
    SenderDies(usize),
    Read(usize),
    Write(usize),
    ReadAgain(usize),
    End(usize),
    TellerDies(usize),
    Recall(usize),
    Look,
    LookEnds,
    Ask(usize),
    Make(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// The claim does not check that the charges are as they were read.
    ClaimIgnoresCharges,
    /// The claim does not check that the offer is as it was read.
    ClaimIgnoresOffer,
    /// Whoever loses against another writer of the offer decides again on the charges that it read before.
    LoserKeepsCharges,
    /// A repeated payment counts the offers of a contact that was read before its transaction.
    ContactBeforeTransaction,
    /// An offer whose charge expired ends, whatever else is unpaid.
    ExpiryEndsOffers,
    /// Recovery does not check that the charges are as they were read.
    LookIgnoresCharges,
    /// A charge that found an offer pending does not check that it still is.
    TriggerIgnoresSlot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    /// Open from the beginning.
    Open,
    None,
    /// Made on the way, in place of the first, which is open already and expires at the first moment.
    Made,
}

#[derive(Debug)]
struct Small {
    policy: UnknownPolicy,
    payments: usize,
    expiries: usize,
    /// Whether the offers are made on the way, or stand at the beginning.
    triggers: bool,
    second: Second,
    /// The last moment that the world has.
    last: u8,
    deliveries: u8,
    looks: u8,
    deaths: u8,
    refusals: u8,
    losses: u8,
    flaw: Option<Flaw>,
    bot: BotRow,
    downsells: [DownsellRow; 2],
}

fn bot() -> BotRow {
    let body = json!({ "slug": BOT });
    BotRow::read(body.as_object().expect("an object"), at(0)).expect("a bot")
}

/// Offers of it are due at once.
fn downsell(id: u64, after_start: bool, after_pix: bool) -> DownsellRow {
    let content = json!({"text": "?"});
    let when = json!({"delay_minutes": 0, "after_start": after_start, "after_pix": after_pix});
    let mut body = json!({"name": "-", "content": content});
    body.as_object_mut().expect("an object").extend(when.as_object().expect("an object").clone());
    NewDownsell::read(body.as_object().expect("an object")).expect("a downsell").row(BOT, id, None, at(0))
}

const CHARGE: Charge<'static> = Charge { bot: BOT, telegram_id: PERSON, transaction_id: "t1" };
const SECOND: Charge<'static> = Charge { transaction_id: "t2", ..CHARGE };

fn place_of(offer: &OfferRow) -> usize {
    match (offer.downsell_id, offer.event_id.contains(":start:")) {
        (1, true) => 0,
        (2, _) if offer.event_id.ends_with(":t2") => 3,
        (2, _) => 1,
        _ => 2,
    }
}

impl Small {
    fn new() -> Self {
        Self {
            policy: UnknownPolicy::Hold,
            payments: 1,
            expiries: 0,
            triggers: false,
            second: Second::Open,
            last: 1,
            deliveries: 2,
            looks: 0,
            deaths: 0,
            refusals: 0,
            losses: 0,
            flaw: None,
            bot: bot(),
            downsells: [downsell(1, true, false), downsell(2, false, true)],
        }
    }

    fn with_triggers() -> Self {
        Self { triggers: true, downsells: [downsell(1, true, true), downsell(2, false, true)], last: 0, ..Self::new() }
    }

    /// The second charge is made while the first, which has an offer, expires.
    fn with_second_charge() -> Self {
        let downsells = [downsell(1, false, false), downsell(2, false, true)];
        Self { second: Second::Made, payments: 0, downsells, ..Self::new() }
    }

    /// When the first charge can no longer be paid.
    fn first_ends(&self) -> u8 {
        if self.second == Second::Made { 1 } else { CHARGES_END }
    }

    /// The charge that is made on the way, if one is.
    fn made(&self) -> Charge<'static> {
        if self.second == Second::Made { SECOND } else { CHARGE }
    }

    fn downsell_of(&self, offer: &OfferRow) -> Option<&DownsellRow> {
        self.downsells.iter().find(|downsell| downsell.id == offer.downsell_id)
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// What a trigger comes to, on the contact as it was read.
    fn plan(&self, view: &View, trigger: Trigger, of: &Charge<'_>) -> Plan {
        let asked = Asked {
            bot: BOT,
            telegram_id: PERSON,
            trigger,
            source: if trigger == Trigger::Pix { of.transaction_id } else { "5001" },
            at: at(0),
            correlation_id: "",
            meta: None,
            keep_days: KEEP_DAYS,
        };
        plan(&asked, &self.downsells, &view.contact(), at(view.now))
    }
}

impl View {
    /// A contact without a charge.
    fn new() -> Self {
        Self {
            now: 0,
            charges: bare_charges(ChargesRow::none(BOT, PERSON, at(0))),
            transaction: None,
            offers: [const { None }; PLACES],
            slots: [None; 2],
        }
    }

    fn time(&self) -> Timestamp {
        at(self.now)
    }

    fn offer(&self, place: usize) -> &Row<OfferRow> {
        self.offers[place].as_ref().expect("an offer that was taken is there")
    }

    fn all(&self) -> impl Iterator<Item = (usize, &Row<OfferRow>)> {
        self.offers.iter().enumerate().filter_map(|(place, offer)| Some((place, offer.as_ref()?)))
    }

    fn contact(&self) -> Contact {
        let slot = |(index, slot): (usize, &Option<(usize, bool, u64)>)| {
            let (place, pending, version) = (*slot)?;
            let downsell_id = index as u64 + 1;
            let offer = self.offer(place).id.clone();
            let (ended_at, sent_at, pay_epoch, sent) = (None, None, self.offer(place).pay_epoch, 0);
            Some((downsell_id, SlotRow { downsell_id, offer, pending, ended_at, sent_at, pay_epoch, sent, version }))
        };
        Contact {
            charges: Some((*self.charges).clone()),
            slots: self.slots.iter().enumerate().filter_map(slot).collect(),
            offers: self.all().map(|(_, offer)| (offer.id.clone(), (**offer).clone())).collect(),
            ..Contact::default()
        }
    }

    /// A charge is made, with all that follows from it; nothing if it is over before it was known.
    fn with_charge(&self, of: &Charge<'_>, ends: u8) -> Option<Self> {
        let is_first = of.transaction_id == CHARGE.transaction_id;
        let known = self.transaction.as_deref().filter(|_| is_first);
        let open = OpenCharge { made_at: self.time().millis(), until: at(ends).millis() };
        match charges::created(&self.charges, known, of, open, self.time()) {
            Told::New { charges, transaction } => Some(Self {
                charges: bare_charges(*charges),
                transaction: if is_first { Some(bare_transaction(*transaction)) } else { self.transaction.clone() },
                ..self.clone()
            }),
            _ => None,
        }
    }

    fn put(&mut self, offer: OfferRow) {
        let place = place_of(&offer);
        self.offers[place] = Some(bare_offer(offer));
    }

    fn make(&mut self, plan: Plan) {
        for step in plan.steps {
            match step {
                Step::Schedule { offer, slot, stale, .. } => {
                    if let Some(stale) = stale {
                        self.put(stale.1);
                    }
                    let place = place_of(&offer);
                    self.slots[offer.downsell_id as usize - 1] = Some((place, true, slot.version));
                    self.offers[place] = Some(bare_offer(*offer));
                }
                Step::Refuse { .. } => {}
                Step::Join { after, .. } => self.put(*after),
            }
        }
    }

    /// Whether everything that a plan rests on is as it was read.
    fn still_holds(&self, model: &Small, read: &Self, plan: &Plan) -> bool {
        let same = |place: usize| self.offers[place] == read.offers[place];
        let holds = |step: &Step| match step {
            Step::Schedule { offer, stale, .. } => {
                let slot = offer.downsell_id as usize - 1;
                self.slots[slot] == read.slots[slot] && stale.as_ref().is_none_or(|stale| same(place_of(&stale.0)))
            }
            Step::Refuse { pending: Some(slot), .. } if !model.has(Flaw::TriggerIgnoresSlot) => {
                let slot = slot.downsell_id as usize - 1;
                self.slots[slot] == read.slots[slot]
            }
            Step::Refuse { .. } => true,
            Step::Join { before, .. } => same(place_of(before)),
        };
        self.charges.version == read.charges.version && plan.steps.iter().all(holds)
    }
}

impl World {
    fn now(&self) -> Timestamp {
        self.view.time()
    }

    /// The transaction of a change of an offer: the offer, and its slot if it has ended.
    fn write(&mut self, place: usize, after: OfferRow) {
        let (charges, now) = (&self.view.charges, self.now());
        let reason = after.cancel_reason.filter(|_| after.status == Status::Canceled);
        let transaction = after.transaction_id.as_deref().unwrap_or_default();
        self.broken.ended_without_reason |= match reason {
            Some(Why::Expired) => charges.is_open(transaction, now),
            Some(Why::Paid) => charges.pay_epoch == after.pay_epoch,
            _ => false,
        };
        self.broken.moved_backwards |= after.version != self.view.offer(place).version + 1;
        if let Some(slot) = &mut self.view.slots[after.downsell_id as usize - 1]
            && slot.0 == place
            && slot.1
            && !after.is_pending()
        {
            *slot = (place, false, slot.2 + 1);
        }
        self.view.offers[place] = Some(bare_offer(after));
    }

    fn read(&self, place: usize) -> Sender {
        Sender::Seen { place, offer: self.view.offer(place).clone(), charges: self.view.charges.clone() }
    }

    /// A sender goes on with what it has read: one round of `offer::run`.
    fn decide(&mut self, model: &Small, n: usize) {
        let Sender::Seen { place, offer, charges } = std::mem::replace(&mut self.senders[n], Sender::Idle) else {
            return;
        };
        let attempt = match next(&offer.progress(), self.now()) {
            Next::Leave | Next::Wait { .. } => return,
            Next::Expire => return self.end(model, n, (place, &offer, charges), End::Expired),
            Next::Claim { attempt } => attempt,
        };
        match offer.gate(Some(&model.bot), model.downsell_of(&offer), Some(&charges), self.now()) {
            Gate::Closed(end) => self.end(model, n, (place, &offer, charges), end),
            Gate::Open => self.claim(model, n, (place, &offer, charges), attempt),
            Gate::PassedOn(_) if model.has(Flaw::ExpiryEndsOffers) => {
                self.end(model, n, (place, &offer, charges), End::Canceled(Why::Expired));
            }
            Gate::PassedOn(after) => {
                let as_read = self.view.offer(place).version == offer.version;
                if as_read && self.view.charges.version == charges.version {
                    self.write(place, *after);
                }
                self.senders[n] = self.read(place);
            }
        }
    }

    fn claim(
        &mut self,
        model: &Small,
        n: usize,
        (place, offer, charges): (usize, &OfferRow, Row<ChargesRow>),
        attempt: u32,
    ) {
        let deadline = at(self.view.now + 1);
        let claimed =
            offer.claimed(attempt, "", deadline, self.now()).expect("it is queued, and the attempt is its next");
        if self.view.offer(place).version != offer.version && !model.has(Flaw::ClaimIgnoresOffer) {
            return self.lost(model, n, place, charges);
        }
        if self.view.charges.version != charges.version && !model.has(Flaw::ClaimIgnoresCharges) {
            self.senders[n] = self.read(place);
            return;
        }
        let (charges, now) = (&self.view.charges, self.now());
        let its_own = offer.transaction_id.as_deref().is_none_or(|transaction| charges.is_open(transaction, now));
        self.broken.sent_through_the_gate |= charges.pay_epoch != offer.pay_epoch || !charges.any_open(now) || !its_own;
        self.broken.sent_twice |= self.may_be_called(n, place);
        self.write(place, claimed);
        self.senders[n] = Sender::Claimed { place, offer: self.view.offer(place).clone() };
    }

    /// Another sender may still call for it.
    fn may_be_called(&self, n: usize, of: usize) -> bool {
        let deadline = |offer: &OfferRow| offer.deadline.is_some_and(|deadline| deadline > self.now().millis());
        let may =
            |sender: &Sender| matches!(sender, Sender::Claimed { place, offer } if *place == of && deadline(offer));
        self.senders.iter().enumerate().any(|(other, sender)| other != n && may(sender))
    }

    fn end(&mut self, model: &Small, n: usize, (place, offer, charges): (usize, &OfferRow, Row<ChargesRow>), end: End) {
        let keeps = model.has(Flaw::LoserKeepsCharges);
        let as_read = keeps || !end.rests_on_charges() || self.view.charges.version == charges.version;
        match offer.ended(end, self.now(), KEEP_DAYS) {
            Some(after) if as_read && self.view.offer(place).version == offer.version => self.write(place, after),
            Some(_) => self.lost(model, n, place, charges),
            None => {}
        }
    }

    /// Whoever lost decides again, on the offer and the charges as they stand.
    fn lost(&mut self, model: &Small, n: usize, place: usize, charges: Row<ChargesRow>) {
        let offer = self.view.offer(place).clone();
        let charges = if model.has(Flaw::LoserKeepsCharges) { charges } else { self.view.charges.clone() };
        self.senders[n] = Sender::Seen { place, offer, charges };
    }

    fn call(&mut self, model: &Small, n: usize, answer: Answer) {
        let Sender::Claimed { place, offer } = self.senders[n].clone() else { return };
        let outdated = offer.pay_epoch < self.view.charges.pay_epoch;
        let concerned = [outdated, offer.transaction_id.as_deref() == Some(CHARGE.transaction_id)];
        let unsaid =
            |(answers, concerned): (&Option<Places>, bool)| concerned && answers.is_some_and(|said| !said.has(place));
        self.broken.sent_after_answer |= self.may_leave.iter().zip(concerned).any(unsaid);
        let again = self.reached.has(place) && model.policy == UnknownPolicy::Hold;
        self.broken.sent_twice |= again || self.may_be_called(n, place);
        if answer != Answer::Refused {
            self.reached = self.reached.with(place);
        }
        self.senders[n] = Sender::Made { place, offer, answer };
    }

    fn settle(&mut self, model: &Small, n: usize) {
        let Sender::Made { place, offer, answer } = std::mem::replace(&mut self.senders[n], Sender::Idle) else {
            return;
        };
        let outcome = match answer {
            Answer::Sent => Outcome::Sent { provider_id: String::new() },
            Answer::Refused => Outcome::Transient { code: code::NOT_CONNECTED },
            Answer::Lost => Outcome::Unknown { code: code::TIMED_OUT },
        };
        let progress = Progress { state: State::Sending, ..offer.progress() };
        let verdict: Verdict = settle(&progress, outcome, model.policy, self.now(), 0);
        if let Learned::New(after) = self.view.offer(place).settled(offer.attempts, &verdict, self.now(), KEEP_DAYS) {
            self.write(place, *after);
        }
    }

    /// How the offers stand that a telling concerns, on the contact as it is read. What is still queued is ended or passed on
    /// one by one.
    fn count(&self, teller: usize) -> Counted {
        let concerns = |offer: &OfferRow| match why(teller) {
            Why::Paid => offer.pay_epoch == 0,
            _ => offer.was_of(CHARGE.transaction_id),
        };
        let mut counted = Counted::default();
        for (place, offer) in self.view.all().filter(|(_, offer)| concerns(offer)) {
            let to_end = match why(teller) {
                Why::Paid => matches!(offer.cancel(Why::Paid, self.now(), KEEP_DAYS), Cancel::Now(_)),
                _ => offer.is_queued() && offer.outdated(Some(&self.view.charges), self.now()).is_some(),
            };
            match to_end {
                true => counted.to_end = counted.to_end.with(place),
                false => counted.add(place, offer, why(teller)),
            }
        }
        counted
    }

    /// What follows for an offer from charges: it ends, or is passed on.
    fn follow(&mut self, model: &Small, place: usize, charges: &ChargesRow) {
        let (offer, now) = (self.view.offer(place).clone(), self.now());
        let after = match offer.follow_charges(Some(charges), model.downsell_of(&offer), now) {
            Some(Outdated::PassedOn(_)) if model.has(Flaw::ExpiryEndsOffers) => {
                offer.ended(End::Canceled(Why::Expired), now, KEEP_DAYS)
            }
            Some(Outdated::PassedOn(after)) => Some(*after),
            Some(Outdated::Ends(end)) => offer.ended(end, now, KEEP_DAYS),
            None => None,
        };
        if let Some(after) = after {
            self.write(place, after);
        }
    }

    fn cancel(&mut self, place: usize, why: Why) {
        if let Cancel::Now(after) = self.view.offer(place).cancel(why, self.now(), KEEP_DAYS) {
            self.write(place, *after);
        }
    }

    fn teller_reads(&mut self, model: &Small, n: usize) {
        let charges = self.view.charges.clone();
        self.tellers[n] = Some(match self.tellers[n].take() {
            Some(Teller::Waits) if model.has(Flaw::ContactBeforeTransaction) => Teller::Early(self.count(n), charges),
            Some(Teller::Early(counted, _)) if self.is_paid() => self.after(n, counted),
            Some(Teller::Early(_, charges)) => Teller::Read { transaction: self.view.transaction.clone(), charges },
            _ => Teller::Read { transaction: self.view.transaction.clone(), charges },
        });
    }

    fn is_paid(&self) -> bool {
        self.view.transaction.as_ref().is_some_and(|row| row.status == ChargeStatus::Paid)
    }

    fn teller_writes(&mut self, n: usize) {
        let Some(Teller::Read { transaction, charges }) = self.tellers[n].take() else { return };
        let told = match (&transaction, why(n)) {
            (known, Why::Paid) => charges::paid(&charges, known.as_deref(), &CHARGE, self.now()),
            (Some(known), _) => charges::expired(&charges, known, self.now()),
            (None, _) => unreachable!("an expiry is told of what is known"),
        };
        let as_read = charges.version == self.view.charges.version && transaction == self.view.transaction;
        self.tellers[n] = Some(match told {
            Told::Another | Told::Over(_) => unreachable!("there is one contact, and nothing is made here"),
            // The expiry of what was paid tells how the offers of that payment stand; it is left out here.
            Told::Known(ChargeStatus::Paid) if n == 2 => Teller::Answered,
            Told::Known(_) => Teller::Told,
            Told::New { .. } if !as_read => Teller::Waits,
            Told::New { charges, transaction } => {
                let before = self.view.transaction.replace(bare_transaction(*transaction));
                let status = |row: &Option<Row<TransactionRow>>| row.as_ref().map(|row| row.status);
                self.broken.moved_backwards |= status(&before) > status(&self.view.transaction);
                self.view.charges = bare_charges(*charges);
                Teller::Told
            }
        });
    }

    fn teller_ends(&mut self, model: &Small, n: usize) {
        let Some(Teller::Ends(mut counted)) = self.tellers[n].take() else { return };
        if let Some(place) = counted.to_end.first() {
            match why(n) {
                Why::Paid => self.cancel(place, Why::Paid),
                _ => self.follow(model, place, &self.view.charges.clone()),
            }
            counted.to_end = counted.to_end.without(place);
            counted.add(place, self.view.offer(place), why(n));
        }
        self.tellers[n] = Some(self.after(n, counted));
    }

    /// Who has ended all that was to be ended answers.
    fn after(&mut self, n: usize, counted: Counted) -> Teller {
        if counted.to_end != Places::default() {
            return Teller::Ends(counted);
        }
        let said = Places(counted.in_flight.0 | counted.sent.0);
        let answers = &mut self.may_leave[n / 2];
        *answers = Some(answers.map_or(said, |before| Places(before.0 & said.0)));
        self.told.canceled.0 |= counted.canceled.0;
        self.told.in_flight.0 |= counted.in_flight.0;
        self.told.sent.0 |= counted.sent.0;
        self.told.passed_on.0 |= counted.passed_on.0;
        Teller::Answered
    }

    fn look(&mut self) {
        let (charges, now) = (self.view.charges.clone(), self.now());
        let queued = self.view.all().filter(|(_, offer)| offer.is_queued());
        let outdated = queued.filter(|(_, offer)| offer.outdated(Some(&charges), now).is_some());
        let outdated = outdated.fold(Places::default(), |places, (place, _)| places.with(place));
        self.looker = Looker::Seen { charges, outdated };
    }

    /// One write of recovery. It gives up if the charges have changed since they were read.
    fn look_ends(&mut self, model: &Small) {
        let Looker::Seen { charges, outdated } = std::mem::replace(&mut self.looker, Looker::Idle) else { return };
        let as_read = charges.version == self.view.charges.version;
        match outdated.first() {
            Some(place) if as_read || model.has(Flaw::LookIgnoresCharges) => {
                self.follow(model, place, &charges);
                self.looker = Looker::Seen { charges, outdated: outdated.without(place) };
            }
            None if as_read => self.view.charges = bare_charges(charges.looked_after(self.now())),
            _ => {}
        }
    }

    fn recall(&mut self, model: &Small, place: usize) {
        match self.view.offer(place).recalled(model.policy, self.now(), 0, KEEP_DAYS) {
            Recalled::Emitted(after) | Recalled::Unknown(after) => self.write(place, *after),
            Recalled::Left => {}
        }
    }

    /// The transaction of a trigger, or another look at what has changed.
    fn make(&mut self, model: &Small, n: usize) {
        let Some(Asker::Read(read)) = self.askers[n].take() else { return };
        let trigger = [Trigger::Start, Trigger::Pix][n];
        let of = model.made();
        let with_charge = if n == 1 { read.with_charge(&of, CHARGES_END) } else { Some((*read).clone()) };
        let known_as_read = n == 0 || model.second == Second::Made || self.view.transaction == read.transaction;
        let made = with_charge.map(|base| (model.plan(&base, trigger, &of), base));
        self.askers[n] = Some(match made {
            None => Asker::Done,
            Some((plan, base)) if known_as_read && self.view.still_holds(model, &read, &plan) => {
                if n == 1 {
                    self.view.charges = base.charges;
                    // The expiry of the first may have been written since, and is not undone by the second.
                    if model.second != Second::Made {
                        self.view.transaction = base.transaction;
                    }
                }
                self.view.make(plan);
                Asker::Done
            }
            Some(_) => Asker::Read(Box::new(self.view.clone())),
        });
    }

    /// Whether the second charge is unpaid and the only offers of its downsell ended because the first expired.
    fn is_left_without(&self) -> bool {
        let (charges, now) = (&self.view.charges, self.now());
        let of_downsell = || self.view.all().filter(|(_, offer)| offer.downsell_id == 2);
        let ended = |offer: &OfferRow| (offer.status, offer.cancel_reason) == (Status::Canceled, Some(Why::Expired));
        let unpaid = charges.pay_epoch == 0 && charges.is_open(SECOND.transaction_id, now);
        unpaid && of_downsell().next().is_some() && of_downsell().all(|(_, offer)| ended(offer))
    }

    /// Who of two alike does what is all the same.
    fn in_order(mut self) -> Self {
        if digest(&self.senders[0]) > digest(&self.senders[1]) {
            self.senders.swap(0, 1);
        }
        if digest(&self.tellers[0]) > digest(&self.tellers[1]) {
            self.tellers.swap(0, 1);
        }
        self
    }
}

fn why(teller: usize) -> Why {
    if teller < 2 { Why::Paid } else { Why::Expired }
}

impl Counted {
    fn add(&mut self, place: usize, offer: &OfferRow, why: Why) {
        let passed_on = why == Why::Expired && offer.passed_from.iter().any(|from| from == CHARGE.transaction_id);
        match (offer.status, offer.cancel_reason) {
            _ if passed_on => self.passed_on = self.passed_on.with(place),
            (Status::Canceled, Some(reason)) if reason == why => self.canceled = self.canceled.with(place),
            (Status::Pending, _) => self.in_flight = self.in_flight.with(place),
            (Status::Sent, _) => self.sent = self.sent.with(place),
            _ => {}
        }
    }
}

impl Model for Small {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let mut view = View::new();
        if self.second == Second::Open {
            view = view.with_charge(&SECOND, CHARGES_END).expect("it is new");
        }
        if !self.triggers {
            view = view.with_charge(&CHARGE, self.first_ends()).expect("it is new");
            for trigger in [Trigger::Start, Trigger::Pix] {
                let plan = self.plan(&view, trigger, &CHARGE);
                view.make(plan);
            }
        }
        let teller = |takes_part: bool| takes_part.then_some(Teller::Waits);
        let asker = |takes_part: bool| takes_part.then_some(Asker::Waits);
        vec![
            World {
                view,
                senders: [Sender::Idle, Sender::Idle],
                tellers: [teller(self.payments > 0), teller(self.payments > 1), teller(self.expiries > 0)],
                askers: [asker(self.triggers), asker(self.triggers || self.second == Second::Made)],
                looker: Looker::Idle,
                deliveries: self.deliveries,
                looks: self.looks,
                deaths: self.deaths,
                refusals: self.refusals,
                losses: self.losses,
                reached: Places::default(),
                may_leave: [None; 2],
                told: Counted::default(),
                broken: Broken::default(),
            }
            .in_order(),
        ]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        let (view, now) = (&world.view, world.now());
        if view.now < self.last {
            actions.push(Act::Tick);
        }
        for (n, sender) in world.senders.iter().enumerate() {
            match sender {
                // A sender that finds nothing to do changes nothing; the second is as good as the first.
                Sender::Idle if world.deliveries > 0 && (n == 0 || world.senders[0] != Sender::Idle) => {
                    let due = view
                        .all()
                        .filter(|(_, offer)| !matches!(next(&offer.progress(), now), Next::Leave | Next::Wait { .. }));
                    actions.extend(due.map(|(place, _)| Act::Take(n, place)));
                }
                Sender::Idle => {}
                Sender::Seen { .. } => actions.push(Act::Decide(n)),
                Sender::Claimed { offer, .. } if offer.deadline.is_some_and(|deadline| deadline <= now.millis()) => {
                    actions.push(Act::GiveUp(n));
                }
                Sender::Claimed { .. } => {
                    actions.push(Act::Call(n, Answer::Sent));
                    actions.extend((world.refusals > 0).then_some(Act::Call(n, Answer::Refused)));
                    actions.extend((world.losses > 0).then_some(Act::Call(n, Answer::Lost)));
                }
                Sender::Made { .. } => actions.push(Act::Settle(n)),
            }
            if world.deaths > 0 && matches!(sender, Sender::Claimed { .. } | Sender::Made { .. }) {
                actions.push(Act::SenderDies(n));
            }
        }
        for (n, teller) in world.tellers.iter().enumerate() {
            match teller {
                Some(Teller::Waits) if n == 2 && view.transaction.is_none() => {}
                Some(Teller::Waits | Teller::Early(..)) => actions.push(Act::Read(n)),
                Some(Teller::Read { .. }) => actions.push(Act::Write(n)),
                Some(Teller::Told) => {
                    actions.push(Act::ReadAgain(n));
                    actions.extend((world.deaths > 0).then_some(Act::TellerDies(n)));
                }
                Some(Teller::Ends(_)) => actions.push(Act::End(n)),
                Some(Teller::Answered) | None => {}
            }
        }
        let overdue = |offer: &OfferRow| offer.deadline.is_some_and(|deadline| deadline <= now.millis());
        actions.extend(view.all().filter(|(_, offer)| overdue(offer)).map(|(place, _)| Act::Recall(place)));
        match world.looker {
            Looker::Idle if world.looks > 0 && view.charges.is_overdue(now) => actions.push(Act::Look),
            Looker::Idle => {}
            Looker::Seen { .. } => actions.push(Act::LookEnds),
        }
        for (n, asker) in world.askers.iter().enumerate() {
            match asker {
                Some(Asker::Waits) => actions.push(Act::Ask(n)),
                Some(Asker::Read(_)) => actions.push(Act::Make(n)),
                Some(Asker::Done) | None => {}
            }
        }
    }

    fn next_state(&self, before: &World, act: Act) -> Option<World> {
        let mut world = before.clone();
        match act {
            Act::Tick => world.view.now += 1,
            Act::Take(n, place) => {
                world.deliveries -= 1;
                world.senders[n] = world.read(place);
            }
            Act::Decide(n) => world.decide(self, n),
            Act::Call(n, answer) => {
                world.refusals -= u8::from(answer == Answer::Refused);
                world.losses -= u8::from(answer == Answer::Lost);
                world.call(self, n, answer);
            }
            Act::GiveUp(n) => {
                let Sender::Claimed { place, offer } = world.senders[n].clone() else { return None };
                world.senders[n] = Sender::Made { place, offer, answer: Answer::Refused };
            }
            Act::Settle(n) => world.settle(self, n),
            Act::SenderDies(n) => {
                world.deaths -= 1;
                world.senders[n] = Sender::Idle;
            }
            Act::Read(n) => world.teller_reads(self, n),
            Act::Write(n) => world.teller_writes(n),
            Act::ReadAgain(n) => {
                let counted = world.count(n);
                world.tellers[n] = Some(world.after(n, counted));
            }
            Act::End(n) => world.teller_ends(self, n),
            // Nobody was answered; the gate is closed, and recovery ends what is left.
            Act::TellerDies(n) => {
                world.deaths -= 1;
                world.tellers[n] = None;
            }
            Act::Recall(place) => world.recall(self, place),
            Act::Look => {
                world.looks -= 1;
                world.look();
            }
            Act::LookEnds => world.look_ends(self),
            Act::Ask(n) => world.askers[n] = Some(Asker::Read(Box::new(world.view.clone()))),
            Act::Make(n) => world.make(self, n),
        }
        Some(world.in_order())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(AFTER_ANSWER, |_, world: &World| !world.broken.sent_after_answer),
            Property::always(TWICE, |_, world: &World| !world.broken.sent_twice),
            Property::always(GATE, |_, world: &World| !world.broken.sent_through_the_gate),
            Property::always(REASON, |_, world: &World| !world.broken.ended_without_reason),
            Property::always("what reached the person does not end as unsent", |_, world: &World| {
                let reached = |(place, _): &(usize, &Row<OfferRow>)| world.reached.has(*place);
                world.view.all().filter(reached).all(|(_, offer)| match (offer.status, offer.delivery) {
                    (Status::Sent, _) => true,
                    (Status::Pending, Some(Delivery::Queued)) => offer.doubt.is_some(),
                    (status, _) => status == Status::Pending,
                })
            }),
            Property::always("a cancel tells the truth", |_, world: &World| {
                let ends_as = |places: Places, status: Status| {
                    world.view.all().all(|(place, offer)| !places.has(place) || offer.status == status)
                };
                ends_as(world.told.canceled, Status::Canceled) && ends_as(world.told.sent, Status::Sent)
            }),
            Property::always("what an expiry told as passed on is another charge's", |_, world: &World| {
                let is_first = |offer: &OfferRow| offer.transaction_id.as_deref() == Some(CHARGE.transaction_id);
                world.view.all().all(|(place, offer)| !world.told.passed_on.has(place) || !is_first(offer))
            }),
            Property::always(LEFT, |_, world: &World| !world.is_left_without()),
            Property::always(ONE_PAYMENT, |_, world: &World| {
                !world.broken.moved_backwards && world.view.charges.pay_epoch == u64::from(world.is_paid())
            }),
            Property::always(
                "nothing is queued after a payment was answered, unless it was in flight",
                |_, world: &World| {
                    let left = |(place, offer): (usize, &Row<OfferRow>)| {
                        let unsaid = world.may_leave[0].is_some_and(|said| !said.has(place));
                        unsaid && offer.pay_epoch == 0 && offer.is_queued()
                    };
                    !world.view.all().any(left)
                },
            ),
        ];
        properties.extend(reachable().into_iter().map(|(name, is_it)| Property::sometimes(name, is_it)));
        properties
    }
}

const AFTER_ANSWER: &str = "nothing leaves after an answer that did not count it";
const TWICE: &str = "what may have been sent is not sent again, or only by policy and not at once";
const GATE: &str = "an attempt is begun only while something is unpaid, and its own charge is";
const REASON: &str = "what ends as paid or expired is";
const LEFT: &str = "an unpaid newest charge whose person has a pending downsell is not left without an offer";
const ONE_PAYMENT: &str = "a payment counts once, and a charge moves forward";

type Condition = fn(&Small, &World) -> bool;

/// What must come to pass in one world or another: a world in which nothing happens keeps every promise.
fn reachable() -> Vec<(&'static str, Condition)> {
    fn any(world: &World, is_it: impl Fn(&OfferRow) -> bool) -> bool {
        world.view.all().any(|(_, offer)| is_it(offer))
    }
    vec![
        ("sent", |_, world| any(world, |offer| offer.status == Status::Sent)),
        ("canceled by a payment", |_, world| world.told.canceled != Places::default()),
        ("told as in flight", |_, world| world.told.in_flight != Places::default()),
        ("told as sent", |_, world| world.told.sent != Places::default()),
        ("skipped", |_, world| any(world, |offer| offer.cancel_reason == Some(Why::NoUnpaidPix))),
        ("canceled by an expiry", |_, world| any(world, |offer| offer.cancel_reason == Some(Why::Expired))),
        ("unknown", |_, world| any(world, |offer| offer.delivery == Some(Delivery::Unknown))),
        ("a second attempt", |_, world| any(world, |offer| offer.attempts > 1 && offer.status == Status::Sent)),
        ("canceled in doubt", |_, world| {
            any(world, |offer| offer.delivery == Some(Delivery::Unknown) && offer.cancel_reason == Some(Why::Paid))
        }),
        ("passed on", |_, world| any(world, |offer| !offer.passed_from.is_empty())),
        ("passed on and sent", |_, world| {
            any(world, |offer| !offer.passed_from.is_empty() && offer.status == Status::Sent)
        }),
        ("told as passed on", |_, world| world.told.passed_on != Places::default()),
        ("canceled after it was passed on", |_, world| {
            any(world, |offer| !offer.passed_from.is_empty() && offer.cancel_reason == Some(Why::Paid))
        }),
        ("a second offer", |_, world| world.view.offers[3].is_some()),
        ("joined", |_, world| any(world, |offer| offer.trigger == Trigger::Pix && offer.event_id.contains(":start:"))),
    ]
}

/// Everything that must hold always; and of what is only reachable, what this world is there for.
fn holds(small: Small, reached: &[&'static str]) {
    let started = std::time::Instant::now();
    let checked = small.checker().spawn_bfs().join();
    println!("{} states in {:?}", checked.unique_state_count(), started.elapsed());
    for property in checked.model().properties() {
        if property.expectation == Expectation::Always {
            checked.assert_no_discovery(property.name);
        }
    }
    for name in reached {
        checked.assert_any_discovery(name);
    }
}

fn is_caught(small: Small, broken: &'static str) {
    let found = HasDiscoveries::AnyOf([broken].into());
    let checked = small.checker().finish_when(found).spawn_bfs().join();
    let path = checked.discovery(broken).expect("a flaw is found");
    println!("{broken}: {:?}", path.into_actions());
}

#[test]
fn nothing_leaves_after_a_payment_was_answered_however_often_it_is_told() {
    let small = Small { payments: 2, deliveries: 3, refusals: 1, last: 1, ..Small::new() };
    holds(small, &["sent", "canceled by a payment", "told as in flight", "told as sent", "a second attempt"]);
}

#[test]
fn nor_when_the_charge_expires_at_the_same_time() {
    let alone = Small { expiries: 1, second: Second::None, ..Small::new() };
    holds(alone, &["sent", "told as in flight", "canceled by an expiry"]);
}

#[test]
fn nor_when_the_charge_expires_and_another_is_open() {
    let small = Small { expiries: 1, ..Small::new() };
    holds(small, &["passed on and sent", "told as passed on", "told as in flight", "canceled after it was passed on"]);
}

#[test]
fn nor_when_another_charge_is_made_while_it_expires() {
    let small = Small { expiries: 1, payments: 1, deliveries: 1, ..Small::with_second_charge() };
    let reached = ["passed on and sent", "told as passed on", "canceled after it was passed on", "a second offer"];
    holds(small, &reached);
}

#[test]
fn nor_when_another_charge_is_made_while_it_expires_by_itself() {
    let small = Small { payments: 1, looks: 1, ..Small::with_second_charge() };
    holds(small, &["passed on and sent", "canceled after it was passed on", "a second offer"]);
}

#[test]
fn nor_when_it_expires_by_itself() {
    let small = Small { payments: 0, expiries: 1, looks: 1, last: CHARGES_END, ..Small::new() };
    holds(small, &["sent", "skipped", "canceled by an expiry"]);
}

#[test]
fn nor_when_whoever_has_begun_dies() {
    let small = Small { payments: 2, looks: 1, deaths: 1, losses: 1, ..Small::new() };
    holds(small, &["unknown", "told as in flight", "canceled by a payment"]);
}

#[test]
fn nor_when_what_may_have_been_sent_is_sent_again() {
    let small = Small { policy: UnknownPolicy::Resend, deaths: 1, losses: 1, last: 2, ..Small::new() };
    holds(small, &["unknown", "a second attempt", "canceled in doubt"]);
}

#[test]
fn nor_when_the_offers_are_made_meanwhile() {
    holds(Small { payments: 2, ..Small::with_triggers() }, &["sent", "canceled by a payment", "joined"]);
}

#[test]
fn a_claim_that_does_not_check_the_offer_is_caught() {
    is_caught(Small { flaw: Some(Flaw::ClaimIgnoresOffer), ..Small::new() }, AFTER_ANSWER);
}

#[test]
fn a_claim_that_does_not_check_the_charges_is_caught() {
    is_caught(Small { flaw: Some(Flaw::ClaimIgnoresCharges), ..Small::new() }, GATE);
}

/// The offer of a /start gains a charge while a sender waits for its token: on the charges of before, that charge is not open.
#[test]
fn a_sender_that_decides_again_on_old_charges_is_caught() {
    let flaw = Some(Flaw::LoserKeepsCharges);
    is_caught(Small { payments: 0, second: Second::None, flaw, ..Small::with_triggers() }, REASON);
}

#[test]
fn an_expiry_that_only_ends_offers_is_caught() {
    let small = Small { expiries: 1, flaw: Some(Flaw::ExpiryEndsOffers), ..Small::with_second_charge() };
    is_caught(small, LEFT);
}

/// The second charge still saw the first one open, and is made between the two requests of recovery.
#[test]
fn a_recovery_that_does_not_check_the_charges_is_caught() {
    let small = Small { looks: 1, flaw: Some(Flaw::LookIgnoresCharges), ..Small::with_second_charge() };
    is_caught(small, LEFT);
}

/// The second charge finds the offer of the first pending, and it ends before the second is written.
#[test]
fn a_charge_that_does_not_check_the_slot_is_caught() {
    let small = Small { looks: 1, flaw: Some(Flaw::TriggerIgnoresSlot), ..Small::with_second_charge() };
    is_caught(small, LEFT);
}

/// An offer is made and claimed between the two reads of the payment's second telling, and the first is written there too.
#[test]
fn a_payment_that_counts_a_contact_of_before_it_is_caught() {
    is_caught(
        Small { payments: 2, flaw: Some(Flaw::ContactBeforeTransaction), ..Small::with_triggers() },
        AFTER_ANSWER,
    );
}

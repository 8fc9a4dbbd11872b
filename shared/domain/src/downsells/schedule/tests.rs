use serde_json::{Value, json};

use super::*;
use crate::delivery::State;
use crate::downsells::charges::{Charge, ChargeChange, OpenCharge, TransactionRow, created, paid};
use crate::downsells::{CancelReason, MOST_DOWNSELLS};
use crate::keys::Wake;
use crate::work::LOOK_AHEAD_MS;

pub(in crate::downsells) const KEEP_DAYS: i64 = 90;
const MINUTE_MS: i64 = 60_000;

pub(in crate::downsells) fn now() -> Timestamp {
    Timestamp::from_seconds(1_000_000)
}

pub(in crate::downsells) fn minutes(count: i64) -> Timestamp {
    now().plus_ms(count * MINUTE_MS)
}

/// Returns a downsell that is due five minutes after either trigger, unless `more` changes it.
pub(in crate::downsells) fn downsell(id: u64, more: &Value) -> DownsellRow {
    let content = json!({"text": "Ainda está aí?"});
    let mut body = json!({"name": "Oferta", "content": content, "delay_minutes": 5, "after_pix": true});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    DownsellRow { id, ..DownsellRow::read("loja", body.as_object().expect("an object"), now()).expect("a downsell") }
}

fn plain() -> DownsellRow {
    downsell(12, &json!({}))
}

pub(in crate::downsells) fn start(source: &str) -> TriggerEvent<'_> {
    TriggerEvent {
        bot: "loja",
        telegram_id: 7,
        trigger: Trigger::Start,
        source,
        at: now(),
        correlation_id: "c-1",
        meta: None,
        keep_days: KEEP_DAYS,
    }
}

pub(in crate::downsells) fn pix(source: &str) -> TriggerEvent<'_> {
    TriggerEvent { trigger: Trigger::Pix, ..start(source) }
}

/// Returns charges that are open for an hour.
pub(in crate::downsells) fn open(transactions: &[&str]) -> ChargesRow {
    transactions.iter().fold(ChargesRow::none("loja", 7, now()), |charges, transaction_id| {
        let of = Charge { bot: "loja", telegram_id: 7, transaction_id };
        let open = OpenCharge { made_at: now().millis(), until: minutes(60).millis() };
        match created(&charges, &TransactionRow::unknown(transaction_id, now()), &of, open, now()) {
            ChargeChange::Both { charges, .. } => *charges,
            other => panic!("{other:?}"),
        }
    })
}

pub(in crate::downsells) fn after_payment(charges: &ChargesRow, transaction_id: &str) -> ChargesRow {
    let unknown = TransactionRow::unknown(transaction_id, now());
    match paid(charges, &unknown, &Charge { bot: "loja", telegram_id: 7, transaction_id }, now()) {
        ChargeChange::Both { charges, .. } => *charges,
        other => panic!("{other:?}"),
    }
}

/// Returns the one offer that a trigger makes of the plain downsell if the contact has only its
/// charges.
pub(in crate::downsells) fn offer(asked: &TriggerEvent<'_>, charges: ChargesRow) -> OfferRow {
    let contact = Contact { charges: Some(charges), ..Contact::default() };
    let plan = plan(asked, &[plain()], &contact, asked.at);
    plan.scheduled().next().expect("it is scheduled").clone()
}

/// Applies a plan as the platform does.
fn make(contact: &mut Contact, plan: Plan) {
    for step in plan.steps {
        match step {
            PlanStep::Schedule { offer, slot, stale, .. } => {
                contact.slots.insert(slot.downsell_id, slot);
                contact.offers.extend(stale.map(|stale| (stale.1.id.clone(), stale.1)));
                contact.offers.insert(offer.id.clone(), *offer);
            }
            PlanStep::Refuse { event, .. } => drop(contact.refused.insert(event.id.clone(), *event)),
            PlanStep::Join { after, event, .. } => {
                contact.offers.insert(after.id.clone(), *after);
                contact.refused.insert(event.id.clone(), *event);
            }
        }
    }
}

fn asked(contact: &mut Contact, asked: &TriggerEvent<'_>, downsells: &[DownsellRow], now: Timestamp) -> Plan {
    let made = plan(asked, downsells, contact, now);
    make(contact, made.clone());
    made
}

/// Returns a contact with one open charge and a pending offer of a /start.
fn with_start() -> Contact {
    let mut contact = Contact { charges: Some(open(&["t1"])), ..Contact::default() };
    asked(&mut contact, &start("5001"), &[plain()], now());
    contact
}

fn only(contact: &Contact) -> OfferRow {
    contact.offers.values().next().expect("an offer").clone()
}

/// Ends the pending offer, as sent or as unsent.
fn ended(mut contact: Contact, sent_at: Option<Timestamp>) -> Contact {
    for slot in contact.slots.values_mut() {
        let (version, sent) = (slot.version + 1, slot.sent + u32::from(sent_at.is_some()));
        *slot = SlotRow { pending: false, ended_at: Some(now()), sent_at, sent, version, ..slot.clone() };
    }
    let status = if sent_at.is_some() { OfferStatus::Sent } else { OfferStatus::Skipped };
    for offer in contact.offers.values_mut() {
        let state = if status == OfferStatus::Sent { State::Sent } else { State::Failed };
        let delivery = Delivery { state, ..offer.delivery.clone() };
        *offer = OfferRow { status, delivery, ..offer.clone() };
    }
    contact
}

#[test]
fn an_event_id_does_not_depend_on_the_clock() {
    let offer = only(&with_start());
    assert_eq!(offer.event_id, "loja:7:12:start:5001");
    assert_eq!(offer.id, OfferId::of("loja:7:12:start:5001"));
    assert_eq!(start("5001").events(&[plain()]), [offer.id], "the ids are known before the plan is made");
    assert_eq!(start("5001").events(&[]), []);
    assert_eq!(self::offer(&pix("tx-9"), open(&["tx-9"])).event_id, "loja:7:12:pix:tx-9");
}

#[test]
fn a_repeated_event_is_a_duplicate_at_any_time_and_after_any_outcome() {
    let reported_later =
        |contact: &Contact| plan(&TriggerEvent { at: minutes(9), ..start("5001") }, &[plain()], contact, minutes(99));
    let duplicate = Plan { steps: Vec::new(), duplicates: 1 };
    assert_eq!(reported_later(&with_start()), duplicate);
    assert_eq!(reported_later(&ended(with_start(), Some(now()))), duplicate);
    let mut refused = with_start();
    asked(&mut refused, &start("5002"), &[plain()], now());
    assert_eq!(plan(&start("5002"), &[plain()], &ended(refused, None), minutes(99)), duplicate);
}

#[test]
fn a_second_start_is_recorded_as_refused_by_the_offer_of_the_first() {
    let contact = with_start();
    let plan = plan(&start("5002"), &[plain()], &contact, now());
    let [PlanStep::Refuse { event, pending: None }] = plan.steps.as_slice() else { panic!("{plan:?}") };
    assert_eq!((event.refused, event.event_id.as_str()), (Refused::AlreadyPending, "loja:7:12:start:5002"));
    assert_eq!(event.by, Some(only(&contact).id));
    assert_eq!(event.expires_at, now().plus_days(REFUSED_DAYS).seconds());
    assert_eq!((plan.refused(Refused::AlreadyPending), plan.scheduled().count()), (1, 0));
}

#[test]
fn a_charge_is_refused_only_while_the_offer_in_its_slot_is_pending() {
    let mut contact = Contact { charges: Some(open(&["t1", "t2"])), ..Contact::default() };
    asked(&mut contact, &pix("t1"), &[plain()], now());
    let plan = plan(&pix("t2"), &[plain()], &contact, now());
    let [PlanStep::Refuse { event, pending: Some(slot) }] = plan.steps.as_slice() else { panic!("{plan:?}") };
    assert_eq!((event.refused, Some(slot)), (Refused::AlreadyPending, contact.slots.get(&12)));
}

#[test]
fn after_the_last_offer_has_ended_a_trigger_schedules_again() {
    for sent_at in [None, Some(now())] {
        let contact = ended(with_start(), sent_at);
        let plan = plan(&start("5002"), &[plain()], &contact, now());
        let [PlanStep::Schedule { slot, slot_before, stale, .. }] = plan.steps.as_slice() else { panic!("{plan:?}") };
        assert_eq!(slot_before.as_ref(), contact.slots.get(&12));
        assert_eq!((slot.pending, slot.version, slot.sent_at), (true, 3, sent_at), "the slot keeps its last send time");
        assert_eq!((slot.ended_at, stale), (None, &None));
    }
}

#[test]
fn a_once_ever_downsell_is_scheduled_until_it_was_sent() {
    let ever = [downsell(12, &json!({"rearm": "once_ever"}))];
    let unsent = plan(&start("5002"), &ever, &ended(with_start(), None), now());
    assert_eq!(unsent.scheduled().count(), 1, "an offer that was not sent does not count");
    let sent = plan(&start("5002"), &ever, &ended(with_start(), Some(now())), now().plus_days(3_000));
    assert_eq!(sent.refused(Refused::NotRearmed), 1);
}

#[test]
fn a_cooldown_counts_from_the_send_time_to_the_millisecond() {
    let cool = [downsell(12, &json!({"rearm": "cooldown_days", "cooldown_days": 7}))];
    let contact = ended(with_start(), Some(minutes(30)));
    let over = minutes(30).plus_days(7);
    assert_eq!(plan(&start("5002"), &cool, &contact, over.plus_ms(-1)).refused(Refused::NotRearmed), 1);
    assert_eq!(plan(&start("5002"), &cool, &contact, over).scheduled().count(), 1);
    let unsent = plan(&start("5002"), &cool, &ended(with_start(), None), now());
    assert_eq!(unsent.scheduled().count(), 1, "an offer that was not sent has no cooldown");
}

#[test]
fn sent_offers_are_counted_even_if_their_slot_is_taken_again() {
    let mut contact = ended(with_start(), Some(minutes(30)));
    assert_eq!(contact.sent_count_beyond_current_slots(0), 0, "the current slot still has the sent offer");
    asked(&mut contact, &start("5002"), &[plain()], now());
    assert_eq!(contact.sent_count_beyond_current_slots(0), 1);
    let mut contact = ended(contact, Some(minutes(60)));
    assert_eq!(contact.sent_count_beyond_current_slots(0), 1);
    contact.charges = Some(after_payment(&open(&["t1", "t2"]), "t1"));
    let unsent = {
        let mut contact = ended(with_start(), Some(minutes(30)));
        asked(&mut contact, &start("5002"), &[plain()], now());
        let mut contact = ended(contact, None);
        contact.slots.values_mut().for_each(|slot| slot.sent = 1);
        contact
    };
    assert_eq!(unsent.sent_count_beyond_current_slots(0), 1, "only the offer before the last was sent");
    asked(&mut contact, &start("5003"), &[plain()], now());
    assert_eq!([0, 1].map(|epoch| contact.sent_count_beyond_current_slots(epoch)), [0, 0], "a new payment epoch");
}

#[test]
fn an_offer_from_before_a_payment_ends_and_is_replaced_in_the_same_plan() {
    let mut contact = with_start();
    contact.charges = Some(after_payment(&open(&["t1", "t2"]), "t1"));
    let plan = plan(&start("5002"), &[plain()], &contact, now());
    let [PlanStep::Schedule { offer, slot, slot_before, stale: Some(stale) }] = plan.steps.as_slice() else {
        panic!("{plan:?}");
    };
    assert_eq!((offer.pay_epoch, &slot.offer), (1, &offer.id), "the new offer has the epoch of the payment");
    assert_eq!((slot.version, slot_before.as_ref()), (2, contact.slots.get(&12)));
    let (before, after) = &**stale;
    assert_eq!(
        (before, after.status, after.cancel_reason),
        (&only(&contact), OfferStatus::Canceled, Some(CancelReason::Paid))
    );
    assert_eq!(plan.ended().collect::<Vec<_>>(), [after]);
}

#[test]
fn an_offer_of_an_expired_charge_is_replaced_too() {
    let mut contact = Contact { charges: Some(open(&["t1"])), ..Contact::default() };
    asked(&mut contact, &pix("t1"), &[plain()], now());
    let over = plan(&start("5002"), &[plain()], &contact, minutes(60));
    let [PlanStep::Schedule { stale: Some(stale), .. }] = over.steps.as_slice() else { panic!("{over:?}") };
    assert_eq!((stale.1.status, stale.1.cancel_reason), (OfferStatus::Canceled, Some(CancelReason::Expired)));
    let open_still = plan(&start("5002"), &[plain()], &contact, minutes(60).plus_ms(-1));
    assert_eq!(open_still.refused(Refused::AlreadyPending), 1);
}

#[test]
fn an_offer_that_may_have_been_sent_keeps_its_slot_even_after_a_payment() {
    let paid = after_payment(&open(&["t1", "t2"]), "t1");
    let change = |state: State, doubt: Option<u32>| {
        let mut contact = Contact { charges: Some(paid.clone()), ..with_start() };
        for offer in contact.offers.values_mut() {
            let doubts = doubt.into_iter().collect();
            let delivery = Delivery { state, doubts, attempt: 1, ..offer.delivery.clone() };
            *offer = OfferRow { delivery, ..offer.clone() };
        }
        contact
    };
    for contact in [change(State::Unknown, None), change(State::Sending, None), change(State::Queued, Some(1))] {
        for asked in [start("5002"), pix("t2")] {
            let plan = plan(&asked, &[plain()], &contact, now());
            assert_eq!(plan.refused(Refused::AlreadyPending), 1, "{:?}", only(&contact).delivery.state);
        }
    }
}

#[test]
fn a_charge_joins_the_pending_offer_of_a_start_and_the_earlier_time_is_kept() {
    let contact = with_start();
    let later = TriggerEvent { at: minutes(3), ..pix("t1") };
    let plan = plan(&later, &[plain()], &contact, minutes(3));
    let [PlanStep::Join { before, after, event }] = plan.steps.as_slice() else { panic!("{plan:?}") };
    assert_eq!(**before, only(&contact));
    assert_eq!((after.trigger, after.transaction_id.as_deref()), (Trigger::Pix, Some("t1")));
    assert_eq!((after.scheduled_at, &after.event_id), (before.scheduled_at, &before.event_id));
    assert_eq!((event.refused, event.by.as_ref()), (Refused::Upgraded, Some(&before.id)));
    assert_eq!(event.event_id, "loja:7:12:pix:t1");
    assert_eq!((plan.refused(Refused::Upgraded), plan.refused(Refused::AlreadyPending)), (1, 0));
}

#[test]
fn a_charge_joins_an_offer_once_and_a_start_joins_no_offer() {
    let mut contact = with_start();
    asked(&mut contact, &pix("t1"), &[plain()], now());
    contact.charges = Some(open(&["t1", "t2"]));
    assert_eq!(plan(&pix("t1"), &[plain()], &contact, now()).duplicates, 1);
    assert_eq!(plan(&pix("t2"), &[plain()], &contact, now()).refused(Refused::AlreadyPending), 1);
    assert_eq!(plan(&start("5002"), &[plain()], &contact, now()).refused(Refused::AlreadyPending), 1);
}

#[test]
fn downsells_that_are_inactive_or_not_for_the_trigger_are_skipped() {
    let downsells = [
        downsell(1, &json!({"active": false})),
        downsell(2, &json!({"after_start": false})),
        downsell(3, &json!({"after_pix": false})),
        downsell(4, &json!({})),
    ];
    let ids = |asked: &TriggerEvent<'_>| -> Vec<u64> {
        let plan = plan(asked, &downsells, &Contact::default(), now());
        assert_eq!(plan.duplicates, 0);
        plan.scheduled().map(|offer| offer.downsell_id).collect()
    };
    assert_eq!((ids(&start("5001")), ids(&pix("t1"))), (vec![3, 4], vec![2, 4]));
}

#[test]
fn delays_count_from_the_time_of_the_trigger() {
    let reported_at = |late: Timestamp| {
        let plan = plan(&start("5001"), &[plain()], &Contact::default(), late);
        plan.scheduled().next().expect("scheduled").clone()
    };
    for late in [now(), minutes(2), minutes(50)] {
        let offer = reported_at(late);
        assert_eq!((offer.scheduled_at, offer.not_after), (minutes(5), minutes(5 + 1_440)));
    }
    let overdue = reported_at(minutes(50)).work.emit.expect("it is emitted");
    assert_eq!(overdue.not_before, None, "an overdue offer is emitted without a delay");
}

#[test]
fn an_offer_due_soon_is_emitted_and_a_later_one_is_indexed() {
    let far = downsell(12, &json!({"delay_minutes": 60}));
    let at = |reported_at: Timestamp| {
        let plan = plan(&start("5001"), std::slice::from_ref(&far), &Contact::default(), reported_at);
        plan.scheduled().next().expect("scheduled").clone()
    };
    let reach = minutes(60).plus_ms(-LOOK_AHEAD_MS);
    let (emitted, indexed) = (at(reach), at(reach.plus_ms(-1)));
    let emit = emitted.work.emit.as_ref().expect("it is emitted");
    assert_eq!(emit.not_before, Some(minutes(60).millis()));
    let body = json!({"kind": "offer", "v": 1, "contact": emitted.contact(), "id": emitted.id});
    assert_eq!(serde_json::from_str::<Value>(&emit.body).ok(), Some(body));
    let shard = keys::wake_shard(emitted.id.as_str());
    assert_eq!((emitted.work.wake, emitted.enqueued), (Some(keys::wake(Wake::Check, shard)), true));
    assert_eq!((indexed.work.emit, indexed.work.later, indexed.enqueued), (None, None, false));
    assert_eq!(indexed.work.wake, Some(keys::wake(Wake::Due, shard)));
    assert_eq!(indexed.work.wake_at, Some(keys::at_time(minutes(60), indexed.id.as_str())));
}

#[test]
fn a_new_offer_is_queued_and_records_its_trigger() {
    let asked = TriggerEvent { meta: Some(r#"{"payload":"x"}"#), ..pix("t1") };
    let offer = offer(&asked, after_payment(&open(&["t0", "t1"]), "t0"));
    assert_eq!((offer.status, offer.delivery.state, offer.delivery.attempt), (OfferStatus::Pending, State::Queued, 0));
    assert_eq!((offer.pay_epoch, offer.transaction_id.as_deref()), (1, Some("t1")));
    assert_eq!((offer.correlation_id.as_str(), offer.meta.as_deref()), ("c-1", Some(r#"{"payload":"x"}"#)));
    assert_eq!((offer.version, offer.expires_at), (1, None), "a pending offer does not expire from the table");
    assert_eq!(self::offer(&start("5001"), open(&["t1"])).transaction_id, None);
}

/// Counts the writes of the platform: those of each step, and those of the charges and the
/// transaction.
fn writes(plan: &Plan) -> usize {
    let of = |step: &PlanStep| match step {
        PlanStep::Schedule { stale, .. } => 2 + usize::from(stale.is_some()),
        PlanStep::Refuse { pending, .. } => 1 + usize::from(pending.is_some()),
        PlanStep::Join { .. } => 2,
    };
    plan.steps.iter().map(of).sum::<usize>() + 2
}

#[test]
fn the_maximum_number_of_downsells_fits_into_one_transaction() {
    let downsells: Vec<_> = (1..=u64::from(MOST_DOWNSELLS)).map(|id| downsell(id, &json!({}))).collect();
    let mut contact = Contact { charges: Some(open(&["t1"])), ..Contact::default() };
    let first = asked(&mut contact, &start("5001"), &downsells, now());
    let join = plan(&pix("t1"), &downsells, &contact, now());
    let refuse = plan(&start("5002"), &downsells, &contact, now());
    contact.charges = Some(after_payment(&open(&["t1", "t2"]), "t1"));
    let replace = plan(&pix("t2"), &downsells, &contact, now());
    assert_eq!([&first, &join, &refuse, &replace].map(writes), [62, 62, 32, 92]);
    assert!(writes(&replace) <= 100, "more writes than one transaction allows");
}

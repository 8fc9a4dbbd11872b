use super::*;

fn now() -> Timestamp {
    Timestamp::from_seconds(1_000_000)
}

fn of(transaction_id: &str) -> Charge<'_> {
    Charge { bot: "loja", telegram_id: 7, transaction_id }
}

fn none() -> ChargesRow {
    ChargesRow::none("loja", 7, now())
}

fn until(until: Timestamp) -> OpenCharge {
    OpenCharge { made_at: now().millis(), until: until.millis() }
}

fn unknown() -> TransactionRow {
    TransactionRow::unknown("t1", now())
}

fn both(change: ChargeChange) -> (ChargesRow, TransactionRow) {
    match change {
        ChargeChange::Both { charges, transaction } => (*charges, *transaction),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_charge_is_open_until_its_end_time() {
    let end = now().plus_ms(1_000);
    let (charges, transaction) = both(created(&none(), &unknown(), &of("t1"), until(end), now()));
    assert!(charges.is_open("t1", now()) && charges.any_open(now()));
    assert!(!charges.is_open("t1", end), "the charge has expired at its end");
    assert_eq!(
        (transaction.status_at(now()), transaction.status_at(end)),
        (ChargeStatus::Unpaid, ChargeStatus::Expired)
    );
    assert_eq!(charges.work.wake_at, Some(keys::at_time(end, ContactId::of("loja", 7).as_str())));
}

#[test]
fn the_status_of_a_charge_only_moves_forward() {
    let until = until(now().plus_days(1));
    let (charges, unpaid) = both(created(&none(), &unknown(), &of("t1"), until, now()));
    let (charges, expired_row) = both(expired(&charges, &unpaid, now()));
    assert_eq!(expired(&charges, &expired_row, now()), ChargeChange::Known(ChargeStatus::Expired));
    assert_eq!(created(&charges, &expired_row, &of("t1"), until, now()), ChargeChange::Known(ChargeStatus::Expired));
    let (charges, paid_row) = both(paid(&charges, &expired_row, &of("t1"), now()));
    assert_eq!((charges.pay_epoch, paid_row.pay_epoch), (1, Some(1)));
    assert_eq!(paid(&charges, &paid_row, &of("t1"), now()), ChargeChange::Known(ChargeStatus::Paid));
    assert_eq!(expired(&charges, &paid_row, now()), ChargeChange::Known(ChargeStatus::Paid));
    assert_eq!(created(&charges, &paid_row, &of("t1"), until, now()), ChargeChange::Known(ChargeStatus::Paid));
}

#[test]
fn recovery_checks_a_contact_soon_after_a_payment_or_an_expiry() {
    let (charges, unpaid) = both(created(&none(), &unknown(), &of("t1"), until(now().plus_days(1)), now()));
    let at = now().plus_ms(LOOK_AFTER_MS);
    for change in [expired(&charges, &unpaid, now()), paid(&charges, &unpaid, &of("t1"), now())] {
        let (charges, _) = both(change);
        assert_eq!(charges.look_at, Some(at.millis()));
        assert_eq!(charges.work.wake_at, Some(keys::at_time(at, ContactId::of("loja", 7).as_str())));
    }
}

#[test]
fn a_charge_reported_expired_before_created_stays_expired_and_gets_its_owner() {
    let tombstone = unplaced(&unknown(), ChargeStatus::Expired, now()).expect("new");
    assert_eq!(tombstone.charge(), None);
    let late = created(&none(), &tombstone, &of("t1"), until(now().plus_days(1)), now());
    let ChargeChange::Transaction(owned) = late else { panic!("{late:?}") };
    assert_eq!((owned.status, owned.charge(), owned.version), (ChargeStatus::Expired, Some(of("t1")), 2));
    let again = created(&none(), &owned, &of("t1"), until(now().plus_days(1)), now());
    assert_eq!(again, ChargeChange::Known(ChargeStatus::Expired));
    let others = Charge { telegram_id: 8, ..of("t1") };
    assert_eq!(created(&none(), &owned, &others, until(now().plus_days(1)), now()), ChargeChange::OtherContact);
}

#[test]
fn a_charge_reported_paid_before_created_is_paid() {
    let (charges, row) = both(paid(&none(), &unknown(), &of("t1"), now()));
    assert!(!charges.any_open(now()));
    let late = created(&charges, &row, &of("t1"), until(now().plus_days(1)), now());
    assert_eq!(late, ChargeChange::Known(ChargeStatus::Paid));
}

#[test]
fn a_charge_reported_expired_before_created_can_still_be_paid() {
    let row = unplaced(&unknown(), ChargeStatus::Expired, now()).expect("it is new");
    let late = created(&none(), &row, &of("t1"), until(now().plus_days(1)), now());
    assert!(matches!(late, ChargeChange::Transaction(row) if row.status == ChargeStatus::Expired));
    let (charges, row) = both(paid(&none(), &row, &of("t1"), now()));
    assert_eq!((charges.pay_epoch, row.charge()), (1, Some(of("t1"))));
}

#[test]
fn a_charge_that_was_already_expired_when_it_was_reported_stays_expired() {
    let ChargeChange::Transaction(row) = created(&none(), &unknown(), &of("t1"), until(now()), now()) else {
        panic!("the charge must be expired")
    };
    assert_eq!((row.status, row.charge()), (ChargeStatus::Expired, Some(of("t1"))));
    let again = created(&none(), &row, &of("t1"), until(now().plus_days(1)), now());
    assert_eq!(again, ChargeChange::Known(ChargeStatus::Expired));
}

#[test]
fn a_transaction_has_one_owner() {
    let (_, row) = both(created(&none(), &unknown(), &of("t1"), until(now().plus_days(1)), now()));
    for other in [Charge { telegram_id: 8, ..of("t1") }, Charge { bot: "outra", ..of("t1") }] {
        let charges = ChargesRow::none(other.bot, other.telegram_id, now());
        assert_eq!(paid(&charges, &row, &other, now()), ChargeChange::OtherContact);
        let made = created(&charges, &row, &other, until(now().plus_days(1)), now());
        assert_eq!(made, ChargeChange::OtherContact);
    }
}

#[test]
fn a_charge_beyond_the_limit_of_a_contact_is_refused_and_drops_no_other() {
    let mut charges = none();
    for n in 0..MOST_OPEN {
        let end = now().plus_ms(1_000 + i64::try_from(n).expect("small"));
        charges = charges.created(&format!("t{n}"), until(end), now()).expect("there is room");
    }
    let (one_more, late) = (of("one_more"), now().plus_days(1));
    let known = TransactionRow::unknown("one_more", now());
    assert_eq!(created(&charges, &known, &one_more, until(late), now()), ChargeChange::TooMany);
    // As soon as one of them can no longer be paid, there is room, and recovery looks at its
    // offers.
    let later = now().plus_ms(1_000);
    let (charges, _) = both(created(&charges, &known, &one_more, until(late), later));
    assert_eq!(charges.open.len(), MOST_OPEN);
    assert!(charges.open.contains_key("one_more") && !charges.open.contains_key("t0"));
    assert_eq!(charges.look_at, Some(later.plus_ms(LOOK_AFTER_MS).millis()));
}

#[test]
fn the_same_id_at_two_gateways_is_two_transactions() {
    let names = [("default", "1"), ("other", "1"), ("other", "other"), ("default", "other:1")];
    let shown: Vec<_> = names.iter().map(|(gateway, id)| transaction_name(gateway, id)).collect();
    assert_eq!(shown, ["1", "other 1", "other other", "other:1"]);
    for (name, (gateway, id)) in shown.iter().zip(names) {
        assert_eq!(gateway_and_id(name), (gateway, id));
    }
}

#[test]
fn the_newest_charge_is_the_open_charge_that_was_created_last() {
    let made = |made_at: i64, until: i64| OpenCharge { made_at, until: now().millis() + until };
    let charges =
        none().created("a", made(5, 90), now()).expect("room").created("b", made(9, 10), now()).expect("room");
    let charges = charges.created("c", made(7, 20), now()).expect("room");
    let newest = |at: i64| charges.newest_open(now().plus_ms(at));
    assert_eq!(newest(9), Some(("b", Timestamp::from_millis(9))));
    assert_eq!(newest(10), Some(("c", Timestamp::from_millis(7))));
    assert_eq!((newest(20), newest(90)), (Some(("a", Timestamp::from_millis(5))), None));
    assert_eq!(none().newest_open(now()), None);
}

#[test]
fn a_payment_without_a_contact_takes_effect_when_its_contact_is_reported() {
    let expired = unplaced(&unknown(), ChargeStatus::Expired, now()).expect("it is new");
    assert!(!expired.is_unplaced_payment());
    let row = unplaced(&expired, ChargeStatus::Paid, now()).expect("it moves forward");
    assert_eq!((row.status, row.charge(), row.version), (ChargeStatus::Paid, None, 2));
    assert_eq!(unplaced(&row, ChargeStatus::Paid, now()), None, "reported again");
    assert_eq!(unplaced(&row, ChargeStatus::Expired, now()), None, "a paid charge stays paid");
    assert!(row.is_unplaced_payment());
    assert_eq!(expired_again(&row), ChargeChange::Known(ChargeStatus::Paid));
    let (charges, placed) = both(paid(&none(), &row, &of("t1"), now()));
    assert_eq!((charges.pay_epoch, placed.pay_epoch, placed.charge()), (1, Some(1), Some(of("t1"))));
    assert!(!placed.is_unplaced_payment());
    assert_eq!(paid(&charges, &placed, &of("t1"), now()), ChargeChange::Known(ChargeStatus::Paid), "once");
}

fn expired_again(row: &TransactionRow) -> ChargeChange {
    expired(&none(), row, now())
}

#[test]
fn after_a_check_the_charges_are_checked_when_the_next_one_expires() {
    let (charges, _) = both(created(&none(), &unknown(), &of("t1"), until(now().plus_ms(1_000)), now()));
    let charges = charges.created("t2", until(now().plus_ms(9_000)), now()).expect("room");
    assert!(!charges.is_overdue(now().plus_ms(999)) && charges.is_overdue(now().plus_ms(1_000)), "first expiry");
    let charges = charges.paid("t3", now());
    let later = now().plus_ms(5_000);
    assert!(charges.is_overdue(later), "one charge has expired");
    let charges = charges.checked(later);
    assert_eq!(charges.work.wake_at, Some(keys::at_time(now().plus_ms(9_000), ContactId::of("loja", 7).as_str())));
    assert_eq!(charges.checked(now().plus_ms(9_000)).work.wake, None);
}

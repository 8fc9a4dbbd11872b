//! Each rule can fail: rows that hold, and one change that breaks a rule.

use serde_json::{Value, json};

use super::*;

const NOW_MS: i64 = 1_000_000_000;

fn rows(of: &[(&str, Value)]) -> Rows {
    let mut rows = Rows::default();
    for (table, row) in of {
        rows.put(table, row.clone());
    }
    rows
}

/// Returns a row with other values of some attributes; `null` removes one.
fn with(row: &Value, changes: Value) -> Value {
    let mut row = row.clone();
    for (name, value) in changes.as_object().into_iter().flatten() {
        match value.is_null() {
            true => drop(row.as_object_mut().and_then(|row| row.remove(name))),
            false => row[name] = value.clone(),
        }
    }
    row
}

fn message() -> Value {
    json!({
        "pk": "MESSAGE#msg_1", "sk": "MESSAGE", "id": "msg_1", "state": "QUEUED", "wake": "CHECK#0",
        "channel": "telegram", "to": "7", "sender": "default", "content": {"text": "Oi"}, "version": 1,
        "intent": {"client_id": "c", "fingerprint": "f", "rolling": true},
    })
}

fn intent() -> Value {
    json!({
        "pk": "CLIENT#c", "sk": "INTENT#f", "writer": "w", "expires_at": 9_000_000, "holder": "message:msg_1",
        "status": "HELD", "version": 1, "window_until": 5_000_000, "guard": "GUARD#t#contact", "fingerprint": "f",
    })
}

fn guard() -> Value {
    let hold = json!({
        "holder": "message:msg_1", "fingerprint": "f", "at": 1_000_000, "until": 2_000_000, "expires_at": 9_000_000,
        "pending": true,
    });
    json!({
        "pk": "CLIENT#c", "sk": "GUARD#t#contact", "writer": "w", "expires_at": 9_000_000, "version": 1,
        "holds": [hold],
    })
}

fn all(message: Value, intent: Value, guard: Value) -> Vec<String> {
    violations(&rows(&[("Outbound", message), ("Intents", intent), ("Intents", guard)]), NOW_MS)
}

fn says(found: &[String], sentence: &str) {
    assert!(found.iter().any(|violation| violation.contains(sentence)), "{sentence:?} is not in {found:#?}");
}

#[test]
fn a_message_its_intent_and_its_guard_agree() {
    assert_eq!(all(message(), intent(), guard()), Vec::<String>::new());
    let unwatched = with(&message(), json!({"wake": null}));
    says(&all(unwatched, intent(), guard()), "no sweep finds a queued message");
    let unsent = with(&message(), json!({"state": "CANCELED", "wake": null, "expires_at": 1}));
    says(&all(unsent, intent(), guard()), "a message that ended without being sent holds its intent");
    let begun = with(&message(), json!({"state": "SENDING", "deadline": 1}));
    says(&all(begun, intent(), guard()), "an attempt has begun, and its hold is pending");
    let forgotten = with(&guard(), json!({"holds": []}));
    says(&all(message(), intent(), forgotten), "the guard does not contain a hold");
    let released = with(&intent(), json!({"status": "RELEASED", "released_at": "2026-01-01T00:00:00Z"}));
    says(&all(message(), released, guard()), "a guard contains a hold that no longer exists");
    says(&all(with(&message(), json!({"content": null})), intent(), guard()), "a message has no content");
}

#[test]
fn two_sends_under_one_guard_do_not_overlap() {
    let sent = |at: i64| json!({"holder": "x", "fingerprint": "f", "at": at, "until": at + 10, "expires_at": 0});
    let overlapping = with(&guard(), json!({"holds": [sent(1), sent(5)]}));
    let apart = with(&guard(), json!({"holds": [sent(1), sent(11)]}));
    says(&violations(&rows(&[("Intents", overlapping)]), NOW_MS), "a guard has two sends in one window");
    assert_eq!(violations(&rows(&[("Intents", apart)]), NOW_MS), Vec::<String>::new());
}

#[test]
fn a_pending_offer_has_the_slot_and_an_open_charge_is_an_unpaid_transaction() {
    let contact = umavez_domain::downsells::ContactId::of("default", 7);
    let pk = umavez_domain::keys::contact_partition(&contact);
    let offer = json!({
        "pk": pk, "sk": "OFFER#1", "id": "of_1", "downsell_id": 1, "scheduled_at": "x", "status": "pending",
        "state": "QUEUED", "wake": "DUE#1",
    });
    let slot = json!({"pk": pk, "sk": "SLOT#0000000001", "downsell_id": 1, "offer": "of_1", "pending": true});
    let charges = json!({"pk": pk, "sk": "CHARGES", "open": {"tx": {"until": 1}}, "wake": "CHECK#1", "pay_epoch": 0});
    let key = umavez_domain::keys::transaction("tx");
    let transaction = json!({"pk": key.pk, "sk": key.sk, "transaction_id": "tx", "status": "unpaid"});
    let all = |offer: &Value, slot: &Value, charges: &Value, transaction: &Value| {
        let rows = [offer, slot, charges, transaction].map(|row| ("Downsells", row.clone()));
        violations(&super::tests::rows(&rows), NOW_MS)
    };
    assert_eq!(all(&offer, &slot, &charges, &transaction), Vec::<String>::new());
    let free = with(&slot, json!({"pending": false}));
    says(&all(&offer, &free, &charges, &transaction), "a pending offer has no slot");
    let paid = with(&transaction, json!({"status": "paid"}));
    says(&all(&offer, &slot, &charges, &paid), "an open charge is not an unpaid transaction");
    let unwatched = with(&charges, json!({"wake": null}));
    says(&all(&offer, &slot, &unwatched, &transaction), "exactly open charges are in the index by time");
    let unexplained = with(&offer, json!({"status": "canceled", "state": null, "wake": null, "expires_at": 1}));
    says(&all(&unexplained, &free, &charges, &transaction), "exactly canceled and skipped offers have a reason");
}

#[test]
fn a_conversation_counts_its_messages_and_batches() {
    let pk = "CONVERSATION#1";
    let state = json!({
        "pk": pk, "sk": "STATE", "received": 2, "claimed": 1, "answered": 1, "phase": "idle", "wake": "CHECK#1",
    });
    let said = |number: u64| json!({"pk": pk, "sk": format!("MESSAGE#{number}"), "number": number});
    let batch = json!({"pk": pk, "sk": "BATCH#0000000001", "batch": 1, "from": 1, "finished_at": "x"});
    let all = |state: &Value, messages: &[Value], batch: &Value| {
        let all = messages.iter().chain([state, batch]).map(|row| ("Conversations", row.clone()));
        violations(&rows(&all.collect::<Vec<_>>()), NOW_MS)
    };
    assert_eq!(all(&state, &[said(1), said(2)], &batch), Vec::<String>::new());
    says(&all(&state, &[said(1)], &batch), "an unanswered message is missing");
    says(&all(&with(&state, json!({"wake": null})), &[said(1), said(2)], &batch), "exactly open conversations");
    says(&all(&state, &[said(1), said(2)], &with(&batch, json!({"batch": 2}))), "a batch was not claimed");
    let part = with(&batch, json!({"finished_at": null, "messages": ["msg_9"]}));
    says(&all(&state, &[said(1), said(2)], &part), "a part of a reply is no message");
}

fn change(table: &str, before: Option<Value>, after: Value) -> Change {
    let word = |name: &str| after[name].as_str().unwrap_or_default().to_owned();
    Change { table: table.to_owned(), pk: word("pk"), sk: word("sk"), before, after: Some(after) }
}

fn broken_by(change: Change, rows: &Rows) -> Vec<String> {
    violations_of(&[change], rows, NOW_MS)
}

#[test]
fn a_version_has_one_author_and_a_lease_one_turn() {
    let row = |version: u64| json!({"pk": "X", "sk": "Y", "version": version});
    let nothing = Rows::default();
    assert_eq!(broken_by(change("Other", Some(row(1)), row(2)), &nothing), Vec::<String>::new());
    let rewritten = with(&row(2), json!({"by": "a writer that lost"}));
    says(&broken_by(change("Other", Some(row(2)), rewritten), &nothing), "from version 2 to 2");
    let lease = |epoch: u64, owner: &str| json!({"pk": "X", "sk": "JOB", "lease_epoch": epoch, "lease_owner": owner});
    assert_eq!(broken_by(change("Other", Some(lease(1, "a")), lease(2, "b")), &nothing), Vec::<String>::new());
    says(&broken_by(change("Other", Some(lease(1, "a")), lease(1, "b")), &nothing), "a lease went from epoch 1 to 1");
}

#[test]
fn an_attempt_begins_only_if_its_gates_are_open() {
    let (before, after) = (message(), with(&message(), json!({"state": "SENDING", "attempt": 1, "version": 2})));
    let key = umavez_domain::keys::suppression("telegram", "7");
    let suppression = json!({"pk": key.pk, "sk": key.sk, "status": "ACTIVE"});
    let of_another = with(&suppression, json!({"senders": ["other"]}));
    let begin = |suppression: &Value| {
        broken_by(change("Outbound", Some(before.clone()), after.clone()), &rows(&[("Outbound", suppression.clone())]))
    };
    says(&begin(&suppression), "an attempt to a suppressed address began");
    assert_eq!(begin(&of_another), Vec::<String>::new());
    let sent = with(&message(), json!({"state": "SENT"}));
    says(&broken_by(change("Outbound", Some(sent), after.clone()), &Rows::default()), "an attempt began on a row");
}

#[test]
fn a_delivery_goes_from_state_to_state_as_its_protocol_allows() {
    let row = |changes: Value| with(&with(&message(), json!({"attempt": 1, "claim": "a"})), changes);
    let go = |from: Value, to: Value| {
        broken_by(change("Outbound", Some(row(from)), with(&row(to), json!({"version": 2}))), &Rows::default())
    };
    let goes = |from: Value, to: Value| {
        let found = go(from, to);
        let of_delivery = found.iter().filter(|sentence| sentence.contains(" -> "));
        assert_eq!(of_delivery.collect::<Vec<_>>(), Vec::<&String>::new());
    };
    goes(json!({"state": "SENDING"}), json!({"state": "UNKNOWN", "doubts": [1]}));
    goes(json!({"state": "UNKNOWN"}), json!({"state": "QUEUED", "tries_from": 1}));
    goes(json!({"state": "SENDING"}), json!({"state": "QUEUED", "reason": "throttled"}));
    says(&go(json!({"state": "CANCELED"}), json!({"state": "SENT"})), "a state that cannot follow");
    says(&go(json!({"state": "SENDING"}), json!({"state": "SENT", "attempt": 2})), "that did not begin");
    says(&go(json!({"state": "SENDING"}), json!({"state": "SENDING", "claim": "b"})), "changed its sender");
    let late = json!({"state": "QUEUED", "reason": "throttled", "tries_from": 1});
    says(&go(json!({"state": "UNKNOWN"}), late), "queued again without an order");
    let recalled = json!({"state": "QUEUED", "reason": "throttled", "recalled": 1});
    says(&go(json!({"state": "SENDING", "recalled": 1}), recalled), "canceled during its attempt");
}

#[test]
fn a_message_is_accepted_together_with_its_intent() {
    let accepted = change("Outbound", None, message());
    says(&broken_by(accepted.clone(), &Rows::default()), "a message was accepted without its intent");
    assert_eq!(broken_by(accepted, &rows(&[("Intents", intent())])), Vec::<String>::new());
}

#[test]
fn a_slot_is_granted_once() {
    let bucket = json!({"pk": "RATE#a", "sk": "SENDER", "free_at_us": 100, "seen_us": 50, "writer": "one/1"});
    let next =
        |changes: Value| broken_by(change("Other", Some(bucket.clone()), with(&bucket, changes)), &Rows::default());
    assert_eq!(next(json!({"free_at_us": 200, "seen_us": 60, "writer": "two/1"})), Vec::<String>::new());
    assert_eq!(next(json!({"free_at_us": 50, "writer": "one/2"})), Vec::<String>::new());
    says(&next(json!({"free_at_us": 90, "seen_us": 60, "writer": "two/1"})), "a slot was granted twice");
    says(&next(json!({"free_at_us": 50, "writer": "two/1"})), "a slot was released after another grant");
}

#[test]
fn a_suppression_stays_until_a_later_removal() {
    let active =
        json!({"pk": "SUPPRESSION#email#7", "sk": "a", "status": "ACTIVE", "reason": "operator", "as_of": 9_000});
    let next =
        |changes: Value| broken_by(change("Outbound", Some(active.clone()), with(&active, changes)), &Rows::default());
    assert_eq!(next(json!({"status": "REMOVED", "as_of": 9_100})), Vec::<String>::new());
    assert_eq!(next(json!({"status": "REMOVED", "as_of": 4_000})), Vec::<String>::new(), "clocks differ");
    says(&next(json!({"status": "REMOVED", "as_of": 3_999})), "by an earlier removal");
    says(&next(json!({"reason": "hard_bounce"})), "a suppression was replaced");
}

//! Offers and charges: a contact has at most one pending offer per downsell, and that offer has the
//! slot. Every pending offer is in the index by time, and no ended offer is.

use serde_json::Value;

use umavez_domain::keys;

use crate::{Rows, Violations, number, text, waits_for};

pub fn check(rows: &Rows, pk: &str, found: &mut Violations) {
    if let Some(transaction) = rows.get("Downsells", pk, "TRANSACTION") {
        is_listed(rows, transaction, found);
    }
    for offer in offers(rows, pk) {
        ends(offer, found);
        let downsell = number(offer, "downsell_id");
        let slot = rows.partition("Downsells", pk, "SLOT#").find(|slot| number(slot, "downsell_id") == downsell);
        let has_slot = slot.is_some_and(|slot| slot["offer"] == offer["id"] && slot["pending"] == true);
        found.unless(offer["status"] != "pending" || has_slot, "a pending offer has no slot", offer);
    }
    for slot in rows.partition("Downsells", pk, "SLOT#") {
        let own = |offer: &&Value| offer["downsell_id"] == slot["downsell_id"] && offer["status"] == "pending";
        let pending: Vec<_> = offers(rows, pk).filter(own).collect();
        let wanted = usize::from(slot["pending"] == true);
        found.unless(pending.len() == wanted, "the number of pending offers differs from the slot", slot);
        found.unless(pending.iter().all(|offer| offer["id"] == slot["offer"]), "a slot names another offer", slot);
    }
    if let Some(charges) = rows.get("Downsells", pk, "CHARGES") {
        let open = charges["open"].as_object();
        let is_checked = open.is_some_and(|open| !open.is_empty()) || charges["look_at"].is_number();
        let is_indexed = charges["wake"].is_string();
        found.unless(is_checked == is_indexed, "exactly open charges are in the index by time", charges);
        for name in open.into_iter().flatten().map(|(name, _)| name) {
            let transaction = transaction(rows, name);
            let is_unpaid = transaction.is_some_and(|row| row["status"] == "unpaid");
            found.unless(is_unpaid, "an open charge is not an unpaid transaction", charges);
        }
    }
}

fn transaction<'a>(rows: &'a Rows, name: &str) -> Option<&'a Value> {
    let key = keys::transaction(name);
    rows.get("Downsells", &key.pk, &key.sk)
}

/// A payment or an expiry is written with the charges of its contact.
fn is_listed(rows: &Rows, transaction: &Value, found: &mut Violations) {
    let (Some(bot), Some(contact)) = (transaction["bot"].as_str(), transaction["telegram_id"].as_i64()) else {
        return;
    };
    let key = keys::charges(&umavez_domain::downsells::ContactId::of(bot, contact));
    let charges = rows.get("Downsells", &key.pk, &key.sk);
    let is_open = charges.is_some_and(|charges| !charges["open"][text(transaction, "transaction_id")].is_null());
    found.unless(!is_open || transaction["status"] == "unpaid", "a closed transaction is an open charge", transaction);
    let epoch = charges.map_or(0, |charges| number(charges, "pay_epoch"));
    let is_counted = transaction["status"] != "paid" || number(transaction, "pay_epoch") <= epoch && epoch > 0;
    found.unless(is_counted, "a payment does not count for its contact", transaction);
}

/// A bot owns the name of its token.
pub fn check_configuration(rows: &Rows, pk: &str, found: &mut Violations) {
    let Some(bot) = rows.get("Config", pk, "BOT") else { return };
    let name = bot["token_ref"].as_str().unwrap_or_else(|| text(bot, "slug"));
    let key = keys::token("telegram", name);
    let owner = rows.get("Config", &key.pk, &key.sk).map(|token| &token["slug"]);
    found.unless(owner.is_none_or(|slug| *slug == bot["slug"]), "the token of a bot belongs to another one", bot);
    found.unless(owner.is_some(), "the token of a bot has no owner", bot);
}

fn offers<'a>(rows: &'a Rows, pk: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    rows.partition("Downsells", pk, "").filter(|row| row["scheduled_at"].is_string())
}

fn ends(offer: &Value, found: &mut Violations) {
    let status = text(offer, "status");
    match (status, offer["state"].as_str().filter(|_| status == "pending")) {
        ("pending", Some("QUEUED")) => {
            found.unless(matches!(waits_for(offer), Some("DUE" | "CHECK")), "no sweep finds a queued offer", offer)
        }
        ("pending", Some("SENDING")) => {
            let is_checked = waits_for(offer) == Some("CHECK") && offer["deadline"].is_number();
            found.unless(is_checked, "no sweep finds an offer that is being sent", offer);
        }
        ("pending", Some("UNKNOWN")) => {
            found.unless(waits_for(offer) == Some("UNKNOWN"), "no list shows an unknown offer", offer)
        }
        ("sent" | "failed" | "canceled" | "expired" | "skipped", None) => {
            found.unless(waits_for(offer).is_none(), "an ended offer is still in the index by time", offer)
        }
        _ => found.unless(false, "an offer is neither pending nor ended", offer),
    }
    let has_ttl = offer["expires_at"].is_number();
    found.unless(has_ttl == (status != "pending"), "exactly ended offers have a TTL", offer);
    let (has_why, needs_why) = (offer["cancel_reason"].is_string(), matches!(status, "canceled" | "skipped"));
    // The reason of a cancellation during an attempt is stored until the outcome is known.
    let is_explained = has_why == needs_why || has_why && status == "pending";
    found.unless(is_explained, "exactly canceled and skipped offers have a reason", offer);
}

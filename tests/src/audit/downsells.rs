//! The invariants of offers and charges.

use serde_json::Value;

use crate::World;

/// A contact has at most one pending offer per downsell, and that offer has the slot. Every pending
/// offer is in the index by time, and no ended offer is.
pub async fn downsells_add_up(world: &World) {
    let rows = world.rows("DownsellsTable").await;
    let offers = || rows.iter().filter(|row| row["scheduled_at"].is_string());
    for offer in offers() {
        let waits_for = offer["wake"].as_str().and_then(|wake| wake.split('#').next());
        let status = offer["status"].as_str().expect("a status");
        let state = offer["state"].as_str().filter(|_| status == "pending");
        match (status, state) {
            ("pending", Some("QUEUED")) => {
                assert!(matches!(waits_for, Some("DUE" | "CHECK")), "no sweep finds it: {offer}")
            }
            ("pending", Some("SENDING")) => {
                assert!(waits_for == Some("CHECK") && offer["deadline"].is_number(), "no sweep finds it: {offer}")
            }
            ("pending", Some("UNKNOWN")) => {
                assert_eq!(waits_for, Some("UNKNOWN"), "not in the index of unknown offers: {offer}")
            }
            ("sent" | "failed" | "canceled" | "expired" | "skipped", None) => {
                assert!(waits_for.is_none(), "ended, but still in the index by time: {offer}")
            }
            _ => panic!("neither pending nor ended: {offer}"),
        }
        assert_eq!(
            offer["expires_at"].is_number(),
            status != "pending",
            "exactly the ended offers have a TTL: {offer}"
        );
        let why = offer["cancel_reason"].is_string();
        let has_reason = matches!(status, "canceled" | "skipped");
        // The reason of a cancellation during an attempt is stored until the outcome is known.
        assert!(
            why == has_reason || why && status == "pending",
            "exactly canceled and skipped offers have a reason: {offer}"
        );
    }
    for slot in rows.iter().filter(|row| row["sk"].as_str().is_some_and(|sk| sk.starts_with("SLOT#"))) {
        let own = |offer: &&Value| offer["pk"] == slot["pk"] && offer["downsell_id"] == slot["downsell_id"];
        let pending: Vec<_> = offers().filter(own).filter(|offer| offer["status"] == "pending").collect();
        assert_eq!(
            pending.len(),
            usize::from(slot["pending"] == true),
            "the number of pending offers differs from the slot: {slot}"
        );
        assert!(pending.iter().all(|offer| offer["id"] == slot["offer"]), "the slot names another offer: {slot}");
    }
    for charges in rows.iter().filter(|row| row["sk"] == "CHARGES") {
        let looked_for =
            charges["open"].as_object().is_some_and(|open| !open.is_empty()) || charges["look_at"].is_number();
        assert_eq!(looked_for, charges["wake"].is_string(), "exactly open charges are in the index by time: {charges}");
    }
}

/// Returns the number of attempts to send offers.
pub async fn attempts(world: &World) -> u64 {
    let rows = world.rows("DownsellsTable").await;
    rows.iter().filter_map(|row| row["attempt"].as_u64().filter(|_| row["scheduled_at"].is_string())).sum()
}

//! What must hold of offers and charges.

use serde_json::Value;

use crate::World;

/// One pending offer per contact and downsell, and it has the slot; whatever is not settled is
/// looked for; what was paid for is not offered any more.
pub async fn downsells_add_up(world: &World) {
    let rows = world.rows("DownsellsTable").await;
    let offers = || rows.iter().filter(|row| row["scheduled_at"].is_string());
    for offer in offers() {
        let waits_for = offer["wake"].as_str().and_then(|wake| wake.split('#').next());
        let status = offer["status"].as_str().expect("a status");
        let state = offer["state"].as_str().filter(|_| status == "pending");
        match (status, state) {
            ("pending", Some("QUEUED")) => assert!(matches!(waits_for, Some("DUE" | "CHECK")), "nobody looks: {offer}"),
            ("pending", Some("SENDING")) => {
                assert!(waits_for == Some("CHECK") && offer["deadline"].is_number(), "nobody looks: {offer}")
            }
            ("pending", Some("UNKNOWN")) => assert_eq!(waits_for, Some("UNKNOWN"), "nobody sees it: {offer}"),
            ("sent" | "failed" | "canceled" | "expired" | "skipped", None) => {
                assert!(waits_for.is_none(), "ended, and still looked for: {offer}")
            }
            _ => panic!("neither pending nor ended: {offer}"),
        }
        assert_eq!(offer["expires_at"].is_number(), status != "pending", "only what has ended goes: {offer}");
        let why = offer["cancel_reason"].is_string();
        let has_reason = matches!(status, "canceled" | "skipped");
        // A cancel during an attempt is kept until its outcome is known.
        assert!(why == has_reason || why && status == "pending", "a reason where there is one: {offer}");
    }
    for slot in rows.iter().filter(|row| row["sk"].as_str().is_some_and(|sk| sk.starts_with("SLOT#"))) {
        let own = |offer: &&Value| offer["pk"] == slot["pk"] && offer["downsell_id"] == slot["downsell_id"];
        let pending: Vec<_> = offers().filter(own).filter(|offer| offer["status"] == "pending").collect();
        assert_eq!(pending.len(), usize::from(slot["pending"] == true), "one pending, and its slot: {slot}");
        assert!(pending.iter().all(|offer| offer["id"] == slot["offer"]), "the slot is another's: {slot}");
    }
    for charges in rows.iter().filter(|row| row["sk"] == "CHARGES") {
        let looked_for =
            charges["open"].as_object().is_some_and(|open| !open.is_empty()) || charges["look_at"].is_number();
        assert_eq!(looked_for, charges["wake"].is_string(), "nobody looks: {charges}");
    }
}

/// Attempts that were made to send offers.
pub async fn attempts(world: &World) -> u64 {
    let rows = world.rows("DownsellsTable").await;
    rows.iter().filter_map(|row| row["attempt"].as_u64().filter(|_| row["scheduled_at"].is_string())).sum()
}

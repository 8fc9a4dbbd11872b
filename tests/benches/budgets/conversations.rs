//! The cost of storing a message of a conversation, whatever the length of the conversation, and of
//! answering it.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::conversations::inbound::{Inbound, MessageKind};
use umavez_domain::conversations::{ConversationId, ReceiveOutcome, Via};
use umavez_domain::senders::instances::InstanceRow;
use umavez_local::calls::Call;
use umavez_platform::conversations::Conversations;
use umavez_platform::intents::Intents;
use umavez_platform::messages::Messages;
use umavez_platform::senders::Instances;
use umavez_tests::{KEY, World};

use crate::before::{self, Took};
use crate::prices;

/// The limits for storing a message: one read, one transaction, and this many write units.
const REQUESTS: usize = 2;
const WRITE_UNITS: f64 = 6.0;
/// The length of the conversation before the measured message.
const LENGTHS: [u64; 3] = [0, 99, 9_999];

pub async fn budgets(world: &World) {
    let put = world.request(Method::PUT, "/instances/api/default").bearer_auth(KEY).json(&json!({}));
    assert_eq!(world.send(put).await.status, 201);
    println!(
        "\n{:<44} {:>8} {:>6} {:>8} {:>6} {:>8}   {}",
        "conversation",
        "requests",
        "most",
        "write u.",
        "most",
        "read u.",
        before::TITLE
    );
    let mut costs = Vec::new();
    for length in LENGTHS {
        let contact = format!("contact-{length}");
        fill(world, &contact, length).await;
        // The first message of a burst costs most, because it puts the conversation into the index
        // by time.
        world.advance(Duration::from_secs(60)).await;
        let calls = store(world, &contact, length + 1).await;
        costs.push(check_budget(&format!("message {} stored, first of its burst", length + 1), &calls));
        let calls = store(world, &contact, length + 2).await;
        costs.push(check_budget(&format!("message {} stored, next of its burst", length + 2), &calls));
    }
    let (first, next) = (costs[0], costs[1]);
    for pair in costs.chunks(2) {
        assert!(pair[0] <= first && pair[1] <= next, "the cost of a message grows with its conversation");
    }
    // Waits until no other work is pending, so that only one batch is measured.
    world.advance(Duration::from_secs(60)).await;
    store(world, "contact-asked", 1).await;
    let (_, calls) = world.calls_of("conversation-worker", world.advance(Duration::from_secs(10))).await;
    let calls: Vec<_> = calls.into_iter().filter(|call| call.service == "dynamodb").collect();
    let (name, took) = ("a batch asked about and answered", Took::of(&calls));
    let Took { requests, write, read } = took;
    println!("{name:<44} {requests:>8.1} {:>6} {write:>8.1} {:>6} {read:>8.1}{}", "", "", before::column(name, took));
}

/// Stores `length` earlier messages.
async fn fill(world: &World, contact: &str, length: u64) {
    let output = |name: &str| world.stack.output(name).expect("an output").to_owned();
    let intents = Intents { store: world.store.clone(), table: output("IntentsTable") };
    let messages = Messages { store: world.store.clone(), table: output("OutboundTable"), intents, retention_days: 90 };
    let table = output("ConversationsTable");
    let instances = Instances { store: world.store.clone(), table: output("ConfigTable") };
    let conversations = Conversations { store: world.store.clone(), table, instances, messages };
    let instance = InstanceRow::by_default(Via::Api, "default", world.now());
    let id = ConversationId::of(Via::Api, "default", contact);
    let mut row = conversations.get(&world.invocation(), &id).await.expect("read");
    for number in 1..=length {
        let inbound = Inbound {
            contact: contact.to_owned(),
            message_id: format!("m{number}"),
            from_me: false,
            by_gateway: false,
            kind: MessageKind::Text,
            // Short, so that one reply can quote all of them.
            text: Some("x".to_owned()),
            media: None,
            name: None,
            sent_at: None,
        };
        let receipt = conversations.receive(&world.invocation(), &instance, row, &inbound).await.expect("stored");
        assert_eq!(receipt.outcome, ReceiveOutcome::Stored);
        row = receipt.row;
    }
}

async fn store(world: &World, contact: &str, number: u64) -> Vec<Call> {
    let body: Value = json!({"message_id": format!("m{number}"), "text": "Oi, tudo bem?"});
    let path = format!("/conversations/{contact}/messages");
    let (answer, calls) = world.calls_of("conversations-api", world.post(&path, &body)).await;
    assert_eq!(answer.body["number"], number, "{}", answer.body);
    calls
}

/// Prints requests and write units, and checks them against the limits.
fn check_budget(name: &str, calls: &[Call]) -> (usize, u64) {
    let (requests, write) = (calls.len(), prices::write_units(calls));
    let read: f64 = calls.iter().map(|call| call.read_units).sum();
    let before = before::column(name, Took::of(calls));
    println!("{name:<44} {requests:>8} {REQUESTS:>6} {write:>8} {WRITE_UNITS:>6} {read:>8}{before}");
    assert!(requests <= REQUESTS && write <= WRITE_UNITS, "{name}: {requests} requests, {write} write units");
    (requests, (write * 10.0).round() as u64)
}

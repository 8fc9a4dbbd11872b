//! How many of the pending messages one batch takes, and the order in which the responder gets
//! them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use umavez_domain::conversations::inbound::{Inbound, MessageKind};
use umavez_domain::conversations::{ConversationId, ReceiveOutcome, Via};
use umavez_domain::keys;
use umavez_domain::senders::instances::InstanceRow;
use umavez_domain::time::Timestamp;
use umavez_platform::conversations::Conversations;
use umavez_platform::due;
use umavez_platform::senders::Instances;
use umavez_platform::store::Found;
use umavez_tests::{World, play, play_with};

use crate::conversations::{
    CHAT, PHONE, TELEGRAM_SECRET, answers_with, conversation, hears, instance, questions, replies, seconds, update,
    upsert, webhook, whatsapp,
};
use crate::conversations_course::{id, order};
use crate::outbound::sending;
use crate::outbound_outcomes::messages;

/// 256 KB.
const MOST_BYTES: usize = 262_144;

/// Returns the conversations of the stack, as functions see them.
fn conversations(world: &World) -> Conversations {
    let output = |name: &str| world.stack.output(name).expect("an output").to_owned();
    let table = output("ConversationsTable");
    let instances = Instances { store: world.store.clone(), table: output("ConfigTable") };
    Conversations { store: world.store.clone(), table, instances, messages: messages(world) }
}

fn shown(question: &Value) -> Vec<u64> {
    let messages = question["messages"].as_array().expect("a list");
    messages.iter().map(|message| message["number"].as_u64().expect("a number")).collect()
}

fn texts(question: &Value) -> Vec<String> {
    let messages = question["messages"].as_array().expect("a list");
    messages.iter().map(|message| message["text"].as_str().expect("a text").to_owned()).collect()
}

#[tokio::test]
async fn a_long_backlog_is_sent_in_batches_of_a_hundred_with_every_message_once() {
    play(async |world| {
        instance(world, "api", &json!({})).await;
        let first = json!({"message_id": "m1", "text": "1"});
        assert_eq!(world.post("/conversations/ana/messages", &first).await.status, 202);
        let id = ConversationId::of(Via::Api, "default", "ana");
        assert_eq!(order(world, id.as_str(), "hold", &json!({})).await.status, 200);
        let conversations = conversations(world);
        let settings = InstanceRow::by_default(Via::Api, "default", world.now());
        let mut row = conversations.get(&world.invocation(), &id).await.expect("a store");
        for number in 2..=230 {
            let inbound = Inbound {
                contact: "ana".to_owned(),
                message_id: format!("m{number}"),
                from_me: false,
                by_gateway: false,
                kind: MessageKind::Text,
                text: Some(number.to_string()),
                media: None,
                name: None,
                sent_at: None,
            };
            let receipt = conversations.receive(&world.invocation(), &settings, row, &inbound).await.expect("a store");
            assert_eq!(receipt.outcome, ReceiveOutcome::Stored);
            row = receipt.row;
        }
        seconds(world, 60).await;
        assert_eq!(questions(world).len(), 0, "the responder was asked during the hold");
        order(world, id.as_str(), "release", &json!({})).await;
        world.drain().await;
        let sizes: Vec<_> = questions(world).iter().map(|question| shown(question).len()).collect();
        assert_eq!(sizes, [100, 100, 30], "without any further wait");
        let all: Vec<_> = questions(world).iter().flat_map(shown).collect();
        assert_eq!(all, (1..=230).collect::<Vec<_>>(), "each once, in order");
        let view = world.get("/conversations/ana?limit=100").await.body;
        assert_eq!((&view["conversation"]["status"], &view["conversation"]["answered"]), (&json!("idle"), &json!(230)));
        let ends: BTreeSet<_> = view["batches"].as_array().expect("a list").iter().map(|b| b["to"].as_u64()).collect();
        assert!(ends.contains(&Some(230)) && ends.contains(&Some(200)), "{}", view["batches"]);
        // The earlier page has the batches of its own messages.
        let cursor = view["cursor"].as_str().expect("a cursor");
        let earlier = world.get(&format!("/conversations/ana?limit=100&cursor={cursor}")).await.body;
        let batch = |number: u64| format!("{id}-{number}");
        let messages = earlier["messages"].as_array().expect("a list");
        assert_eq!((&messages[0]["number"], &messages[0]["batch_id"]), (&json!(130), &json!(batch(200))));
        assert_eq!((&messages[99]["number"], &messages[99]["batch_id"]), (&json!(31), &json!(batch(100))));
        assert!(messages.iter().all(|message| message["fate"] == "answered"), "{earlier}");
    })
    .await;
}

#[tokio::test]
async fn messages_beyond_256_kilobytes_go_into_the_next_batch() {
    play(async |world| {
        instance(world, "api", &json!({})).await;
        let long = "a".repeat(2_048);
        let media = json!({"mime_type": long, "file_name": long, "reference": long});
        for number in 1..=60 {
            let body = json!({"message_id": format!("m{number}"), "text": number.to_string(), "media": media});
            assert_eq!(world.post("/conversations/ana/messages", &body).await.status, 202);
        }
        seconds(world, 40).await;
        let asked = questions(world);
        let bytes: Vec<_> = asked.iter().map(|question| question["messages"].to_string().len()).collect();
        assert!(bytes.iter().all(|bytes| *bytes <= MOST_BYTES), "{bytes:?}");
        let one = asked[0]["messages"][0].to_string().len();
        assert!(bytes[0] + one > MOST_BYTES, "the first batch is smaller than necessary: {bytes:?}");
        let all: Vec<_> = asked.iter().flat_map(shown).collect();
        assert_eq!(all, (1..=60).collect::<Vec<_>>(), "each once, in order");
    })
    .await;
}

#[tokio::test]
async fn messages_that_expired_during_a_hold_are_skipped_and_logged() {
    play_with(sending(1), async |world| {
        instance(world, "telegram", &json!({})).await;
        hears(world, CHAT, 1, "one").await;
        let id = id(world).await;
        order(world, &id, "hold", &json!({})).await;
        seconds(world, 60 * DAY).await;
        hears(world, CHAT, 2, "two").await;
        seconds(world, 31 * DAY).await;
        order(world, &id, "release", &json!({})).await;
        world.drain().await;
        assert_eq!(replies(world, &CHAT.to_string()), ["two"]);
        assert_eq!(shown(&questions(world)[0]), [2]);
        let events = world.events("CONVERSATION_MESSAGES_EXPIRED");
        assert_eq!((events.len(), &events[0]["messages"]), (1, &json!(1)), "{events:?}");
    })
    .await;
    // A batch that was claimed earlier, and waited for a person for too long.
    play(async |world| {
        instance(world, "telegram", &json!({"responder_attempts": 1})).await;
        answers_with(world, 500, json!({}), 1).await;
        hears(world, CHAT, 1, "one").await;
        seconds(world, 6).await;
        seconds(world, 91 * DAY).await;
        order(world, &id(world).await, "release", &json!({})).await;
        world.drain().await;
        assert_eq!(questions(world).len(), 0, "the responder was asked about expired messages");
        assert_eq!(conversation(world).await["conversation"]["status"], "idle");
        assert_eq!(world.events("CONVERSATION_MESSAGES_EXPIRED").len(), 1);
    })
    .await;
}

const DAY: u64 = 86_400;

/// Lets up to an hour pass: recovery looks at each waiting conversation in one minute of the hour.
async fn hour(world: &World, id: &str) {
    let id = ConversationId::parse(id).expect("an id");
    let found = Found { key: keys::conversation(&id), place: String::new() };
    // The first second of a minute, so that the minute is not over before recovery runs.
    let now = world.now();
    let minute = |minutes: i64| Timestamp::from_seconds((now.seconds() / 60 + minutes) * 60 + 1);
    let next = (1..=60).map(minute).find(|at| due::is_of_this_minute(&found, *at)).expect("a minute of the hour");
    seconds(world, (next.seconds() - now.seconds()).unsigned_abs()).await;
    world.tick("Recovery").await;
}

/// Returns when the messages of the one conversation expire, in seconds.
async fn expiries(world: &World) -> Vec<i64> {
    let rows = world.rows("ConversationsTable").await;
    let messages = rows.iter().filter(|row| row["number"].is_number());
    messages.map(|row| row["expires_at"].as_i64().expect("a time")).collect()
}

#[tokio::test]
async fn unanswered_messages_are_kept_beyond_their_retention() {
    for (is_held, sent) in [(true, 1), (false, 2)] {
        play_with(sending(sent).parameter("MessageRetentionDays", "31"), async |world| {
            instance(world, "telegram", &json!({"responder_attempts": 1})).await;
            if !is_held {
                answers_with(world, 500, json!({}), 1).await;
            }
            hears(world, CHAT, 1, "one").await;
            let id = id(world).await;
            if is_held {
                order(world, &id, "hold", &json!({})).await;
            }
            seconds(world, 6).await;
            seconds(world, 29 * DAY).await;
            hears(world, CHAT, 2, "two").await;
            hour(world, &id).await;
            let days_left = |at: i64| (at - world.now().seconds() + 7_200) / 86_400;
            let mut left: Vec<_> = expiries(world).await.into_iter().map(days_left).collect();
            left.sort_unstable();
            assert_eq!(left, [9, 31], "the first message is kept longer");
            let kept = world.events("CONVERSATION_MESSAGES_KEPT");
            assert_eq!((kept.len(), &kept[0]["is_last"]), (1, &json!(false)), "{kept:?}");
            seconds(world, 5 * DAY).await;
            hour(world, &id).await;
            assert_eq!(world.events("CONVERSATION_MESSAGES_KEPT").len(), 1, "they do not expire soon");
            seconds(world, 2 * DAY).await;
            hour(world, &id).await;
            seconds(world, 5 * DAY).await;
            order(world, &id, "release", &json!({})).await;
            world.drain().await;
            seconds(world, 60).await;
            let asked: Vec<_> = questions(world).iter().flat_map(texts).collect();
            assert!(asked.ends_with(&["one".to_owned(), "two".to_owned()]), "{asked:?}");
            assert_eq!(world.events("CONVERSATION_MESSAGES_EXPIRED").len(), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn a_burst_that_telegram_delivers_out_of_order_is_sorted_as_written() {
    play_with(sending(1), async |world| {
        instance(world, "telegram", &json!({})).await;
        let now = world.now().seconds();
        // Three were written within one second. Telegram numbers its messages, so 9 comes before
        // 10.
        let written = [
            (12, "fifth", now + 1),
            (7, "first", now - 2),
            (10, "third", now),
            (9, "second", now),
            (11, "fourth", now),
        ];
        for (message_id, text, at) in written {
            let header = ("x-telegram-bot-api-secret-token", TELEGRAM_SECRET);
            let body = update(CHAT, message_id, text, at);
            assert_eq!(webhook(world, "/webhooks/telegram/default", header, &body).await.body["stored"], 1);
        }
        seconds(world, 6).await;
        assert_eq!(texts(&questions(world)[0]), ["first", "second", "third", "fourth", "fifth"]);
        assert_eq!(replies(world, &CHAT.to_string()), ["first\nsecond\nthird\nfourth\nfifth"]);
    })
    .await;
}

#[tokio::test]
async fn a_whatsapp_burst_is_sorted_by_time_and_within_a_second_by_arrival() {
    play_with(sending(1), async |world| {
        instance(world, "whatsapp", &json!({})).await;
        let now = world.now().seconds();
        for (id, text, at) in
            [("C", "fourth", now + 1), ("Z", "second", now), ("B", "first", now - 1), ("A", "third", now)]
        {
            assert_eq!(whatsapp(world, &upsert(id, text, false, at)).await.body["stored"], 1);
        }
        seconds(world, 6).await;
        assert_eq!(texts(&questions(world)[0]), ["first", "second", "third", "fourth"]);
        assert_eq!(replies(world, PHONE).len(), 1);
    })
    .await;
}

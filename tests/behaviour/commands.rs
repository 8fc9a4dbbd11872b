//! The commands for a running stack: their output, for people and as JSON.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use umavez_local::binaries;
use umavez_tests::{KEY, World, play, play_with};

use crate::outbound::{accept, intent, sending, telegram, with};

fn command(world: &World, words: &[&str]) -> Command {
    let mut command = Command::new(binaries::directory().expect("a directory").join("umavez-local"));
    let port = world.stack.url().rsplit(':').next().expect("a port");
    command.args(["--port", port]).args(words).env("UMAVEZ_KEY", KEY);
    command
}

async fn output(world: &World, words: &[&str]) -> (bool, String, String) {
    let output = command(world, words).output().await.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

async fn printed(world: &World, words: &[&str]) -> String {
    let (succeeded, printed, error) = output(world, words).await;
    assert!(succeeded, "{words:?}: {error}");
    printed
}

async fn printed_json(world: &World, words: &[&str]) -> Value {
    let printed = printed(world, words).await;
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{words:?}: {error}: {printed}"))
}

#[tokio::test]
async fn explain_shows_the_decisions_about_a_message_an_address_or_a_client() {
    play_with(sending(1), async |world| {
        let id = accept(world, "a", &with(telegram("Oi"), intent())).await;
        world.drain().await;
        let by_id = printed(world, &["explain", &id]).await;
        for part in ["accepted", "claimed", "attempt=1", &format!("telegram {id} is SENT")] {
            assert!(by_id.contains(part), "{part}: {by_id}");
        }
        let body = intent();
        let client = body["intent"]["client_id"].as_str().expect("an id");
        assert!(printed(world, &["explain", client]).await.contains(&id));
        let to = telegram("Oi")["to"].as_str().expect("an address").to_owned();
        let answer = printed_json(world, &["explain", &to, "--json"]).await;
        assert_eq!(answer["messages"][0]["message_id"], id);
        assert_eq!(printed(world, &["explain", "5550001"]).await, "nothing is known about 5550001\n");
        let (succeeded, _, error) = output(world, &["explain", &id, "--key", "wrong"]).await;
        assert!(!succeeded && error.contains("401"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn logs_are_shown_per_function_and_followed() {
    play_with(sending(1), async |world| {
        accept(world, "a", &telegram("Oi")).await;
        world.drain().await;
        let shown = printed(world, &["logs", "--function", "outbound-sender"]).await;
        assert!(shown.contains("OUTBOUND_SENT") && !shown.contains("OUTBOUND_ACCEPTED"), "{shown}");
        let line = printed(world, &["logs", "--function", "outbound-sender", "-n", "1", "--json"]).await;
        let line: Value = serde_json::from_str(&line).expect("one line of JSON");
        assert!(line["line"].is_object(), "{line}");
        let (succeeded, _, error) = output(world, &["logs", "--function", "sender"]).await;
        assert!(!succeeded && error.contains("outbound-sender"), "the error names those that exist: {error}");

        let mut follow = command(world, &["logs", "-f", "-n", "0", "--function", "outbound-api"]);
        let mut child = follow.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        // Its first request may come before or after this message; a second message comes after it.
        let found = async {
            while let Some(line) = lines.next_line().await.expect("a line") {
                if line.contains("OUTBOUND_CANCELED") {
                    return true;
                }
            }
            false
        };
        let orders = async {
            for number in 0..500 {
                let body =
                    json!({"channel": "telegram", "to": "1", "content": {"text": "x"}, "send_at": in_an_hour(world)});
                let id = accept(world, &format!("f{number}"), &body).await;
                world.post(&format!("/outbound/messages/{id}/cancel"), &json!({})).await;
            }
        };
        tokio::select! {
            found = found => assert!(found, "no new line was shown"),
            () = orders => panic!("no new line was shown"),
        }
    })
    .await;
}

fn in_an_hour(world: &World) -> String {
    world.now().plus_ms(3_600_000).to_string()
}

#[tokio::test]
async fn every_command_prints_json_on_request() {
    play_with(sending(1), async |world| {
        accept(world, "a", &telegram("Oi")).await;
        let sent = printed_json(world, &["sent", "--wait", "--json"]).await;
        assert_eq!(sent["sent"][0]["body"]["text"], "Oi");
        assert!(printed(world, &["sent"]).await.ends_with("\"Oi\"\n1 sent\n"));
        assert!(printed_json(world, &["clock", "--json"]).await["unix"].is_i64());
        assert!(printed_json(world, &["advance", "1m", "--json"]).await["offset_seconds"].is_i64());
        let created = printed_json(world, &["keys", "create", "--scopes", "intents", "--json"]).await;
        let id = created["id"].as_str().expect("an id");
        let keys = printed_json(world, &["keys", "list", "--json"]).await;
        let is_listed = |key: &Value| key["id"] == id && key["scopes"] == json!(["intents"]);
        assert!(keys["keys"].as_array().expect("a list").iter().any(is_listed), "{keys}");
        assert_eq!(printed_json(world, &["keys", "revoke", id, "--json"]).await["revoked"], id);
    })
    .await;
}

#[tokio::test]
async fn open_prints_the_address_where_no_browser_can_be_opened() {
    play(async |world| {
        let output = command(world, &["open"]).env("PATH", "/nowhere").output().await.expect("it runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}/\n", world.stack.url()));
        assert!(String::from_utf8_lossy(&output.stderr).contains("open the address by hand"));
    })
    .await;
}

#[tokio::test]
async fn completions_and_the_version_need_no_stack() {
    World::build().await;
    let program = binaries::directory().expect("a directory").join("umavez-local");
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(&program).args(["completions", shell]).output().await.expect("it runs");
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && script.contains("umavez") && script.contains("explain"), "{shell}");
    }
    let output = Command::new(&program).arg("--version").output().await.expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("umavez {}\n", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn the_first_steps_send_a_message_and_refuse_its_duplicate() {
    play_with(sending(1), async |world| {
        let file = binaries::workspace_root().join("infra/first-steps.txt");
        let steps = std::fs::read_to_string(file).expect("the first steps");
        let steps = steps.replace("{url}", world.stack.url()).replace("{key}", KEY);
        let mut statuses = Vec::new();
        for step in steps.lines().filter(|line| line.trim_start().starts_with("curl ")) {
            let ran = Command::new("sh").args(["-c", step]).output().await.expect("it runs");
            let answer: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
            statuses.push(answer["status"].clone());
        }
        assert_eq!(statuses, ["QUEUED", "DEDUPED"]);
        assert!(printed(world, &["sent", "--wait"]).await.ends_with("\"Hello\"\n1 sent\n"));
    })
    .await;
}

#[tokio::test]
async fn a_command_without_a_stack_says_so_once() {
    let mut command = Command::new(binaries::directory().expect("a directory").join("umavez-local"));
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let ran = command.args(["--port", &free.to_string(), "sent", "--wait"]).output().await.expect("it runs");
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(!ran.status.success() && error.matches("no stack answers").count() == 1, "{error}");
}

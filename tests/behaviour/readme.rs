//! The examples of the README and the docs, run as they are printed.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::process::Command;
use umavez_domain::webhooks::standard::verify;
use umavez_local::binaries::{self, workspace_root};
use umavez_tests::{World, play_with};

use crate::outbound::sending;

/// `cargo run -- …` with the program that is built already, for the stack of the test.
const PRELUDE: &str = r#"
cargo() {
  while [ "$1" = run ] || [ "$1" = -q ] || [ "$1" = -- ]; do shift; done
  "$UMAVEZ" --port "$PORT" "$@"
}
"#;

const README: &str = "README.md";

fn document(path: &str) -> String {
    std::fs::read_to_string(workspace_root().join(path)).expect("a document")
}

/// The example in which this text stands.
fn example(path: &str, with: &str) -> String {
    let document = document(path);
    let found =
        document.split("\n```").map(str::to_owned).find(|block| block.starts_with("sh\n") && block.contains(with));
    found.unwrap_or_else(|| panic!("no example with {with}"))["sh\n".len()..].to_owned()
}

struct Shell<'a> {
    world: &'a World,
    directory: PathBuf,
}

impl<'a> Shell<'a> {
    fn new(world: &'a World) -> Self {
        let directory = std::env::temp_dir().join(format!(
            "umavez-readme-{}-{}",
            std::process::id(),
            world.stack.url().rsplit(':').next().unwrap_or_default()
        ));
        std::fs::create_dir_all(&directory).expect("a directory");
        Self { world, directory }
    }

    /// What an example prints, pasted into a shell in one piece.
    async fn paste(&self, example: &str) -> String {
        let url = self.world.stack.url();
        let script = format!("{PRELUDE}{}", example.replace("http://127.0.0.1:3000", url));
        let output = Command::new("bash")
            .args(["-euc", &script])
            .env("UMAVEZ", binaries::directory().expect("a directory").join("umavez-local"))
            .env("PORT", url.rsplit(':').next().expect("a port"))
            .env("no_proxy", "127.0.0.1")
            .current_dir(&self.directory)
            .output()
            .await
            .expect("bash");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{example}\n{told}\n{}", String::from_utf8_lossy(&output.stderr));
        told
    }
}

impl Drop for Shell<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_readme_work_also_after_time_was_moved() {
    play_with(sending(5), async |world| {
        world.create_key("local", &["*"]).await;
        let shell = Shell::new(world);
        world.advance(Duration::from_secs(7 * 86_400)).await;

        let told = shell.paste(&example(README, "idempotency-key: order-77")).await;
        assert!(told.contains("\"can_send\":true"), "{told}");
        let told = shell.paste(&example(README, "send a '")).await;
        assert!(told.contains("\"QUEUED\"") && told.contains("\"DEDUPED\""), "{told}");
        assert!(told.contains("We miss you") && !told.contains("Come back!") && told.contains("1 sent"), "{told}");

        let told = shell.paste(&example(README, "tell 1 Oi")).await;
        assert_eq!(told.matches("\"stored\":1").count(), 2, "{told}");
        assert!(told.contains("Oi\\ntudo bem?") && told.contains("2 sent"), "one reply to both: {told}");

        let told = shell.paste(&example(README, "monthly.csv")).await;
        assert!(told.contains("Olá Ana") && told.contains("Olá Bia") && told.contains("4 sent"), "{told}");
        assert!(told.contains(&format!("{}/u/mlg_", world.stack.url())), "the links are of this stack: {told}");

        let told = shell.paste(&example(README, "pix-created")).await;
        assert!(told.contains("Ainda está aí?") && told.contains("5 sent"), "{told}");
        assert!(told.contains("\"already_sent\":1"), "{told}");

        let told = shell.paste("cargo run -- clock\ncargo run -- clock --reset\ncargo run -- clock").await;
        assert!(told.contains("ahead of the machine's") && told.contains("That is the machine's time."), "{told}");
    })
    .await;
}

/// Answers every request with this reply; the requests that it gets.
async fn responder(reply: &'static str) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/answer?from=here", listener.local_addr().expect("an address"));
    let (told, asked) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = Vec::new();
            // The body is one JSON object, and ends the request.
            while !request.ends_with(b"}") {
                connection.read_buf(&mut request).await.expect("a request");
            }
            let body = serde_json::json!({"reply": reply}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            connection.write_all(format!("{head}{body}").as_bytes()).await.expect("an answer");
            let _ = told.send(String::from_utf8_lossy(&request).into_owned());
        }
    });
    (url, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_responder_on_this_machine_answers_as_the_docs_say() {
    let (url, mut asked) = responder("Here I am").await;
    play_with(sending(1).parameter("ResponderUrl", &url), async |world| {
        world.create_key("local", &["*"]).await;
        let told = Shell::new(world).paste(&example("docs/responder.md", "sent --wait --to 43")).await;
        assert!(told.contains("\"stored\":1") && told.contains("Here I am") && told.contains("1 sent"), "{told}");
        let question = asked.recv().await.expect("it was asked");
        assert!(question.starts_with("POST /answer?from=here HTTP/1.1\r\n"), "{question}");
        assert!(question.contains("\"text\":\"Oi\""), "{question}");
        // By the secret as the docs have it read, and as the libraries of Standard Webhooks take
        // it.
        let secrets: serde_json::Value = serde_json::from_str(&document("infra/local-secrets.json")).expect("JSON");
        let secret = secrets["WebhookSecrets"]["responder"].as_str().expect("a secret");
        let key = BASE64_STANDARD.decode(secret.strip_prefix("whsec_").expect("a prefix")).expect("base64");
        let (head, body) = question.split_once("\r\n\r\n").expect("a body");
        let header = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(&format!("webhook-{name}: ")));
            line.unwrap_or_else(|| panic!("no webhook-{name}: {head}"))
        };
        let (id, at, signature) = (header("id"), header("timestamp"), header("signature"));
        assert!(verify(&[&key], id, at, signature, body.as_bytes(), world.now(), 300), "{head}");
    })
    .await;
}

/// A text of a message may have quotes and line ends: put between quotes as it is, it makes JSON
/// that is none.
#[test]
fn the_recipes_for_n8n_let_json_be_written_by_a_function() {
    let readme = document(README);
    assert!(!readme.contains("\"{{ $json") && !readme.contains("\"{{$json"), "a value between quotes");
    let fields = ["$json.message.text", "$json.message.chat.id", "$json.message.message_id", "$json.message.date"];
    for line in readme.lines().filter(|line| fields.iter().any(|field| line.contains(field))) {
        let line = line.trim();
        assert!(line.starts_with("{{ JSON.stringify({ ") && line.ends_with(" }) }}"), "{line}");
        // n8n takes the first `}}` for the end.
        assert_eq!(line.matches("}}").count(), 1, "{line}");
    }
    assert!(readme.contains("to: String($json.message.chat.id)"));
}

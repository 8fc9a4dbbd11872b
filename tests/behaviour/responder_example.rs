//! A responder of your own, as in `docs/guides/responder.md`: the stack sends requests to a program
//! on this machine, and sends its reply to the contact.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use umavez_domain::webhooks::standard::verify;
use umavez_local::binaries::workspace_root;
use umavez_tests::play_with;

use crate::docs::paste;
use crate::outbound::sending;

fn document(path: &str) -> String {
    std::fs::read_to_string(workspace_root().join(path)).expect("a document")
}

/// Returns the example of a page that contains this text.
fn example(path: &str, with: &str) -> String {
    let document = document(path);
    let found =
        document.split("\n```").map(str::to_owned).find(|block| block.starts_with("sh\n") && block.contains(with));
    found.unwrap_or_else(|| panic!("no example with {with}"))["sh\n".len()..].to_owned()
}

/// Starts a server that answers every request with this reply. Returns its address and the requests
/// that it gets.
async fn responder(reply: &'static str) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/answer?from=here", listener.local_addr().expect("an address"));
    let (sender, asked) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = Vec::new();
            // The request ends with its body, which is one JSON object.
            while !request.ends_with(b"}") {
                connection.read_buf(&mut request).await.expect("a request");
            }
            let body = serde_json::json!({"reply": reply}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            connection.write_all(format!("{head}{body}").as_bytes()).await.expect("an answer");
            let _ = sender.send(String::from_utf8_lossy(&request).into_owned());
        }
    });
    (url, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_responder_on_this_machine_answers_as_the_docs_say() {
    let (url, mut asked) = responder("Here I am").await;
    play_with(sending(1).parameter("ResponderUrl", &url), async |world| {
        world.create_key("local", &["*"]).await;
        let (succeeded, printed, error) =
            paste(world, &example("docs/guides/responder.md", "sent --wait --to 43")).await;
        assert!(succeeded, "{error}");
        assert!(
            printed.contains("\"stored\":1") && printed.contains("Here I am") && printed.contains("1 sent"),
            "{printed}"
        );
        let question = asked.recv().await.expect("it was asked");
        assert!(question.starts_with("POST /answer?from=here HTTP/1.1\r\n"), "{question}");
        assert!(question.contains("\"text\":\"Oi\""), "{question}");
        // The secret is read as the page says, and used as the Standard Webhooks libraries do.
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

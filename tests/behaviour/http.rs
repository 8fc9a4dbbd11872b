//! Bad requests: each answer names the error, and nothing is written.

use reqwest::Method;
use serde_json::{Value, json};
use umavez_platform::http::paging;
use umavez_tests::{KEY, contract, play};

use crate::intents::{CLIENT, VAGA_A, offer};

#[tokio::test]
async fn bad_input_names_its_fields_and_writes_nothing() {
    play(async |world| {
        let future = world.now().plus_days(1).to_string();
        let cases = [
            (json!({}), vec!["client_id", "intent_type"]),
            (json!({"client_id": CLIENT, "intent_type": "spam", "reference_id": VAGA_A}), vec!["intent_type"]),
            (json!({"client_id": "5", "intent_type": "offer_active", "reference_id": VAGA_A}), vec!["client_id"]),
            (json!({"client_id": CLIENT, "intent_type": "offer_active"}), vec!["reference_id"]),
            (json!({"client_id": CLIENT, "intent_type": "offer_active", "reference_id": "a:b"}), vec!["reference_id"]),
            (
                json!({"client_id": CLIENT, "intent_type": "offer_active", "context": []}),
                vec!["context", "reference_id"],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "reference_id": VAGA_A}),
                vec!["reference_id"],
            ),
            (json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": future}), vec!["at"]),
            (
                json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": "9999-12-31T23:59:59Z"}),
                vec!["at"],
            ),
            (
                json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": "1970-01-01T00:00:00Z"}),
                vec!["at"],
            ),
            (json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "at": "soon"}), vec!["at"]),
            (json!({"client_id": CLIENT, "intent_type": "reactivation_nudge", "now": 1}), vec!["now"]),
        ];
        for (body, fields) in cases {
            let (answer, calls) = world.calls_of("outbound-api", world.post("/intents", &body)).await;
            answer.assert_problem(422, "invalid_request", &fields);
            assert_eq!(calls, [], "{body}");
        }
        assert_eq!(world.rows("IntentsTable").await.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_body_that_is_not_a_json_object_is_refused() {
    play(async |world| {
        let post = || world.request(Method::POST, "/intents").bearer_auth(KEY);
        let json_type = || post().header("content-type", "application/json; charset=utf-8");
        world.send(post().body("{}")).await.assert_problem(415, "unsupported_media_type", &[]);
        world.send(json_type().body("{\"client_id\"")).await.assert_problem(400, "invalid_json", &[]);
        world.send(json_type().body("[]")).await.assert_problem(400, "invalid_json", &[]);
        world.send(json_type().body("")).await.assert_problem(400, "invalid_json", &[]);
        world.send(json_type().body(vec![0xff, 0xfe])).await.assert_problem(400, "invalid_json", &[]);
        let large = format!("{{\"client_id\":\"{}\"}}", "x".repeat(256 * 1024));
        world.send(json_type().body(large)).await.assert_problem(413, "body_too_large", &[]);
        assert_eq!(world.rows("IntentsTable").await.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn an_invalid_idempotency_key_is_refused() {
    play(async |world| {
        for key in ["", "a b", &"k".repeat(256)] {
            let answer = world.post_with_key(key, "/intents", &offer(VAGA_A)).await;
            answer.assert_problem(400, "invalid_idempotency_key", &[]);
        }
        assert_eq!(world.rows("IntentsTable").await.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn every_answer_has_the_id_of_its_request() {
    play(async |world| {
        let good = world.post("/intents", &offer(VAGA_A)).await;
        let bad = world.post("/intents", &json!({})).await;
        assert_eq!(bad.header("x-request-id"), bad.body["request_id"].as_str());
        let ids = [good.header("x-request-id"), bad.header("x-request-id")];
        assert!(ids.iter().all(Option::is_some) && ids[0] != ids[1]);
        let line = world.events("REQUEST_ANSWERED").into_iter().find(|line| line["request_id"].as_str() == ids[1]);
        let line = line.expect("the request has its line");
        assert_eq!((&line["status"], &line["code"]), (&json!(422), &json!("invalid_request")));
    })
    .await;
}

#[tokio::test]
async fn an_invalid_host_header_is_a_bad_request() {
    play(async |world| {
        let answer = world.send(world.request(Method::GET, "/health").header("host", "a b")).await;
        assert_eq!(answer.status, 400);
        assert_eq!(world.send(world.request(Method::GET, "/health")).await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn a_path_without_a_route_is_not_found() {
    play(async |world| {
        assert_eq!(world.get("/nothing/here").await.status, 404);
        assert_eq!(world.send(world.request(Method::DELETE, "/intents")).await.status, 404);
    })
    .await;
}

#[tokio::test]
async fn an_unknown_parameter_is_refused_on_every_route() {
    // Other parties build these addresses: a gateway, a provider, a mail client, a browser.
    let liberal = ["/webhooks/", "/api/payment/webhook/", "/u/", "/console"];
    play(async |world| {
        let described = contract::description();
        let mut asked = 0;
        for (path, methods) in described["paths"].as_object().expect("paths") {
            let path: String = path
                .split('/')
                .map(|part| if part.starts_with('{') { "x" } else { part })
                .collect::<Vec<_>>()
                .join("/");
            if path == "/" || liberal.iter().any(|begin| path.starts_with(begin)) {
                continue;
            }
            for method in methods.as_object().expect("methods").keys().filter(|name| *name != "parameters") {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
                let request = world.request(method, &format!("{path}?dry_run=1")).bearer_auth(KEY);
                world.send(request).await.assert_problem(422, "invalid_request", &["dry_run"]);
                asked += 1;
            }
        }
        assert!(asked > 60, "only {asked} routes were tested");
    })
    .await;
}

#[tokio::test]
async fn a_message_with_an_unknown_parameter_is_not_sent() {
    play(async |world| {
        let body = json!({"channel": "telegram", "to": "987654321", "content": {"text": "Oi"}});
        let answer = world.post_with_key("a", "/outbound/messages?dry_run=1", &body).await;
        answer.assert_problem(422, "invalid_request", &["dry_run"]);
        world.drain().await;
        assert!(world.rows("OutboundTable").await.is_empty(), "a refused message leaves nothing behind");
    })
    .await;
}

/// The routes that return pages, each with the queries that it accepts. An `x` in a path stands for
/// anything that need not exist.
const PAGES: &[(&str, &[&str])] = &[
    ("/intents", &["client_id=00000000-0000-4000-8000-000000000001"]),
    ("/outbound/unknown", &[""]),
    (
        "/explain",
        &[
            "to=ana@example.com",
            "to=42&channel=telegram",
            "client_id=00000000-0000-4000-8000-000000000001",
            "message=msg_0123456789abcdef0123456789abcdef",
        ],
    ),
    ("/suppressions", &["channel=email", "channel=email&list=news", "channel=email&to=ana@example.com"]),
    ("/mailings", &[""]),
    ("/mailings/mlg_0123456789abcdef0123456789abcdef/entries", &["", "status=SENT"]),
    ("/mailings/mlg_0123456789abcdef0123456789abcdef/report", &["", "format=csv"]),
    ("/conversations", &["status=held", "status=needs_human", "status=unanswered"]),
    ("/conversations/ana", &["", "instance=main"]),
    ("/api/admin/bots/loja/queue", &["", "telegram_id=42"]),
];

/// Returns the paths of the description whose GET has a cursor, each with its parameters.
fn pages() -> Vec<String> {
    let described = contract::description();
    let has_cursor = |parameters: &Value| {
        let parameters = parameters.as_array().into_iter().flatten();
        parameters.into_iter().any(|one| one["name"] == "cursor" || one["$ref"] == "#/components/parameters/Cursor")
    };
    let paths = described["paths"].as_object().expect("paths").iter();
    let pages =
        paths.filter(|(_, methods)| has_cursor(&methods["parameters"]) || has_cursor(&methods["get"]["parameters"]));
    pages.map(|(path, _)| path.clone()).collect()
}

#[tokio::test]
async fn every_list_refuses_a_forged_or_long_cursor() {
    let is_of = |path: &str, described: &str| {
        let parts = (path.split('/'), described.split('/'));
        path.split('/').count() == described.split('/').count()
            && parts.0.zip(parts.1).all(|(part, described)| described.starts_with('{') || part == described)
    };
    for described in pages() {
        let is_tested = PAGES.iter().any(|(path, _)| is_of(path, &described));
        assert!(is_tested, "{described} has a cursor: add it to PAGES");
    }
    assert_eq!(pages().len(), PAGES.len());
    play(async |world| {
        world.post("/api/admin/bots", &json!({"slug": "loja", "token_ref": "default"})).await;
        let id = "msg_0123456789abcdef0123456789abcdef";
        let long = format!("001773144000123#{}", "x".repeat(2_000));
        // Each is the text of a place with something wrong in it.
        let forged = [
            &long,
            "5#x",
            "001773144000123#",
            "001773144000123#x",
            &format!("1773144000123#{id}"),
            &format!("001773144000123#{id}x"),
            "001773144000123#mlg_x",
            "x#mlg_0123456789abcdef0123456789abcdef",
            "0/x",
            "0/ENTRY#x",
            "+1/",
            "100/",
            "07",
            "+7",
            "99999999999999999999",
            "x",
            "#",
        ];
        let cursors = forged.iter().map(|place| paging::to_cursor(place));
        let cursors = cursors.chain(["!", "A", "QQ==", &"A".repeat(1_025)].map(str::to_owned));
        for cursor in cursors {
            for (path, queries) in PAGES {
                for query in *queries {
                    let answer = world.get(&format!("{path}?{query}&cursor={cursor}")).await;
                    assert_eq!(answer.status, 422, "{path}?{query} accepts {cursor}: {}", answer.body);
                    answer.assert_problem(422, "invalid_request", &["cursor"]);
                }
            }
        }
    })
    .await;
}

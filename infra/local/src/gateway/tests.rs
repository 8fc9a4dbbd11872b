//! The function and the authorizer in these tests are this test binary itself, started with the
//! arguments that run only `the_function`: a small client of the runtime API that does what the
//! path, or the caller's header, asks for.

use std::collections::BTreeMap;

use axum::body::Body;
use serde_json::json;

use super::*;
use crate::{
    functions::{FunctionSpec, Logs},
    model::Route,
};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_request_reaches_the_function_of_its_route_and_gets_its_answer() {
    let gateway = started(LONG, &Logs::in_memory()).await;
    let (status, body) = post(&gateway, "/echo/a%20b?q=1", "", "hello").await;
    assert_eq!(status, 201);
    assert_eq!(body["pathParameters"], json!({ "id": "a b" }));
    assert_eq!(body["requestContext"]["timeEpoch"], 42);
    assert_eq!((&body["body"], &body["isBase64Encoded"]), (&json!("hello"), &json!(false)));
}

#[tokio::test]
async fn a_request_without_a_route_is_not_found() {
    let gateway = started(LONG, &Logs::in_memory()).await;
    assert_eq!(post(&gateway, "/nowhere", "", "").await, (404, json!({ "message": "Not Found" })));
    assert_eq!(gateway.functions.processes(), []);
}

#[tokio::test]
async fn the_authorizer_decides_and_its_context_reaches_the_function() {
    let gateway = started(LONG, &Logs::in_memory()).await;
    let (status, body) = post(&gateway, "/guarded", "allow", "").await;
    assert_eq!((status, &body["requestContext"]["authorizer"]), (201, &json!({ "lambda": { "who": "me" } })));
    assert_eq!(post(&gateway, "/guarded", "deny", "").await, (403, json!({ "message": "Forbidden" })));
    for broken in ["mumble", "fail"] {
        let answer = post(&gateway, "/guarded", broken, "").await;
        assert_eq!(answer, (500, json!({ "message": "Internal Server Error" })), "{broken}");
    }
}

#[tokio::test]
async fn a_function_that_fails_exits_or_returns_an_invalid_or_large_answer_is_a_bad_gateway() {
    let gateway = started(LONG, &Logs::in_memory()).await;
    for path in ["/fail", "/exit", "/mumble", "/flood"] {
        assert_eq!(post(&gateway, path, "", "").await, (502, json!({ "message": "Bad Gateway" })), "{path}");
    }
}

#[tokio::test]
async fn a_function_that_takes_too_long_is_unavailable() {
    let gateway = started(Duration::from_millis(50), &Logs::in_memory()).await;
    assert_eq!(post(&gateway, "/hang", "", "").await, (503, json!({ "message": "Service Unavailable" })));
    assert_eq!(gateway.functions.busy(), 1);
}

#[tokio::test]
async fn a_body_that_is_too_large_for_the_gateway_or_for_the_function_is_rejected() {
    let gateway = started(LONG, &Logs::in_memory()).await;
    for size in [BODY_LIMIT + 1, BODY_LIMIT] {
        let answer = post(&gateway, "/echo/1", "", &"x".repeat(size)).await;
        assert_eq!(answer, (413, json!({ "message": "Request Entity Too Large" })), "{size}");
    }
}

#[tokio::test]
async fn a_body_of_several_megabytes_reaches_the_function_unchanged() {
    let gateway = started(LONG, &Logs::in_memory()).await;
    // The function returns the event inside its answer, where every quote is escaped twice.
    let sent = "a;\"b\"\r\n".repeat(300_000);
    let (status, body) = post(&gateway, "/echo/1", "", &sent).await;
    assert_eq!((status, body["body"] == sent), (201, true));
}

#[tokio::test]
async fn an_invocation_continues_after_its_client_disconnects() {
    let logs = Logs::in_memory();
    let gateway = started(LONG, &logs).await;
    tokio::select! {
        answer = post(&gateway, "/slow", "", "") => panic!("{answer:?}"),
        line = logs.wait_for(0, LONG, |line| line.line == "begun") => assert!(line.is_some()),
    }
    gateway.functions.quiet().await;
    assert!(logs.since(0).iter().any(|line| line.line == "done"));
}

async fn started(timeout: Duration, logs: &Logs) -> Gateway {
    let functions = Functions::start(vec![spec("function"), spec("authorizer")], logs.clone()).await.unwrap();
    let paths = ["/echo/{id}", "/guarded", "/fail", "/exit", "/mumble", "/flood", "/hang", "/slow"];
    let routes = paths.map(|path| Route {
        method: "POST".to_owned(),
        path: path.to_owned(),
        function: "function".to_owned(),
        authorized: path == "/guarded",
    });
    let api = Api { routes: routes.to_vec(), authorizer: Some("authorizer".to_owned()) };
    Gateway { api, functions, timeout, now: Arc::new(|| 42) }
}

async fn post(gateway: &Gateway, path: &str, caller: &str, body: &str) -> (u16, Value) {
    let request = Request::post(path).header("Content-Type", "text/plain").header("X-Caller", caller);
    let response = gateway.handle(request.body(Body::from(body.to_owned())).unwrap()).await;
    assert!(response.headers().contains_key("apigw-requestid"));
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

fn spec(name: &str) -> FunctionSpec {
    let test = concat!(module_path!(), "::the_function");
    let test = test.split_once("::").map_or(test, |(_crate, path)| path);
    FunctionSpec {
        name: name.to_owned(),
        program: std::env::current_exe().unwrap(),
        arguments: [test, "--exact", "--nocapture"].map(str::to_owned).to_vec(),
        environment: BTreeMap::new(),
        timeout: LONG,
        memory_mb: 128,
        concurrency: 1,
    }
}

/// Does nothing in a normal test run. As a process of a function, serves until it is killed.
#[tokio::test]
async fn the_function() {
    let Ok(api) = std::env::var("AWS_LAMBDA_RUNTIME_API") else { return };
    let api = format!("{api}/2018-06-01/runtime");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    loop {
        let next = client.get(format!("{api}/invocation/next")).send().await.unwrap();
        let id = next.headers()["Lambda-Runtime-Aws-Request-Id"].to_str().unwrap().to_owned();
        let event: Value = next.json().await.unwrap();
        let wanted = if event["type"] == "REQUEST" { &event["headers"]["x-caller"] } else { &event["rawPath"] };
        let (kind, answer) = match wanted.as_str().unwrap().trim_start_matches('/') {
            "allow" => ("response", json!({ "isAuthorized": true, "context": { "who": "me" } })),
            "deny" => ("response", json!({ "isAuthorized": false })),
            "mumble" => ("response", json!({ "statusCode": "mumble", "isAuthorized": "perhaps" })),
            "fail" => ("error", json!({ "errorType": "Function", "errorMessage": "as asked" })),
            "exit" => std::process::exit(3),
            "flood" => ("response", json!({ "statusCode": 200, "body": "x".repeat(6 << 20) })),
            "hang" => std::future::pending().await,
            path => {
                if path == "slow" {
                    println!("begun");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    println!("done");
                }
                ("response", json!({ "statusCode": 201, "body": event.to_string() }))
            }
        };
        client.post(format!("{api}/invocation/{id}/{kind}")).json(&answer).send().await.unwrap();
    }
}

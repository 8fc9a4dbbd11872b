//! API keys and scopes.

use reqwest::Method;
use serde_json::json;
use umavez_platform::api_keys;
use umavez_tests::{KEY, play};

use crate::intents::{CLIENT, VAGA_A, offer};

#[tokio::test]
async fn without_a_key_or_with_a_wrong_one_a_request_is_refused_and_writes_nothing() {
    play(async |world| {
        let request = || world.request(Method::POST, "/intents").json(&offer(VAGA_A));
        world.canary("uv_not_a_key");
        let cases = [
            (request(), "missing_key"),
            (request().header("authorization", "Basic bG9jYWw6"), "missing_key"),
            (request().header("authorization", "Bearer "), "missing_key"),
            (request().bearer_auth("uv_not_a_key"), "invalid_key"),
            (request().bearer_auth(KEY.to_uppercase()), "invalid_key"),
        ];
        for (request, code) in cases {
            let answer = world.send(request).await;
            answer.assert_problem(401, code, &[]);
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        assert_eq!(world.rows("IntentsTable").await.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once() {
    play(async |world| {
        let id = world.create_key("uv_soon_gone", &["intents"]).await;
        let ask = async || {
            world
                .send(world.request(Method::GET, &format!("/intents?client_id={CLIENT}")).bearer_auth("uv_soon_gone"))
                .await
        };
        assert_eq!(ask().await.status, 200);
        let table = world.stack.output("ConfigTable").expect("the table").to_owned();
        let revoke = async || api_keys::revoke(&world.store, &world.invocation(), &table, &id, world.now()).await;
        assert_eq!(revoke().await, Ok(true));
        ask().await.assert_problem(401, "invalid_key", &[]);
        assert_eq!(revoke().await, Ok(true), "revoking again is harmless");
        // Creating the same key again does not restore it.
        world.create_key("uv_soon_gone", &["intents"]).await;
        ask().await.assert_problem(401, "invalid_key", &[]);
    })
    .await;
}

#[tokio::test]
async fn a_key_does_what_its_scopes_say() {
    play(async |world| {
        world.create_key("uv_reader", &["intents:read"]).await;
        world.create_key("uv_none", &[]).await;
        let list = format!("/intents?client_id={CLIENT}");
        let read = |key: &str| world.request(Method::GET, &list).bearer_auth(key);
        let write = |key: &str| world.request(Method::POST, "/intents").bearer_auth(key).json(&offer(VAGA_A));
        assert_eq!(world.send(read("uv_reader")).await.status, 200);
        world.send(write("uv_reader")).await.assert_problem(403, "missing_scope", &[]);
        world.send(read("uv_none")).await.assert_problem(403, "missing_scope", &[]);
        let release = world.request(Method::POST, &format!("/intents/{}/release", "0".repeat(32)));
        let release = release.bearer_auth("uv_reader").json(&json!({"client_id": CLIENT}));
        world.send(release).await.assert_problem(403, "missing_scope", &[]);
        assert_eq!(world.rows("IntentsTable").await.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn keys_are_stored_as_hashes_and_listed_without_secrets() {
    play(async |world| {
        let secret = api_keys::new_secret().expect("randomness");
        assert!(secret.starts_with("uv_") && secret.len() == 51);
        world.canary(&secret);
        let id = world.create_key(&secret, &["intents"]).await;
        let rows = world.rows("ConfigTable").await;
        assert!(rows.iter().any(|row| row["key_id"] == id.as_str()));
        assert!(rows.iter().all(|row| !row.to_string().contains(&secret)));
        let table = world.stack.output("ConfigTable").expect("the table");
        let listed = api_keys::list(&world.store, &world.invocation(), table).await.expect("a list");
        assert!(listed.iter().any(|key| key.key_id == id && key.scopes == ["intents"]));
    })
    .await;
}

#[tokio::test]
async fn health_needs_no_key() {
    play(async |world| {
        let answer = world.send(world.request(Method::GET, "/health")).await;
        assert_eq!((answer.status, &answer.body["status"]), (200, &json!("ok")));
    })
    .await;
}

//! The first ten minutes of a new user: pages, links and a clock that can be advanced and reset.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_tests::{Answer, World, play, play_with};

use crate::conversations::update;
use crate::downsells::{bot, downsell, starts};
use crate::outbound::sending;

const DAY: Duration = Duration::from_secs(86_400);

async fn clock(world: &World, body: &Value) -> Answer {
    world.send(world.request(Method::POST, "/_local/clock").json(body)).await
}

async fn telegram(world: &World, key: &str, to: &str) -> Answer {
    let body = json!({"channel": "telegram", "to": to, "content": {"text": "Oi"}});
    world.post_with_key(key, "/outbound/messages", &body).await
}

#[tokio::test]
async fn the_root_is_a_page_with_links_in_the_language_of_the_browser() {
    play(async |world| {
        let get =
            |language: &'static str| world.send(world.request(Method::GET, "/").header("accept-language", language));
        let page = get("en-US,en;q=0.9").await;
        assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
        let html = page.body.as_str().expect("a page");
        assert!(html.contains("<html lang=\"en\">") && html.contains("href=\"/console\""), "{html}");
        assert!(html.contains("href=\"/_local\""), "the local stack adds its own link: {html}");
        let policy = page.header("content-security-policy").expect("a policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("script-src"), "{policy}");
        let page = get("pt-BR,pt;q=0.9").await;
        assert!(page.body.as_str().expect("a page").contains("<html lang=\"pt-BR\">"));
    })
    .await;
}

#[tokio::test]
async fn the_outputs_of_the_stack_are_urls_of_the_stack() {
    play(async |world| {
        let about = world.send(world.request(Method::GET, "/_local")).await;
        let url = world.stack.url();
        assert_eq!(about.body["outputs"]["ApiUrl"], url);
        assert_eq!(about.body["outputs"]["ConsoleUrl"], format!("{url}/console"));
    })
    .await;
}

#[tokio::test]
async fn numbers_of_the_last_days_use_the_time_of_the_server() {
    play(async |world| {
        world.advance(40 * DAY).await;
        bot(world).await;
        downsell(world, &json!({"delay_minutes": 2_000})).await;
        starts(world, 42, 1).await;
        for days in ["1", "7", "31"] {
            let answer = world.get(&format!("/api/admin/bots/default/metrics?days={days}")).await;
            assert_eq!(answer.body["metrics"]["downsells_scheduled_start"], 1, "{days}: {}", answer.body);
        }
        let wrong = ["days=0", "days=32", "days=x", "days=-1", "days=1&from=2026-01-01T00:00:00Z"];
        for query in wrong {
            let answer = world.get(&format!("/api/admin/bots/default/metrics?{query}")).await;
            answer.assert_problem(422, "invalid_request", &["days"]);
        }
        let page = world.send(world.request(Method::GET, "/console")).await;
        let page = page.body.as_str().expect("a page");
        assert!(!page.contains("new Date()") && !page.contains("Date.now"), "the page reads the browser's clock");
    })
    .await;
}

#[tokio::test]
async fn a_reset_clock_shows_the_time_of_the_machine_and_messages_are_still_sent() {
    play_with(sending(3), async |world| {
        assert_eq!(telegram(world, "a", "1001").await.status, 202);
        world.drain().await;
        world.advance(7 * DAY).await;
        assert_eq!(telegram(world, "b", "1001").await.status, 202);
        world.drain().await;
        let reset = clock(world, &json!({"reset": true})).await;
        assert_eq!((reset.status, &reset.body["offset_seconds"]), (200, &json!(0)), "{}", reset.body);
        let now = umavez_platform::clock::Clock::default().now().seconds();
        assert!((now - 60..=now + 60).contains(&reset.body["unix"].as_i64().expect("seconds")), "{}", reset.body);
        assert_eq!(world.stack.clock().offset_ms(), 0);
        // The bot and the chat were used a week later by the clock. Their rate limits must not
        // delay this message until then.
        assert_eq!(telegram(world, "c", "1001").await.status, 202);
        world.drain().await;
        assert_eq!(crate::outbound::sent(world).len(), 3);
        for body in [json!({}), json!({"reset": false}), json!({"reset": true, "advance_seconds": 1})] {
            assert_eq!(clock(world, &body).await.status, 422, "{body}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_burst_that_waits_while_the_clock_is_reset_is_answered_after_its_wait() {
    play_with(sending(1), async |world| {
        world.advance(7 * DAY).await;
        let body = json!({"debounce_seconds": 5, "max_wait_seconds": 30});
        let put = world.request(Method::PUT, "/instances/telegram/default").bearer_auth(umavez_tests::KEY).json(&body);
        assert_eq!(world.send(put).await.status, 201);
        let webhook = world.request(Method::POST, "/webhooks/telegram/default");
        let webhook = webhook.header("x-telegram-bot-api-secret-token", "local-telegram-secret");
        let answer = world.send(webhook.json(&update(42, 1, "Oi", world.now().seconds()))).await;
        assert_eq!(answer.body["stored"], 1, "{}", answer.body);
        world.drain().await;
        assert_eq!(clock(world, &json!({"reset": true})).await.status, 200);
        world.advance(8 * DAY).await;
        assert_eq!(crate::outbound::sent(world).len(), 1, "it keeps the time at which it was due");
    })
    .await;
}

fn with_parameter(name: &str, value: &str) -> umavez_local::Options {
    let setup = umavez_tests::Setup::default().parameter(name, value);
    umavez_local::Options {
        parameters: setup.parameters,
        start_functions: true,
        ..umavez_local::Options::in_memory(setup.template)
    }
}

#[tokio::test]
async fn a_malformed_parameter_is_refused_by_name_at_the_start() {
    World::build().await;
    let cases = [
        ("IntentTypeOptions", r#"{"my_campaign": {}}"#, "there is no intent type `my_campaign`; the types are "),
        ("IntentTypeOptions", "{bad", "not a JSON object"),
        ("SendRates", "{bad", "not a JSON object"),
        ("SendRates", r#"{"telegram": {"sender": "fast"}}"#, "`fast` is not a rate such as 30/1s"),
        ("UnknownPolicies", r#"{"telegram": "repeat"}"#, "expected `hold` or `resend`"),
        ("ResponderUrl", "localhost:5678", "an http or https URL, or nothing"),
        ("PublicUrl", "https://mail example.com", "an http or https URL, or nothing"),
        ("TelegramUrl", "", "an http or https URL"),
        ("ProviderTimeoutSeconds", "31", "at most 30"),
        ("MessageRetentionDays", "1", "at least 31"),
        ("Stage", "Prod", "lower-case letters"),
        ("LogLevel", "LOUD", "is not allowed"),
    ];
    for (name, value, why) in cases {
        let error = umavez_local::Stack::start(with_parameter(name, value)).await.err().expect("refused").to_string();
        assert!(error.contains(name) && error.contains(why), "{name}={value}: {error}");
    }
}

#[tokio::test]
async fn every_function_runs_when_the_stack_has_started() {
    World::build().await;
    let stack = umavez_local::Stack::start(with_parameter("ResponderUrl", "http://127.0.0.1:5678/webhook/x?a=b"));
    let stack = stack.await.expect("starts");
    assert_eq!(stack.functions().processes().len(), stack.model().functions.len());
    stack.stop().await.expect("stops");
}

#[tokio::test]
async fn the_error_names_a_directory_that_cannot_be_used() {
    World::build().await;
    let options = umavez_local::Options { data: Some("/proc/umavez".into()), ..with_parameter("LogLevel", "INFO") };
    let error = umavez_local::Stack::start(options).await.err().expect("refused").to_string();
    assert!(error.starts_with("/proc/umavez cannot be used: "), "{error}");
}

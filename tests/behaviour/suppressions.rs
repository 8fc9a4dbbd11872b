//! Suppressions of one list of mailings, by an operator and by the link: listed, removed and added
//! again.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_tests::{Answer, KEY, World, play, play_with};

use crate::mailings::{content_without_columns, entries, mailing, sending, upload};
use crate::mailings_sending::link;

async fn left(world: &World, query: &str) -> Vec<Value> {
    let answer = world.get(&format!("/suppressions?channel=email&{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["suppressions"].as_array().expect("a list").clone()
}

async fn delete(world: &World, query: &str) -> Answer {
    world.send(world.request(Method::DELETE, &format!("/suppressions?{query}")).bearer_auth(KEY)).await
}

/// Sends a mailing to Ana. Returns its id, and the reason if she did not get it.
async fn mail_ana(world: &World, file_name: &str, list: &'static str) -> (String, Option<String>) {
    let mut fields = content_without_columns().to_vec();
    fields.push(("list", list));
    let id = upload(world, file_name, "email\nana@example.com\n", &fields).await;
    world.drain().await;
    assert_eq!(mailing(world, &id).await["list"], list, "the name is as it was given");
    let entry = entries(world, &id, "").await.remove(0);
    let got_it = entry["status"] == "SENT";
    assert!(got_it || entry["status"] == "SUPPRESSED", "{entry}");
    (id, entry["reason"].as_str().map(str::to_owned))
}

#[tokio::test]
async fn an_address_suppressed_by_an_operator_is_off_one_list_until_it_is_removed() {
    play_with(sending(2), async |world| {
        world.canary("ana@example.com");
        let body =
            json!({"channel": "email", "to": " ANA@example.com", "list": "clientes  VIP", "note": "by telephone"});
        let added = world.post("/suppressions", &body).await;
        assert_eq!((added.status, &added.body["to"]), (201, &json!("ana@example.com")), "{}", added.body);
        let again = json!({"channel": "email", "to": "ana@example.com", "list": "Clientes\u{200b} V\u{ad}IP"});
        let standing = world.post("/suppressions", &again).await;
        assert_eq!((standing.status, &standing.body), (200, &added.body), "the first suppression is unchanged");

        let (_, why) = mail_ana(world, "a.csv", "Clientes VIP").await;
        assert_eq!(why.as_deref(), Some("unsubscribed"));
        assert_eq!(mail_ana(world, "b.csv", "novidades").await.1, None, "another list is not affected");

        let listed = left(world, "list=CLIENTES%20VIP").await;
        let expected = json!([{"channel": "email", "list": "clientes  VIP", "to": null, "reason": "unsubscribed",
            "email_hash": added.body["email_hash"], "note": "by telephone", "source": "operator", "message_id": null,
            "senders": [], "mailing_id": null, "created_at": added.body["created_at"]}]);
        assert_eq!(json!(listed), expected);
        assert_eq!(left(world, "list=clientes+vip&to=Ana@Example.com").await, [added.body]);
        for elsewhere in ["", "to=ana@example.com", "list=novidades", "list=novidades&to=ana@example.com"] {
            assert_eq!(left(world, elsewhere).await.len(), 0, "{elsewhere}");
        }

        for removed in [true, false] {
            let answer = delete(world, "channel=email&to=ANA@example.com&list=Clientes%20VIP").await;
            let undone =
                json!({"channel": "email", "list": "Clientes VIP", "to": "ana@example.com", "removed": removed});
            assert_eq!((answer.status, answer.body), (200, undone));
        }
        assert_eq!(left(world, "list=clientes%20vip").await.len(), 0);
        assert_eq!(mail_ana(world, "c.csv", "Clientes VIP").await.1, None, "the address is still suppressed");
        assert_eq!(world.events("SUPPRESSION_ADDED").len(), 1);
        assert_eq!(world.events("SUPPRESSION_REMOVED").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_suppression_by_the_link_can_be_removed_and_the_link_suppresses_again() {
    play_with(sending(1), async |world| {
        let (id, _) = mail_ana(world, "a.csv", "clientes").await;
        let link = link(world, "ana@example.com");
        let of_ana = "channel=email&list=clientes&to=ana@example.com";
        for (body, source) in [("List-Unsubscribe=One-Click", "one_click"), ("", "page")] {
            assert_eq!(world.send(world.request(Method::POST, &link).body(body)).await.status, 200);
            let listed = left(world, "list=clientes").await;
            assert_eq!((&listed[0]["source"], &listed[0]["mailing_id"]), (&json!(source), &json!(id)), "{listed:?}");
            // The channel itself has no suppression, so none is removed.
            assert_eq!(delete(world, "channel=email&to=ana@example.com").await.body["removed"], false);
            assert_eq!(delete(world, of_ana).await.body["removed"], true);
        }
        assert_eq!(world.send(world.request(Method::POST, &link)).await.status, 200);
        assert_eq!(mail_ana(world, "b.csv", "Clientes").await.1.as_deref(), Some("unsubscribed"));
    })
    .await;
}

#[tokio::test]
async fn the_suppressions_of_a_list_are_paged_and_invalid_queries_are_refused() {
    play(async |world| {
        for n in 0..20 {
            let body = json!({"channel": "email", "to": format!("user{n}@example.com"), "list": "clientes"});
            assert_eq!(world.post("/suppressions", &body).await.status, 201);
        }
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = world.get(&format!("/suppressions?channel=email&list=clientes&limit=3{cursor}")).await.body;
            let rows = page["suppressions"].as_array().expect("a list");
            assert!(rows.len() <= 3);
            found.extend(rows.iter().map(|row| row["email_hash"].as_str().expect("a hash").to_owned()));
            let Some(next) = page["cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!((found.len(), found.iter().collect::<BTreeSet<_>>().len()), (20, 20));

        let body = json!({"channel": "telegram", "to": "42", "list": "clientes"});
        world.post("/suppressions", &body).await.assert_problem(422, "invalid_request", &["list"]);
        for (query, field) in [
            ("channel=whatsapp&to=5511912345678&list=clientes", "list"),
            // An empty variable of a caller must not remove the suppression of the whole channel.
            ("channel=email&to=user1@example.com&list=", "list"),
            ("channel=email&to=user1@example.com&list=%20", "list"),
            ("channel=email&to=user1&list=clientes", "to"),
        ] {
            world.get(&format!("/suppressions?{query}")).await.assert_problem(422, "invalid_request", &[field]);
            delete(world, query).await.assert_problem(422, "invalid_request", &[field]);
        }
    })
    .await;
}

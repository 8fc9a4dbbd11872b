//! The same file under another name, and the same name with another encoding of its accents.

use futures::future::join_all;
use serde_json::json;
use umavez_domain::mailings::content_hash;
use umavez_tests::{Answer, Setup, World, play_with};

use crate::mailings::{content_without_columns, mailing, objects, order, recipients, sending, upload, upload_to};
use crate::mailings_sending::file;

async fn upload_strict(world: &World, name: &str, file: &str) -> Answer {
    upload_to(world, "/mailings?mode=strict", name, file.as_bytes(), &content_without_columns()).await
}

async fn upload_lenient(world: &World, name: &str, file: &str) -> Answer {
    upload_to(world, "/mailings", name, file.as_bytes(), &content_without_columns()).await
}

/// Requests an upload form. The caller may announce the hash of the file.
async fn announce(world: &World, name: &str, mode: &str, sha256: Option<&str>) -> Answer {
    let content = json!({"subject": "Oi", "text": "Oi {{unsubscribe_url}}", "from": "loja@example.com"});
    let mut body = json!({"filename": name, "mode": mode, "sha256": sha256});
    body.as_object_mut().expect("an object").extend(content.as_object().expect("an object").clone());
    world.post("/mailings/uploads", &body).await
}

#[tokio::test]
async fn the_same_file_under_another_name_is_reported_with_the_earlier_mailing() {
    play_with(sending(4), async |world| {
        let first = upload(world, "a.csv", &file(2), &content_without_columns()).await;
        let again = upload_lenient(world, "b.csv", &file(2)).await;
        assert_eq!((again.status, &again.body["created"]), (202, &json!(true)), "{}", again.body);
        assert_eq!(again.body["sameContentAs"], json!(first));
        assert!(again.text("/warnings/0").contains(&first), "{}", again.body);
        world.drain().await;
        assert_eq!(mailing(world, &again.text("/mailingId")).await["same_content_as"], json!(first));
        assert!(mailing(world, &first).await["same_content_as"].is_null());
        assert!(recipients(world).values().all(|times| *times == 2), "it is a warning, not a refusal");
        let third = upload_strict(world, "c.csv", &file(2)).await;
        third.assert_problem(409, "same_content", &[]);
        assert!(third.text("/detail").contains(&first), "the answer does not name the first mailing: {}", third.body);
        let same = upload_strict(world, "a.csv", &file(2)).await;
        assert_eq!(
            (same.status, &same.body["created"]),
            (200, &json!(false)),
            "the same name is the same mailing: {}",
            same.body
        );
    })
    .await;
}

#[tokio::test]
async fn an_upload_refused_for_its_content_leaves_nothing() {
    play_with(sending(1), async |world| {
        upload(world, "a.csv", &file(1), &content_without_columns()).await;
        world.drain().await;
        let (rows, kept) = (world.rows("MailingsTable").await.len(), objects(world).await);
        upload_strict(world, "b.csv", &file(1)).await.assert_problem(409, "same_content", &[]);
        let hash = content_hash(file(1).as_bytes());
        announce(world, "c.csv", "strict", Some(&hash)).await.assert_problem(409, "same_content", &[]);
        assert_eq!((world.rows("MailingsTable").await.len(), objects(world).await), (rows, kept));
        let other = upload_strict(world, "b.csv", "email\n").await;
        assert_eq!(other.status, 422, "the name is taken: {}", other.body);
    })
    .await;
}

#[tokio::test]
async fn of_strict_uploads_of_one_file_under_many_names_exactly_one_is_accepted() {
    play_with(sending(1), async |world| {
        let names: Vec<_> = (0..8).map(|n| format!("{n}.csv")).collect();
        let csv = file(1);
        let answers = join_all(names.iter().map(|name| upload_strict(world, name, &csv))).await;
        let (taken, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 202);
        assert_eq!(taken.len(), 1, "{answers:?}");
        refused.iter().for_each(|answer| answer.assert_problem(409, "same_content", &[]));
        world.drain().await;
        assert_eq!(objects(world).await, 1, "a refused upload left its file");
        assert_eq!(recipients(world).len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_repeated_request_is_answered_with_its_first_warning_and_logged() {
    play_with(sending(2), async |world| {
        let first = upload(world, "a.csv", &file(1), &content_without_columns()).await;
        let hash = content_hash(file(1).as_bytes());
        let body = json!({"filename": "b.csv", "sha256": hash});
        let asked = world.post_with_key("k", "/mailings/uploads", &body).await;
        let again = world.post_with_key("k", "/mailings/uploads", &body).await;
        for answer in [&asked, &again] {
            assert_eq!((answer.status, &answer.body["created"]), (202, &json!(true)), "{}", answer.body);
            assert_eq!(answer.body["sameContentAs"], json!(first));
        }
        assert_eq!(upload_lenient(world, "a.csv", &file(2)).await.body["contentMatches"], false);
        let shown = world.events("MAILING_REPEATED");
        let shown: Vec<_> =
            shown.iter().map(|line| (line["mailing_id"].clone(), line["content_matches"].clone())).collect();
        assert_eq!(shown, [(asked.body["mailingId"].clone(), json!(true)), (json!(first), json!(false))]);
        assert_eq!(world.post_form(&again.body["upload"], file(1).as_bytes()).await, 204);
        let content = json!({"subject": "Oi", "text": "Oi {{unsubscribe_url}}", "from": "loja@example.com"});
        let path = format!("/mailings/{}/content", asked.text("/mailingId"));
        assert_eq!(crate::ingest::put(world, &path, &content).await.status, 200);
        world.drain().await;
    })
    .await;
}

#[tokio::test]
async fn the_hash_of_an_unannounced_file_is_known_after_its_import() {
    play_with(sending(2), async |world| {
        let first = announce(world, "a.csv", "lenient", None).await;
        assert_eq!(world.post_form(&first.body["upload"], file(1).as_bytes()).await, 204);
        world.drain().await;
        let second = announce(world, "b.csv", "lenient", None).await;
        assert!(second.body["sameContentAs"].is_null(), "the file was not read yet: {}", second.body);
        assert_eq!(world.post_form(&second.body["upload"], file(1).as_bytes()).await, 204);
        world.drain().await;
        let shown = mailing(world, &second.text("/mailingId")).await;
        assert_eq!(shown["same_content_as"], first.body["mailingId"], "{shown}");
        let hash = content_hash(file(1).as_bytes());
        announce(world, "c.csv", "strict", Some(&hash)).await.assert_problem(409, "same_content", &[]);
    })
    .await;
}

#[tokio::test]
async fn a_canceled_mailing_counts_and_one_that_failed_does_not() {
    play_with(Setup::default(), async |world| {
        let hash = "ab".repeat(32);
        let first = announce(world, "a.csv", "strict", Some(&hash)).await;
        assert_eq!(order(world, &first.text("/mailingId"), "cancel").await.status, 200);
        announce(world, "b.csv", "strict", Some(&hash)).await.assert_problem(409, "same_content", &[]);
        let other = "cd".repeat(32);
        assert_eq!(announce(world, "c.csv", "strict", Some(&other)).await.status, 202);
        world.advance(std::time::Duration::from_secs(9 * 3_600)).await;
        world.tick("Recovery").await;
        let next = announce(world, "d.csv", "strict", Some(&other)).await;
        assert_eq!(next.status, 202, "the file of the first was never uploaded: {}", next.body);
        assert!(next.body["sameContentAs"].is_null());
        announce(world, "e.csv", "strict", Some(&other)).await.assert_problem(409, "same_content", &[]);
    })
    .await;
}

#[tokio::test]
async fn a_name_is_the_same_in_every_encoding_of_its_accents() {
    play_with(sending(1), async |world| {
        let first = upload(world, "relatório.csv", &file(1), &content_without_columns()).await;
        let again = upload_lenient(world, "relato\u{301}rio.csv", &file(1)).await;
        assert_eq!((again.status, again.text("/mailingId")), (200, first.clone()), "{}", again.body);
        let invisible = upload_lenient(world, "\u{feff}rela\u{200b}to\u{301}rio\u{ad}.csv", &file(1)).await;
        assert_eq!((invisible.status, invisible.text("/mailingId")), (200, first.clone()), "{}", invisible.body);
        assert_eq!(mailing(world, &first).await["file_name"], "relatório.csv", "people read the first name");
        world.drain().await;
    })
    .await;
}

#[tokio::test]
async fn people_read_a_name_as_it_was_given() {
    play_with(sending(1), async |world| {
        let name = "relato\u{301}rio\u{200b}.csv";
        let id = upload(world, name, &file(1), &content_without_columns()).await;
        assert_eq!(mailing(world, &id).await["file_name"], name);
        world.drain().await;
    })
    .await;
}

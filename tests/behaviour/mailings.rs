//! A CSV becomes a mailing once: uploads, names, valid and invalid files, content, lists and links.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};
use umavez_domain::mailings::{ContentRequest, MailingId};
use umavez_platform::aws::Aws;
use umavez_platform::mailings::{Mailings, OrderOutcome};
use umavez_tests::{Answer, Expected, KEY, Setup, World, play, play_with};

/// A rate at which nothing waits for a slot.
pub fn sending(sent: usize) -> Setup {
    let setup = Setup::default().parameter("SendRates", r#"{"email": {"sender": "2000/1s"}}"#);
    setup.expecting(Expected { sent, ..Expected::default() })
}

pub fn content() -> Vec<(&'static str, &'static str)> {
    vec![
        ("subject", "Olá {{nome}}"),
        ("html", "<p>Oi {{nome}}, <a href=\"{{unsubscribe_url}}\">sair</a></p>"),
        ("from", "Loja <loja@example.com>"),
    ]
}

const BOUNDARY: &str = "a-boundary";

/// Returns a form with a file, as HTTP clients send it.
pub fn form(file_name: &str, file: &[u8], fields: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        let part = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend_from_slice(part.as_bytes());
    }
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{file_name}\"\r\nContent-Type: text/csv\r\n\r\n"
    );
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(file);
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    body
}

pub async fn upload_to(world: &World, path: &str, file_name: &str, file: &[u8], fields: &[(&str, &str)]) -> Answer {
    let request = world.request(Method::POST, path).bearer_auth(KEY);
    let request = request.header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"));
    world.send(request.body(form(file_name, file, fields))).await
}

pub async fn upload(world: &World, file_name: &str, file: &str, fields: &[(&str, &str)]) -> String {
    let answer = upload_to(world, "/mailings", file_name, file.as_bytes(), fields).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    assert_eq!(answer.body["created"], true, "{}", answer.body);
    answer.text("/mailingId")
}

async fn csv(world: &World, query: &str, file: &[u8]) -> Answer {
    let request = world.request(Method::POST, &format!("/mailings?{query}")).bearer_auth(KEY);
    world.send(request.header("content-type", "text/csv").body(file.to_vec())).await
}

pub async fn mailing(world: &World, id: &str) -> Value {
    let answer = world.get(&format!("/mailings/{id}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

pub async fn entries(world: &World, id: &str, query: &str) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let answer = world.get(&format!("/mailings/{id}/entries?limit=100&{query}&cursor={cursor}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        all.extend(answer.body["entries"].as_array().expect("a list").iter().cloned());
        match answer.body["cursor"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return all,
        }
    }
}

/// Returns the recipients of mails, and how many each got.
pub fn recipients(world: &World) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for sent in world.stack.catcher().sent(Some("email"), None) {
        sent.to.into_iter().for_each(|to| *all.entry(to).or_default() += 1);
    }
    all
}

pub async fn order(world: &World, id: &str, what: &str) -> Answer {
    world.post(&format!("/mailings/{id}/{what}"), &json!({})).await
}

/// Returns the number of stored files.
pub async fn objects(world: &World) -> usize {
    let s3 = Aws::at_endpoint(world.stack.front_url(), "test").s3();
    let bucket = world.stack.output("UploadsBucket").expect("a bucket");
    let listed = s3.list_objects_v2().bucket(bucket).prefix("mailings/").send().await.expect("a list");
    listed.contents().len()
}

#[tokio::test]
async fn a_csv_becomes_a_mailing_and_each_recipient_gets_it_once() {
    play_with(sending(3), async |world| {
        world.canary("ana@example.com");
        let file = "nome;E-mail\nAna;ana@example.com\nBia; BIA@example.com \n\"Ana, de novo\";ana@EXAMPLE.com\nX;not an address\n\
            Cid <b>;cid@example.com\n;\n";
        let mut fields = content();
        fields.push(("text", "{{e-mail}} {{email}}"));
        let id = upload(world, "monthly.csv", file, &fields).await;
        world.drain().await;
        let shown = mailing(world, &id).await;
        assert_eq!(shown["status"], "COMPLETED", "{shown}");
        let counts = json!({"pending": 0, "sending": 0, "sent": 3, "failed": 0, "invalid": 1, "unknown": 0,
            "suppressed": 0, "canceled": 0});
        assert_eq!((&shown["counts"], &shown["total"], &shown["progress"]), (&counts, &json!(4), &json!(1.0)), "{shown}");
        let import = &shown["import"];
        assert_eq!((&import["state"], &import["rows"]), (&json!("DONE"), &json!(5)), "{shown}");
        assert_eq!((&import["recipients"], &import["duplicates"], &import["invalid"]), (&json!(3), &json!(1), &json!(1)));
        assert!(shown["started_at"].is_string() && shown["finished_at"].is_string(), "{shown}");
        assert_eq!(shown["list"], "loja@example.com", "one list per sender");
        assert!(recipients(world).values().all(|times| *times == 1), "{:?}", recipients(world));

        let sent = world.stack.catcher().sent(Some("email"), Some("cid@example.com"));
        let simple = &sent[0].body["Content"]["Simple"];
        assert_eq!(simple["Subject"]["Data"], "Olá Cid <b>");
        assert_eq!(simple["Body"]["Text"]["Data"], "cid@example.com cid@example.com", "both names of the column work");
        let html = simple["Body"]["Html"]["Data"].as_str().expect("html");
        let begins = format!("<p>Oi Cid &lt;b&gt;, <a href=\"{}/u/mlg_", world.stack.url());
        assert!(html.starts_with(&begins), "{html}");
        let header = |name: &str| {
            let headers = simple["Headers"].as_array().expect("headers");
            headers.iter().find(|header| header["Name"] == name).map(|header| header["Value"].clone())
        };
        assert_eq!(header("List-Unsubscribe-Post"), Some(json!("List-Unsubscribe=One-Click")));
        assert!(header("List-Unsubscribe").is_some());

        let report = world.get(&format!("/mailings/{id}/report")).await.body;
        let lines = json!([
            {"line": 4, "reason": "duplicate", "of_line": 2},
            {"line": 5, "reason": "email_malformed", "of_line": null},
        ]);
        assert_eq!(report["lines"], lines, "{report}");
        let all = entries(world, &id, "").await;
        assert_eq!(all.len(), 4);
        let ana = all.iter().find(|entry| entry["email"] == "ana@example.com").expect("Ana");
        assert_eq!((&ana["status"], &ana["attempts"], &ana["line"]), (&json!("SENT"), &json!(1), &json!(2)), "{ana}");
        assert!(ana["external_id"].is_string() && ana["sent_at"].is_string() && ana["last_attempt"].is_string());
        assert!(ana["delivered_at"].is_string(), "the event of SES is recorded: {ana}");
        assert_eq!(entries(world, &id, "status=INVALID").await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn the_report_of_a_file_comes_as_json_and_as_csv() {
    play_with(sending(1), async |world| {
        let file = "email,nome\na@example.com,A\n=cmd,B\nA@example.com,C\n";
        let id = upload(world, "a.csv", file, &content()).await;
        world.drain().await;
        let request = world.request(Method::GET, &format!("/mailings/{id}/report")).bearer_auth(KEY);
        let answer = world.send(request.header("accept", "text/csv")).await;
        assert_eq!(answer.header("content-type"), Some("text/csv; charset=utf-8"));
        let Value::String(text) = &answer.body else { panic!("no CSV: {}", answer.body) };
        let lines: Vec<_> = text.split("\r\n").collect();
        assert_eq!(lines[0], "line,reason,of_line,detail");
        assert!(lines[1].starts_with("3,email_malformed,,") && lines[2].starts_with("4,duplicate,2,"), "{text}");
        assert_eq!(world.get(&format!("/mailings/{id}/report?format=xml")).await.status, 422);
    })
    .await;
}

/// Returns all items of a list, read in pages of this size.
async fn paged(world: &World, path: &str, name: &str, limit: usize) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let answer = world.get(&format!("{path}?limit={limit}&cursor={cursor}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let page = answer.body[name].as_array().expect("a list");
        assert!(page.len() <= limit, "{} in a page of {limit}", page.len());
        all.extend(page.iter().cloned());
        match answer.body["cursor"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return all,
        }
    }
}

#[tokio::test]
async fn lists_are_complete_in_pages_of_any_size() {
    play_with(sending(0), async |world| {
        // The lines are so long that there is more than one shard.
        let pad = "x".repeat(4_000);
        let rows: String = (0..40)
            .map(|n| if n % 2 == 0 { format!("user{n}@example.com,{pad}\n") } else { format!("nobody {n},{pad}\n") })
            .collect();
        let id = csv(world, "filename=a.csv", format!("email,pad\n{rows}").as_bytes()).await.text("/mailingId");
        for name in ["b.csv", "c.csv"] {
            csv(world, &format!("filename={name}"), b"email\na@example.com\n").await;
        }
        world.drain().await;
        for limit in [1, 5, 14, 15, 100] {
            let lines = paged(world, &format!("/mailings/{id}/report"), "lines", limit).await;
            let numbers: Vec<_> = lines.iter().filter_map(|line| line["line"].as_u64()).collect();
            let invalid: Vec<_> = (0..20).map(|n| 3 + 2 * n).collect();
            assert_eq!(numbers, invalid, "in pages of {limit}");
            let entries = paged(world, &format!("/mailings/{id}/entries"), "entries", limit).await;
            let lines: std::collections::BTreeSet<_> = entries.iter().map(|entry| entry["line"].as_u64()).collect();
            assert_eq!((entries.len(), lines.len()), (40, 40), "in pages of {limit}");
            assert_eq!(paged(world, "/mailings", "mailings", limit).await.len(), 3, "in pages of {limit}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_upload_with_the_same_name_is_the_same_mailing_for_every_caller() {
    play_with(sending(1), async |world| {
        let id = upload(
            world,
            "test.csv",
            "email\nuser@example.com\n",
            &[("subject", "a"), ("text", "b"), ("from", "a@b.co")],
        )
        .await;
        world.drain().await;
        let fields = [("subject", "a"), ("text", "b"), ("from", "a@b.co")];
        let other_content = [("subject", "x"), ("text", "b"), ("from", "a@b.co")];
        let warned = upload_to(world, "/mailings", "test.csv", b"email\nuser@example.com\n", &other_content).await;
        assert!(warned.body["warnings"][0].is_string(), "{}", warned.body);
        let again = upload_to(world, "/mailings", "test.csv", b"email\nuser@example.com\n", &fields).await;
        assert_eq!(again.status, 200);
        let shown = json!({"mailingId": id, "status": "COMPLETED", "created": false, "contentMatches": true});
        assert_eq!(again.body, shown);
        let other =
            upload_to(world, "/mailings", "C:\\fakepath\\test.csv", b"email\nother@example.com\n", &fields).await;
        assert_eq!((&other.body["created"], &other.body["contentMatches"]), (&json!(false), &json!(false)));
        assert_eq!(other.body["mailingId"], id.as_str());
        let strict =
            upload_to(world, "/mailings?mode=strict", "test.csv", b"email\nother@example.com\n", &fields).await;
        strict.assert_problem(409, "name_taken", &[]);
        let same = upload_to(world, "/mailings?mode=strict", "test.csv", b"email\nuser@example.com\n", &fields).await;
        assert_eq!(same.status, 200, "{}", same.body);
        world.create_key("uv_another_key", &["mailings"]).await;
        let body = form("test.csv", b"email\nuser@example.com\n", &fields);
        let request = world.request(Method::POST, "/mailings").bearer_auth("uv_another_key");
        let request = request.header("content-type", format!("multipart/form-data; boundary={BOUNDARY}")).body(body);
        assert_eq!(world.send(request).await.body["mailingId"], id.as_str(), "another key gets the same mailing");
        world.drain().await;
        assert_eq!(objects(world).await, 1, "an upload that lost the name left its file");
        let listed = world.get("/mailings").await.body;
        assert_eq!(listed["mailings"].as_array().map(Vec::len), Some(1), "{listed}");
    })
    .await;
}

#[tokio::test]
async fn concurrent_uploads_with_one_name_create_one_mailing() {
    play_with(sending(2), async |world| {
        let one = async |n: usize| {
            let file = if n.is_multiple_of(2) {
                "email\na@example.com\nb@example.com\n"
            } else {
                "email\nc@example.com\nd@example.com\n"
            };
            let fields = content_without_columns();
            upload_to(world, "/mailings", "one.csv", file.as_bytes(), &fields).await
        };
        let answers = futures::future::join_all((0..8).map(one)).await;
        let ids: std::collections::BTreeSet<_> = answers.iter().map(|answer| answer.text("/mailingId")).collect();
        assert_eq!(ids.len(), 1, "the requests got different mailings");
        assert_eq!(answers.iter().filter(|answer| answer.body["created"] == true).count(), 1);
        world.drain().await;
        assert_eq!((objects(world).await, recipients(world).len()), (1, 2));
    })
    .await;
}

pub fn content_without_columns() -> [(&'static str, &'static str); 3] {
    [("subject", "Oi"), ("text", "Oi"), ("from", "loja@example.com")]
}

#[tokio::test]
async fn a_repeated_upload_with_its_key_gets_the_same_answer() {
    play_with(sending(1), async |world| {
        let ask = async |key: &str, file: &str| {
            let request =
                world.request(Method::POST, "/mailings").bearer_auth(KEY).header("idempotency-key", key.to_owned());
            let request = request.header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"));
            world.send(request.body(form("k.csv", file.as_bytes(), &content_without_columns()))).await
        };
        let first = ask("k1", "email\na@example.com\n").await;
        // A form with another boundary is the same form.
        let body =
            String::from_utf8(form("k.csv", b"email\na@example.com\n", &content_without_columns())).expect("text");
        let request = world.request(Method::POST, "/mailings").bearer_auth(KEY).header("idempotency-key", "k1");
        let request = request.header("content-type", "multipart/form-data; boundary=other");
        let other = world.send(request.body(body.replace(BOUNDARY, "other"))).await;
        assert!(other.is_replayed(), "{}", other.body);
        let again = ask("k1", "email\na@example.com\n").await;
        assert!(again.is_replayed() && !first.is_replayed());
        assert_eq!((&again.body["mailingId"], &again.body["created"]), (&first.body["mailingId"], &json!(true)));
        ask("k1", "email\nb@example.com\n").await.assert_problem(422, "idempotency_key_reused", &[]);
        assert_eq!(ask("k2", "email\na@example.com\n").await.body["created"], false);
        let request = world.request(Method::POST, "/mailings?filename=other.csv").bearer_auth(KEY);
        let request = request.header("idempotency-key", "k1").header("content-type", "text/csv");
        let other = world.send(request.body("email\na@example.com\n")).await;
        other.assert_problem(422, "idempotency_key_reused", &[]);
    })
    .await;
}

#[tokio::test]
async fn bad_files_and_fields_are_refused_and_leave_nothing() {
    play(async |world| {
        let utf16_without_mark: Vec<u8> = "email\na@b.co\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (file, says) in [
            (&b""[..], "no rows"),
            (b"email\n", "no rows"),
            (b"  \n\n", "no rows"),
            (b"PK\x03\x04\0\0\0", "NUL"),
            (b"name,phone\nAna,1\n", "email"),
            (b"email,nome\na@b.co,\"Ana\nb@b.co,Bia\n", "line 2"),
            (b"email,nome\na@b.co,Jo\xe3o\n", "latin1"),
            (b"email\na@b.co\0\n", "NUL"),
            (&utf16_without_mark, "NUL"),
        ] {
            let answer = csv(world, "filename=bad.csv", file).await;
            answer.assert_problem(422, "invalid_request", &["file"]);
            let detail = answer.body["errors"][0]["detail"].as_str().unwrap_or_default();
            assert!(detail.contains(says), "{detail}");
        }
        let good = b"email\na@b.co\n";
        csv(world, "", good).await.assert_problem(422, "invalid_request", &["filename"]);
        csv(world, "filename=a.csv&encoding=ebcdic", good).await.assert_problem(422, "invalid_request", &["encoding"]);
        csv(world, "filename=a.csv&mode=loose", good).await.assert_problem(422, "invalid_request", &["mode"]);
        for (fields, named) in [
            (vec![("subject", "a")], vec!["from", "text"]),
            (vec![("subject", "a\r\nBcc: x@y.co"), ("text", "b"), ("from", "a@b.co")], vec!["subject"]),
            (vec![("subject", "a"), ("text", "b"), ("from", "a@b.co\nBcc: x@y.co")], vec!["from"]),
            (vec![("subject", "a"), ("text", "{{nome"), ("from", "a@b.co")], vec!["text"]),
            (vec![("subject", "{{nome}}"), ("text", "b"), ("from", "a@b.co")], vec!["subject"]),
            (vec![("subject", "a"), ("text", "b"), ("from", "a@b.co"), ("colour", "red")], vec!["colour"]),
            (
                vec![("subject", "a"), ("text", "{{unsubscribe_url}}"), ("from", "a@b.co"), ("unsubscribe", "false")],
                vec!["text"],
            ),
            (vec![("subject", "a"), ("text", "b"), ("from", "a@b.co"), ("unsubscribe", "maybe")], vec!["unsubscribe"]),
        ] {
            let answer = upload_to(world, "/mailings", "bad.csv", good, &fields).await;
            answer.assert_problem(422, "invalid_request", &named);
        }
        let request = world.request(Method::POST, "/mailings").bearer_auth(KEY);
        world.send(request.json(&json!({}))).await.assert_problem(415, "unsupported_media_type", &[]);
        let request = world.request(Method::POST, "/mailings").bearer_auth(KEY);
        let broken = request.header("content-type", "multipart/form-data; boundary=x").body("--x\r\nnonsense");
        world.send(broken).await.assert_problem(400, "invalid_form", &[]);
        let large = format!("email\n{}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa@example.com\n".repeat(110_000));
        let answer = csv(world, "filename=a.csv", large.as_bytes()).await;
        answer.assert_problem(413, "body_too_large", &[]);
        assert!(
            world.rows("MailingsTable").await.is_empty() && objects(world).await == 0,
            "a refused upload left something"
        );
    })
    .await;
}

#[tokio::test]
async fn files_are_read_in_several_encodings_and_with_several_separators() {
    let utf16: Vec<u8> =
        "\u{feff}email\tnome\na@example.com\tJoão\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let files: [(&str, Vec<u8>); 6] = [
        ("filename=a.csv", b"\xef\xbb\xbfemail,nome\r\na@example.com,Jo\xc3\xa3o\r\n".to_vec()),
        ("filename=b.csv", utf16),
        ("filename=c.csv&encoding=latin1", b"nome;email\nJo\xe3o;a@example.com\n".to_vec()),
        ("filename=d.csv", b"sep=;\nnome;email\n\"Jo\xc3\xa3o\";a@example.com".to_vec()),
        ("filename=e.csv", b"email,nome,obs\na@example.com,Jo\xc3\xa3o,\"duas\nlinhas\"\n".to_vec()),
        ("filename=f.csv&email_column=contato", b"contato,nome,email\na@example.com,Jo\xc3\xa3o,x@y.co\n".to_vec()),
    ];
    play_with(sending(files.len()), async |world| {
        for (query, file) in &files {
            // Bodies that are not text by their header arrive unchanged.
            let request = world.request(Method::POST, &format!("/mailings?{query}")).bearer_auth(KEY);
            let request = request.header("content-type", "application/octet-stream").body(file.clone());
            let answer = world.send(request).await;
            assert_eq!(answer.status, 202, "{query}: {}", answer.body);
            let id = answer.text("/mailingId");
            world.drain().await;
            let shown = mailing(world, &id).await;
            assert_eq!(
                (&shown["status"], &shown["import"]["recipients"]),
                (&json!("PENDING"), &json!(1)),
                "{query}: {shown}"
            );
            let preview = json!({"subject": "Oi {{nome}}", "text": "x", "from": "a@b.co"});
            let request = world.request(Method::PUT, &format!("/mailings/{id}/content")).bearer_auth(KEY);
            assert_eq!(world.send(request.json(&preview)).await.status, 200);
            world.drain().await;
            let sent = world.stack.catcher().sent(Some("email"), Some("a@example.com"));
            let subject = &sent.last().expect("sent").body["Content"]["Simple"]["Subject"]["Data"];
            assert_eq!(subject, "Oi João", "{query}");
        }
        let plain = csv(world, "filename=g.csv", b"x@example.com\ny@example.com\n").await;
        world.drain().await;
        let shown = mailing(world, &plain.text("/mailingId")).await;
        assert_eq!(shown["import"]["recipients"], 2, "addresses alone need no header: {shown}");
    })
    .await;
}

#[tokio::test]
async fn a_mailing_without_content_waits_for_it() {
    play_with(sending(1), async |world| {
        let answer = csv(world, "filename=a.csv", b"email,nome\na@example.com,Ana\n").await;
        let id = answer.text("/mailingId");
        world.drain().await;
        let shown = mailing(world, &id).await;
        assert_eq!((&shown["status"], &shown["has_content"]), (&json!("PENDING"), &json!(false)), "{shown}");
        world.post(&format!("/mailings/{id}/preview"), &json!({})).await.assert_problem(409, "wrong_state", &[]);
        let put = async |body: Value| {
            let request = world.request(Method::PUT, &format!("/mailings/{id}/content")).bearer_auth(KEY);
            world.send(request.json(&body)).await
        };
        let unknown = put(json!({"subject": "{{sobrenome}}", "text": "x", "from": "a@b.co"})).await;
        unknown.assert_problem(422, "invalid_request", &["subject"]);
        let body = json!({"subject": "Oi {{nome}}", "html": "<b>{{nome}}</b>", "from": "a@b.co"});
        assert_eq!(put(body.clone()).await.body["status"], "QUEUED");
        world.drain().await;
        assert_eq!(mailing(world, &id).await["status"], "COMPLETED");
        assert_eq!(put(body).await.status, 200, "the same content again is accepted");
        let late = put(json!({"subject": "Outro", "text": "x", "from": "a@b.co"})).await;
        late.assert_problem(409, "wrong_state", &[]);
    })
    .await;
}

#[tokio::test]
async fn content_is_checked_against_the_columns_when_it_is_written() {
    play_with(sending(0), async |world| {
        let id = csv(world, "filename=a.csv", b"email,nome\na@example.com,Ana\n").await.text("/mailingId");
        world.drain().await;
        // Like a request that read the mailing before its import ended.
        let table = world.stack.output("MailingsTable").expect("a table").to_owned();
        let mailings = Mailings { store: world.store.clone(), table };
        let asked = json!({"subject": "Oi {{nmoe}}", "text": "x", "from": "a@b.co"});
        let asked = ContentRequest::read(asked.as_object().expect("an object")).expect("content");
        let id = MailingId::parse(&id).expect("an id");
        let put = mailings.put_content(&world.invocation(), &id, &asked).await.expect("an answer");
        assert!(matches!(&put, Some((_, OrderOutcome::Misfits(fields))) if fields.contains_key("subject")), "{put:?}");
        assert_eq!(mailing(world, id.as_str()).await["has_content"], false);
    })
    .await;
}

#[tokio::test]
async fn a_mailing_can_be_previewed_and_tested_before_it_is_sent() {
    play_with(sending(1), async |world| {
        let file = "email,Nome\nana@example.com,Ana & Cia\nbia@example.com,Bia\n";
        let answer = csv(world, "filename=a.csv", file.as_bytes()).await;
        let id = answer.text("/mailingId");
        world.drain().await;
        order(world, &id, "pause").await;
        let body = json!({"subject": "Oi {{nome}}", "html": "<b>{{nome}}</b>", "text": "{{nome}} {{unsubscribe_url}}",
            "from": "Loja <loja@example.com>", "reply_to": "sac@example.com"});
        let request = world.request(Method::PUT, &format!("/mailings/{id}/content")).bearer_auth(KEY);
        assert_eq!(world.send(request.json(&body)).await.body["status"], "PAUSED");
        let preview = world.post(&format!("/mailings/{id}/preview"), &json!({"email": "ANA@example.com"})).await;
        assert_eq!(preview.body["html"], "<b>Ana &amp; Cia</b>", "{}", preview.body);
        assert_eq!(preview.body["subject"], "Oi Ana & Cia");
        let given = json!({"email": "bia@example.com", "variables": {"Nome": "B."}});
        assert_eq!(world.post(&format!("/mailings/{id}/preview"), &given).await.body["subject"], "Oi B.");
        assert_eq!(world.post(&format!("/mailings/{id}/preview"), &json!({"email": "x@y.co"})).await.status, 404);
        let test = json!({"to": "Eu@Example.com", "variables": {"nome": "Eu"}});
        let path = format!("/mailings/{id}/test");
        let sent = world.post_with_key("t1", &path, &test).await;
        assert_eq!((sent.status, &sent.body["status"]), (202, &json!("QUEUED")), "{}", sent.body);
        assert_eq!(world.post_with_key("t1", &path, &test).await.body["message_id"], sent.body["message_id"]);
        world.drain().await;
        let mails = world.stack.catcher().sent(Some("email"), Some("eu@example.com"));
        assert_eq!(mails.len(), 1);
        assert_eq!(mails[0].body["Content"]["Simple"]["Subject"]["Data"], "Oi Eu");
        assert_eq!(mails[0].body["ReplyToAddresses"], json!(["sac@example.com"]));
        let headers = mails[0].body["Content"]["Simple"]["Headers"].as_array().expect("the headers of a real mail");
        let names: Vec<_> = headers.iter().filter_map(|header| header["Name"].as_str()).collect();
        assert_eq!(names, ["List-Unsubscribe", "List-Unsubscribe-Post"]);
        assert_eq!(mailing(world, &id).await["counts"]["pending"], 2, "a test counts as a recipient");
    })
    .await;
}

#[tokio::test]
async fn without_a_public_url_links_use_the_host_of_the_request() {
    play_with(sending(0), async |world| {
        let id = csv(world, "filename=a.csv", b"email\nana@example.com\n").await.text("/mailingId");
        world.drain().await;
        order(world, &id, "pause").await;
        let body = json!({"subject": "Oi", "text": "{{unsubscribe_url}}", "from": "loja@example.com"});
        let request = world.request(Method::PUT, &format!("/mailings/{id}/content")).bearer_auth(KEY);
        assert_eq!(world.send(request.json(&body)).await.status, 200);
        let preview = world.post(&format!("/mailings/{id}/preview"), &json!({})).await;
        assert_eq!(preview.body["text"], format!("{}/u/preview", world.stack.url()), "{}", preview.body);
    })
    .await;
}

#[tokio::test]
async fn an_unknown_mailing_is_not_found() {
    play(async |world| {
        for id in ["mlg_00000000000000000000000000000000", "x"] {
            for path in [format!("/mailings/{id}"), format!("/mailings/{id}/entries"), format!("/mailings/{id}/report")]
            {
                assert_eq!(world.get(&path).await.status, 404, "{path}");
            }
            for what in ["pause", "resume", "cancel", "retry-failed"] {
                order(world, id, what).await.assert_problem(404, "not_found", &[]);
            }
        }
        world
            .get("/mailings/mlg_00000000000000000000000000000000/entries?status=LOST&cursor=x&limit=0")
            .await
            .assert_problem(422, "invalid_request", &["limit", "status", "cursor"]);
    })
    .await;
}

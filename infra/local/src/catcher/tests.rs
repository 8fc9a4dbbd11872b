use serde_json::json;

use super::*;

const AT: i64 = 1_700_000_000_123;
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

#[test]
fn a_telegram_message_gets_the_answer_of_the_bot_api_and_is_recorded_in_full() {
    let catcher = catcher();
    let body = json!({ "chat_id": 77, "text": "olá", "reply_markup": { "inline_keyboard": [] } });
    let caught = telegram(&catcher, "/bot1234:SECRET/sendMessage", JSON, &body.to_string());
    let answer = json!({
        "ok": true,
        "result": {
            "message_id": 1,
            "from": { "id": 1234, "is_bot": true, "first_name": "Local bot", "username": "local_1234_bot" },
            "chat": { "id": 77, "first_name": "Local", "type": "private" },
            "date": 1_700_000_000,
            "text": "olá",
        },
    });
    assert_eq!((caught.status, &caught.body), (200, &answer));
    let expected = Sent {
        number: 1,
        channel: "telegram",
        at: "2023-11-14T22:13:20.123Z".to_owned(),
        caller: "sender".to_owned(),
        to: vec!["77".to_owned()],
        method: "POST".to_owned(),
        path: "/bot1234:***/sendMessage".to_owned(),
        headers: [("content-type".to_owned(), JSON.to_owned())].into(),
        body,
        status: 200,
        answer,
    };
    assert_eq!(catcher.sent(None, None), [expected]);
}

#[test]
fn a_form_a_query_and_multipart_are_read_like_json() {
    let catcher = catcher();
    let multipart = "--xyz\r\nContent-Disposition: form-data; name=\"chat_id\"\r\n\r\n-1005\r\n--xyz\r\n\
        Content-Disposition: form-data; name=\"photo\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\nPNG\r\n\
        --xyz\r\nContent-Disposition: form-data; name=\"caption\"\r\n\r\nlook\r\n--xyz--\r\n";
    let photo = telegram(&catcher, "/bot1:S/sendPhoto", "multipart/form-data; boundary=xyz", multipart);
    assert_eq!(photo.body["result"]["chat"]["type"], "supergroup");
    assert_eq!(photo.body["result"]["caption"], "look");
    assert!(photo.body["result"]["photo"][0]["file_id"].is_string());
    let form = telegram(&catcher, "/bot1:S/sendMessage", FORM, "chat_id=%40news&text=a+b");
    assert_eq!(
        (&form.body["result"]["text"], &form.body["result"]["chat"]["type"]),
        (&json!("a b"), &json!("channel"))
    );
    let query = telegram(&catcher, "/bot1:S/sendVideo?chat_id=9&video=abc", "", "");
    assert_eq!((query.status, &query.body["result"]["video"]["duration"]), (200, &json!(1)));
    let to: Vec<_> = catcher.sent(None, None).into_iter().flat_map(|sent| sent.to).collect();
    assert_eq!(to, ["-1005", "@news", "9"]);
    assert_eq!(catcher.sent(None, None)[0].body, json!({ "raw": multipart }));
}

#[test]
fn a_request_that_telegram_would_reject_gets_telegrams_error_and_is_recorded() {
    let catcher = catcher();
    let refused = |path: &str, body: Value| {
        let caught = telegram(&catcher, path, JSON, &body.to_string());
        assert_eq!((&caught.body["ok"], &caught.body["error_code"]), (&json!(false), &json!(caught.status)));
        (caught.status, caught.body["description"].as_str().unwrap().to_owned())
    };
    let not_found = (404, "Not Found".to_owned());
    for path in ["/", "/bot1:S", "/bot1:S/sendNothing", "/botS/sendMessage", "/bot1:/sendMessage", "/bot1:S/a/b"] {
        assert_eq!(refused(path, json!({ "chat_id": 1, "text": "x" })), not_found, "{path}");
    }
    let bad = |why: &str| (400, format!("Bad Request: {why}"));
    assert_eq!(refused("/bot1:S/sendMessage", json!({ "text": "x" })), bad("chat_id is empty"));
    assert_eq!(refused("/bot1:S/sendMessage", json!({ "chat_id": 1 })), bad("message text is empty"));
    assert_eq!(refused("/bot1:S/sendPhoto", json!({ "chat_id": 1 })), bad("there is no photo in the request"));
    assert_eq!(catcher.sent(Some("telegram"), None).len(), 9);
}

#[test]
fn a_whatsapp_text_gets_the_answer_of_evolution() {
    let catcher = catcher();
    let caught = evolution(&catcher, "/message/sendText/main", json!({ "number": "5511999", "text": "oi" }));
    let answer = json!({
        "key": { "remoteJid": "5511999@s.whatsapp.net", "fromMe": true, "id": "3EB0018BCFE5687B000001" },
        "message": { "extendedTextMessage": { "text": "oi" } },
        "messageTimestamp": "1700000000",
        "status": "PENDING",
    });
    assert_eq!((caught.status, caught.body), (201, answer));
    assert_eq!(catcher.sent(Some("whatsapp"), Some("5511999")).len(), 1);
}

#[test]
fn the_answer_to_whatsapp_media_depends_on_its_type() {
    let catcher = catcher();
    let body =
        json!({ "number": "5511999@s.whatsapp.net", "mediatype": "image", "media": "https://x/y", "caption": "c" });
    let caught = evolution(&catcher, "/message/sendMedia/main", body);
    assert_eq!(caught.body["key"]["remoteJid"], "5511999@s.whatsapp.net");
    assert_eq!(caught.body["message"]["imageMessage"]["caption"], "c");
    assert_eq!(catcher.sent(None, Some("5511999")).len(), 1);
}

#[test]
fn a_request_that_evolution_would_reject_gets_an_error_in_its_format() {
    let catcher = catcher();
    let nowhere = evolution(&catcher, "/message/sendNothing/main", json!({}));
    let message = json!(["Cannot POST /message/sendNothing/main"]);
    let expected = json!({ "status": 404, "error": "Not Found", "response": { "message": message } });
    assert_eq!((nowhere.status, nowhere.body), (404, expected));
    let empty = evolution(&catcher, "/message/sendText/main", json!({ "number": "1" }));
    assert_eq!(empty.body["response"]["message"], json!([["instance requires property \"text\""]]));
    let body = Bytes::from(json!({ "number": "1", "text": "x" }).to_string());
    let keyless = catcher.evolution("sender", &Method::POST, "/message/sendText/main", &HeaderMap::new(), &body);
    assert_eq!(keyless.status, 401);
}

#[test]
fn an_email_gets_the_answer_of_ses_and_is_listed_under_each_address() {
    let catcher = catcher();
    let body = json!({
        "Destination": { "ToAddresses": ["Ana <ana@example.com>"], "BccAddresses": ["bob@example.com"] },
        "Content": { "Simple": { "Subject": { "Data": "s" } } },
    });
    let caught = ses(&catcher, "/v2/email/outbound-emails", body);
    let id = caught.body["MessageId"].as_str().unwrap();
    assert!(id.starts_with("0100018bcfe5687b-") && id.ends_with("-000000"), "{id}");
    assert_eq!(catcher.sent(Some("email"), Some("ana@example.com")).len(), 1);
    assert_eq!(catcher.sent(Some("email"), Some("bob@example.com")).len(), 1);
    assert_eq!(catcher.sent(Some("email"), Some("eve@example.com")).len(), 0);
}

#[test]
fn an_email_is_recorded_in_full_and_one_with_a_header_that_ses_rejects_fails() {
    let catcher = catcher();
    let with = |header: &str| {
        json!({
            "Destination": { "ToAddresses": ["ana@example.com"] },
            "ReplyToAddresses": ["reply@example.com"],
            "EmailTags": [{ "Name": "n", "Value": "v" }],
            "Content": { "Simple": { "Subject": { "Data": "s" }, "Headers": [{ "Name": header, "Value": "<u>" }] } },
        })
    };
    assert_eq!(ses(&catcher, "/v2/email/outbound-emails", with("List-Unsubscribe")).status, 200);
    assert_eq!(catcher.sent(None, None)[0].body, with("List-Unsubscribe"));
    let refused = ses(&catcher, "/v2/email/outbound-emails", with("To"));
    assert_eq!((refused.status, refused.body.get("MessageId")), (400, None));
}

#[test]
fn an_error_of_ses_has_its_type_in_a_header() {
    let catcher = catcher();
    for (path, status, kind) in [
        ("/v2/email/nothing", 404, "UnknownOperationException"),
        ("/v2/email/outbound-emails", 400, "BadRequestException"),
    ] {
        let caught = ses(&catcher, path, json!({}));
        assert_eq!(caught.status, status);
        assert!(caught.headers.contains(&("x-amzn-errortype".to_owned(), kind.to_owned())));
        assert!(caught.body["message"].is_string());
    }
}

#[test]
fn a_responder_replies_with_the_texts_of_the_messages() {
    let catcher = catcher();
    let message = |text: Value| json!({ "kind": "audio", "text": text });
    for (messages, reply) in [
        (json!([message(json!("olá")), message(json!("tudo bem?"))]), json!("olá\ntudo bem?")),
        (json!([{ "kind": "image" }, message(Value::Null), message(json!("b")), {}]), json!("[image]\n[audio]\nb\n[]")),
        (json!([message(json!(""))]), json!("[audio]")),
        (json!([]), Value::Null),
        (json!("none"), Value::Null),
    ] {
        let caught = responder(&catcher, &Method::POST, "/any/path?a=b", &json!({ "messages": messages }).to_string());
        assert_eq!((caught.status, caught.body), (200, json!({ "reply": reply })), "{messages}");
    }
    assert_eq!(responder(&catcher, &Method::POST, "/", "{}").body, json!({ "reply": null }));
}

#[test]
fn a_responder_accepts_only_post() {
    let catcher = catcher();
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let caught = responder(&catcher, &method, "/", r#"{"messages": [{"text": "x"}]}"#);
        let error = format!("a responder accepts only POST, not {method}");
        assert_eq!((caught.status, caught.body), (405, json!({ "error": error })));
    }
    let kept: Vec<_> = catcher.sent(Some("responder"), None).iter().map(|sent| sent.status).collect();
    assert_eq!(kept, [405, 405, 405]);
}

#[test]
fn requests_to_a_responder_are_listed_only_by_channel_and_not_as_sent_messages() {
    let catcher = catcher();
    let body = json!({ "batch_id": "b-1", "messages": [{ "text": "oi" }] });
    responder(&catcher, &Method::POST, "/hook", &body.to_string());
    responder(&catcher, &Method::POST, "/hook", r#"{"batch_id": 7}"#);
    evolution(&catcher, "/message/sendText/main", json!({ "number": "b-1", "text": "oi" }));
    let channels = |channel, to| catcher.sent(channel, to).iter().map(|sent| sent.channel).collect::<Vec<_>>();
    assert_eq!(channels(None, None), ["whatsapp"]);
    assert_eq!(channels(None, Some("b-1")), ["whatsapp"]);
    assert_eq!(channels(Some("whatsapp"), None), ["whatsapp"]);
    assert_eq!(channels(Some("responder"), None), ["responder", "responder"]);
    assert_eq!(catcher.sent(Some("responder"), None)[1].to, Vec::<String>::new());
    let asked = catcher.sent(Some("responder"), Some("b-1"));
    let [asked] = &asked[..] else { panic!("one: {asked:?}") };
    assert_eq!((asked.path.as_str(), &asked.body, &asked.answer), ("/hook", &body, &json!({ "reply": "oi" })));
}

#[test]
fn secrets_are_not_recorded() {
    let catcher = catcher();
    let secrets = [
        ("apikey", "SECRET"),
        ("authorization", "Bearer SECRET"),
        ("webhook-signature", "v1,SECRET v1,SECRET"),
        ("x-amz-security-token", "SECRET"),
        ("x-plain", "kept"),
    ];
    let headers = headers(&secrets);
    for path in [
        "/bot12:SECRET/sendMessage",
        "/bot12%3ASECRET/getMe",
        "/botSECRET",
        "/BOT1:SECRET",
        "/file/bot12:SECRET/a",
        "/12:SECRET/getMe",
    ] {
        catcher.telegram("sender", &Method::POST, path, &headers, &Bytes::new());
        catcher.evolution("sender", &Method::POST, "/message/sendText/main", &headers, &Bytes::new());
        catcher.ses("sender", &Method::POST, "/v2/email/outbound-emails", &headers, &Bytes::new());
        catcher.responder("sender", &Method::POST, "/", &headers, &Bytes::new());
    }
    let asked = catcher.sent(Some("responder"), None);
    assert_eq!(asked[0].headers["webhook-signature"], "***");
    let kept = serde_json::to_string(&[catcher.sent(None, None), asked].concat()).unwrap();
    assert!(!kept.contains("SECRET"), "{kept}");
    let first = &catcher.sent(None, None)[0];
    assert_eq!((first.headers["authorization"].as_str(), first.headers["apikey"].as_str()), ("Bearer ***", "***"));
    assert_eq!(first.headers["x-plain"], "kept");
}

#[test]
fn paths_without_secrets_are_recorded_unchanged() {
    let catcher = catcher();
    evolution(&catcher, "/message/sendText/bot%20one?a=b%20c", json!({ "number": "1", "text": "x" }));
    telegram(&catcher, "/bot12:SECRET/sendMessage?chat_id=1&text=a%3Ab", "", "");
    let paths: Vec<_> = catcher.sent(None, None).into_iter().map(|sent| sent.path).collect();
    assert_eq!(paths, ["/message/sendText/bot%20one?a=b%20c", "/bot12:***/sendMessage?chat_id=1&text=a%3Ab"]);
}

#[test]
fn the_oldest_requests_are_dropped_and_clear_does_not_reset_the_numbers() {
    let catcher = Catcher::with_capacity(Arc::new(|| AT), 2);
    let numbers = || catcher.sent(None, None).iter().map(|sent| sent.number).collect::<Vec<_>>();
    for _ in 0..3 {
        ses(&catcher.clone(), "/v2/email/outbound-emails", json!({ "Content": {} }));
    }
    assert_eq!((numbers(), catcher.dropped()), (vec![2, 3], 1));
    catcher.clear();
    assert!(numbers().is_empty());
    ses(&catcher, "/v2/email/outbound-emails", json!({ "Content": {} }));
    assert_eq!(numbers(), [4]);
}

fn catcher() -> Catcher {
    Catcher::new(Arc::new(|| AT))
}

fn telegram(catcher: &Catcher, path: &str, content_type: &str, body: &str) -> Caught {
    let headers = headers(&[("content-type", content_type)]);
    catcher.telegram("sender", &Method::POST, path, &headers, &Bytes::from(body.to_owned()))
}

fn evolution(catcher: &Catcher, path: &str, body: Value) -> Caught {
    let headers = headers(&[("content-type", JSON), ("apikey", "k")]);
    catcher.evolution("sender", &Method::POST, path, &headers, &Bytes::from(body.to_string()))
}

fn ses(catcher: &Catcher, path: &str, body: Value) -> Caught {
    catcher.ses("sender", &Method::POST, path, &headers(&[("content-type", JSON)]), &Bytes::from(body.to_string()))
}

fn responder(catcher: &Catcher, method: &Method, path: &str, body: &str) -> Caught {
    let headers = headers(&[("content-type", JSON), ("webhook-signature", "v1,s")]);
    catcher.responder("sender", method, path, &headers, &Bytes::from(body.to_owned()))
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

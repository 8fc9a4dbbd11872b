use serde_json::json;

use super::history::{Email, Event, history};

const AT: i64 = 1_700_000_000_020;

fn events(to: &[&str]) -> Vec<Event> {
    let request = json!({
        "FromEmailAddress": "Loja <loja@example.com>",
        "Destination": {"ToAddresses": to},
        "Content": {"Simple": {"Subject": {"Data": "oi"}, "Headers": [{"Name": "X-A", "Value": "1"}]}},
        "EmailTags": [{"Name": "entry", "Value": "e1"}],
        "ConfigurationSetName": "set",
    });
    history(&Email::of(&request, "id-1", "set", AT))
}

fn kinds(to: &[&str]) -> Vec<&'static str> {
    events(to).into_iter().map(|event| event.kind).collect()
}

#[test]
fn an_email_to_an_ordinary_address_is_sent_and_delivered() {
    let [sent, delivered] = &events(&["Ana <ana@example.com>"])[..] else { panic!("two events") };
    assert_eq!((sent.kind, sent.detail_type), ("Send", "Email Sent"));
    assert_eq!(sent.detail["send"], json!({}));
    assert_eq!((delivered.kind, delivered.detail_type), ("Delivery", "Email Delivered"));
    assert_eq!(delivered.detail["eventType"], "Delivery");
    assert_eq!(delivered.detail["delivery"]["recipients"], json!(["ana@example.com"]));
    for event in [sent, delivered] {
        let mail = &event.detail["mail"];
        assert_eq!(mail["messageId"], "id-1");
        assert_eq!(mail["timestamp"], "2023-11-14T22:13:20.020Z");
        assert_eq!(mail["source"], "Loja <loja@example.com>");
        assert_eq!(mail["destination"], json!(["ana@example.com"]));
        assert_eq!(mail["commonHeaders"]["subject"], "oi");
        assert_eq!(
            mail["tags"],
            json!({
                "entry": ["e1"], "ses:configuration-set": ["set"], "ses:from-domain": ["example.com"],
                "ses:operation": ["SendEmail"],
            })
        );
    }
}

#[test]
fn the_mailbox_simulator_behaves_as_on_aws() {
    for (mailbox, expected) in [
        ("success", &["Send", "Delivery"][..]),
        ("ooto", &["Send", "Delivery"]),
        ("bounce", &["Send", "Bounce"]),
        ("suppressionlist", &["Send", "Bounce"]),
        ("complaint", &["Send", "Delivery", "Complaint"]),
    ] {
        assert_eq!(kinds(&[&format!("{mailbox}@simulator.amazonses.com")]), expected, "{mailbox}");
        assert_eq!(kinds(&[&format!("{mailbox}+label@Simulator.amazonses.com")]), expected, "{mailbox}");
        assert_eq!(kinds(&[&format!("{mailbox}@example.com")]), ["Send", "Delivery"], "{mailbox}");
    }
}

#[test]
fn a_bounce_names_its_reason_and_its_recipients() {
    let bounced = |to: &str| events(&[to]).pop().unwrap().detail["bounce"].clone();
    let bounce = bounced("bounce+a@simulator.amazonses.com");
    assert_eq!((&bounce["bounceType"], &bounce["bounceSubType"]), (&json!("Permanent"), &json!("General")));
    assert_eq!(
        bounce["bouncedRecipients"],
        json!([{
            "emailAddress": "bounce+a@simulator.amazonses.com", "action": "failed", "status": "5.1.1",
            "diagnosticCode": "smtp; 550 5.1.1 user unknown",
        }])
    );
    assert!(bounce["feedbackId"].is_string() && bounce["timestamp"].is_string());
    let listed = bounced("suppressionlist@simulator.amazonses.com");
    assert_eq!((&listed["bounceType"], &listed["bounceSubType"]), (&json!("Permanent"), &json!("Suppressed")));
}

#[test]
fn recipients_with_the_same_fate_share_one_event() {
    let to = ["a@x.com", "bounce@simulator.amazonses.com", "b@x.com", "complaint@simulator.amazonses.com"];
    assert_eq!(kinds(&to), ["Send", "Delivery", "Bounce", "Complaint"]);
    let events = events(&to);
    assert_eq!(
        events[1].detail["delivery"]["recipients"],
        json!(["a@x.com", "b@x.com", "complaint@simulator.amazonses.com"])
    );
    assert_eq!(
        events[3].detail["complaint"]["complainedRecipients"],
        json!([{"emailAddress": "complaint@simulator.amazonses.com"}])
    );
}

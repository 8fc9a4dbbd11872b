use serde_json::json;

use super::*;
use crate::ingest::upload_key;
use crate::mailings::files::{inline_object, uploaded_object};

const BACKFILL: &str = "bf_0b4ec3b807650135984a7da9a632dc79";

fn mailing() -> MailingId {
    MailingId::of("monthly.csv", 0)
}

fn s3_put(key: &str) -> String {
    let object = json!({"key": key, "size": 7, "eTag": "\"e1\""});
    json!({"Records": [{"eventSource": "aws:s3", "s3": {"bucket": {"name": "b"}, "object": object}}]}).to_string()
}

mod sends {
    use super::*;

    #[test]
    fn every_released_version_of_a_job_is_read() {
        let v1 = r#"{"kind":"message","v":1,"id":"msg_0123456789abcdef0123456789abcdef"}"#;
        let id = MessageId::parse("msg_0123456789abcdef0123456789abcdef").expect("an id");
        let job = SendJob::Message { id: id.clone() };
        assert_eq!(SendJob::read(v1), Ok(job.clone()));
        let emitted = emit_message(&id, Priority::Start, 3, None);
        assert_eq!(SendJob::read(&emitted.body), Ok(job));
        assert_eq!(emitted.queue, "outbound-start");
        assert_eq!(emitted.id, "msg_0123456789abcdef0123456789abcdef/3");
    }

    #[test]
    fn a_job_for_an_offer_contains_the_contact_and_the_offer_id() {
        let v1 = r#"{"kind":"offer","v":1,"contact":"loja#7902699be42c8a8e46fbbb4501726517","id":"off_0123456789abcdef0123456789abcdef"}"#;
        let (contact, id) =
            (ContactId::of("loja", 7), OfferId::parse("off_0123456789abcdef0123456789abcdef").expect("an id"));
        let job = SendJob::Offer { contact: contact.clone(), id: id.clone() };
        assert_eq!(SendJob::read(v1), Ok(job.clone()));
        let emitted = emit_offer(&contact, &id, 5, None);
        assert_eq!(SendJob::read(&emitted.body), Ok(job));
        assert_eq!((emitted.queue.as_str(), emitted.seq), ("outbound-downsell", 5));
    }

    #[test]
    fn an_unknown_version_and_a_malformed_job_are_refused() {
        let id = "msg_0123456789abcdef0123456789abcdef";
        let [v2, other] = [("message", 2), ("other", 1)].map(|(kind, v)| json!({"kind": kind, "v": v, "id": id}));
        let malformed = r#"{"kind":"message","v":1,"id":"off_0123456789abcdef0123456789abcdef"}"#;
        for body in ["", "{}", &v2.to_string(), &other.to_string(), malformed] {
            assert!(SendJob::read(body).is_err(), "{body}");
        }
    }
}

mod conversations {
    use super::*;

    #[test]
    fn every_released_version_of_a_job_is_read() {
        let conversation = ConversationId::parse("conv_0123456789abcdef0123456789abcdef").expect("an id");
        let v1 = r#"{"kind":"wake","v":1,"conversation_id":"conv_0123456789abcdef0123456789abcdef","received":7}"#;
        let wake = WakeUp { conversation, received: 7 };
        assert_eq!(WakeUp::read(v1), Ok(wake.clone()));
        assert_eq!(WakeUp::read(&wake.body()), Ok(wake.clone()));
        let emit = wake.emit("state", 3, Timestamp::from_millis(5));
        assert_eq!((emit.seq, emit.queue.as_str(), emit.not_before), (3, "conversations", Some(5)));
        assert_eq!(emit.id, "conv_0123456789abcdef0123456789abcdef/state/3");
    }

    #[test]
    fn an_unknown_version_and_a_malformed_job_are_refused() {
        let v2 = r#"{"kind":"wake","v":2,"conversation_id":"conv_0123456789abcdef0123456789abcdef","received":1}"#;
        let malformed = r#"{"kind":"wake","v":1,"conversation_id":"conv_0","received":1}"#;
        for body in ["", "{}", v2, malformed] {
            assert!(WakeUp::read(body).is_err(), "{body}");
        }
    }
}

mod backfills {
    use super::*;

    fn id() -> BackfillId {
        BackfillId::parse(BACKFILL).expect("an id")
    }

    #[test]
    fn every_released_version_of_a_job_is_read() {
        let v1 = format!(r#"{{"kind":"backfill","v":1,"id":"{BACKFILL}"}}"#);
        assert_eq!(BackfillJob::read(&v1), Ok(BackfillJob::Work(id())));
        assert_eq!(BackfillJob::read(&emit_backfill(&id(), 7).body), Ok(BackfillJob::Work(id())));
        let v2 = format!(r#"{{"kind":"backfill","v":2,"id":"{BACKFILL}"}}"#);
        for other in ["", "{}", &v2, r#"{"kind":"backfill","v":1,"id":"x"}"#] {
            assert!(BackfillJob::read(other).is_err(), "{other}");
        }
    }

    #[test]
    fn an_upload_is_recognized_by_its_key_and_other_objects_are_ignored() {
        let of = |key: &str| BackfillJob::read(&s3_put(key));
        let upload = Uploaded { id: id(), etag: "e1".to_owned(), size: 7 };
        assert_eq!(of(&upload_key(&id())), Ok(BackfillJob::Uploaded(vec![upload])));
        assert_eq!(of("backfills/x"), Ok(BackfillJob::Uploaded(Vec::new())));
        assert_eq!(of(&format!("other/{BACKFILL}")), Ok(BackfillJob::Uploaded(Vec::new())));
        let test = r#"{"Service":"Amazon S3","Event":"s3:TestEvent"}"#;
        assert_eq!(BackfillJob::read(test), Ok(BackfillJob::Uploaded(Vec::new())));
    }
}

mod mailings {
    use super::*;

    #[test]
    fn every_released_version_of_a_job_is_read() {
        let v1 = |kind: &str| format!(r#"{{"kind":"{kind}","v":1,"mailing_id":"{}"}}"#, mailing());
        assert_eq!(ImportJob::read(&v1("import")), Ok(ImportJob::Import(mailing())));
        assert_eq!(ImportJob::read(&v1("hand_out")), Ok(ImportJob::HandOut(mailing())));
        assert_eq!(emit_import(&mailing(), 2).body, v1("import"));
        assert_eq!(emit_hand_out(&mailing(), 2).body, v1("hand_out"));
        let shard = format!(r#"{{"kind":"shard","v":1,"mailing_id":"{}","shard":7,"seq":3}}"#, mailing());
        assert_eq!(ShardJob::read(&shard), Ok(ShardJob { mailing: mailing(), shard: 7, seq: 3 }));
        let emitted = emit_shard(&mailing(), 7, 3, None, None);
        assert_eq!((emitted.body, emitted.id), (shard, format!("{}-07/3", mailing())));
    }

    #[test]
    fn an_unknown_version_and_a_malformed_job_are_refused() {
        for body in ["", "{}", "[]", r#"{"kind":"import","v":1,"mailing_id":"x"}"#] {
            assert!(ImportJob::read(body).is_err(), "{body}");
            assert!(ShardJob::read(body).is_err(), "{body}");
        }
        let v2 = format!(r#"{{"kind":"import","v":2,"mailing_id":"{}"}}"#, mailing());
        assert!(ImportJob::read(&v2).is_err());
    }

    #[test]
    fn an_s3_event_counts_as_an_upload_only_for_an_uploaded_file() {
        let of = |key: &str| ImportJob::read(&s3_put(key));
        let arrived = Uploaded { id: mailing(), etag: "e1".to_owned(), size: 7 };
        assert_eq!(of(&uploaded_object(&mailing())), Ok(ImportJob::Uploaded(vec![arrived])));
        assert_eq!(of(&inline_object(&mailing(), "r/1")), Ok(ImportJob::Uploaded(Vec::new())));
        assert_eq!(of("other/x.csv"), Ok(ImportJob::Uploaded(Vec::new())));
        assert_eq!(ImportJob::read(r#"{"Event":"s3:TestEvent"}"#), Ok(ImportJob::Uploaded(Vec::new())));
    }
}

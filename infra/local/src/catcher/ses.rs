//! SES v2: `POST /v2/email/outbound-emails`.

mod headers;

use serde_json::{Value, json};

use super::{Caught, Provider, Reading, Stamp, request::Request};

pub(super) const PROVIDER: Provider = Provider { channel: "email", goes_out: true, read, is_secret: |_| false };

fn read(request: &Request, stamp: Stamp) -> Reading {
    let to = recipients(&request.body);
    let mut answer = answer(request, stamp);
    answer.headers.push(("x-amzn-requestid".to_owned(), uuid(stamp)));
    Reading { to, answer }
}

fn answer(request: &Request, stamp: Stamp) -> Caught {
    match (request.method.as_str(), request.path().as_slice()) {
        ("POST", ["v2", "email", "outbound-emails"]) if request.body["Content"].is_object() => {
            match headers::check(&request.body["Content"]["Simple"]["Headers"]) {
                Ok(()) => Caught::json(200, json!({ "MessageId": message_id(stamp) })),
                Err(why) => error(400, "BadRequestException", &why),
            }
        }
        ("POST", ["v2", "email", "outbound-emails"]) => {
            error(400, "BadRequestException", "1 validation error detected: Value at 'content' must not be null")
        }
        _ => error(404, "UnknownOperationException", "the catcher supports only POST /v2/email/outbound-emails"),
    }
}

/// Returns the recipients of a request: To, Cc and Bcc.
pub(crate) fn recipients(request: &Value) -> Vec<String> {
    let lists = ["ToAddresses", "CcAddresses", "BccAddresses"].map(|list| &request["Destination"][list]);
    let mailboxes = lists.into_iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    mailboxes.map(|mailbox| address(mailbox).to_owned()).collect()
}

/// Returns `a@b` for `Name <a@b>`.
pub(crate) fn address(mailbox: &str) -> &str {
    let bracketed = mailbox.rsplit_once('<').and_then(|(_, rest)| rest.split_once('>'));
    bracketed.map_or(mailbox, |(address, _)| address).trim()
}

/// Returns an id in the format of SES: a prefix with the time, an id, and a suffix.
fn message_id(stamp: Stamp) -> String {
    format!("0100{:012x}-{}-000000", stamp.at_ms, uuid(stamp))
}

fn uuid(stamp: Stamp) -> String {
    format!("{:08x}-0000-4000-8000-{:012x}", stamp.seconds() as u32, stamp.number)
}

fn error(status: u16, kind: &str, message: &str) -> Caught {
    let mut caught = Caught::json(status, json!({ "message": message }));
    caught.headers.push(("x-amzn-errortype".to_owned(), kind.to_owned()));
    caught
}

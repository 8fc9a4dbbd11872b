//! The closed lists of codes: the page of codes is generated from the source, and no list that
//! callers or operators see is missing from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use regex_lite::Regex;
use serde_json::Value;
use umavez_local::binaries::workspace_root;
use umavez_tests::contract::description;

use crate::docs::{is_generated, read};
use crate::sources;

/// The folder with the lists.
const DOMAIN: &str = "shared/domain/src";

/// The closed lists on the page of codes: heading, introduction, file and name of each.
const LISTS: &[(&str, &str, &str, &str)] = &[
    ("States of a delivery", "`status` of a message.", "delivery/state.rs", "State"),
    ("States of a recipient", "`status` of an entry of a mailing.", "mailings/entry.rs", "EntryState"),
    ("Decisions", "`code` of an entry of `GET /explain` and of a message's `decisions`.", "codes.rs", "Decision"),
    ("Problems", "`code` of an error (`application/problem+json`).", "codes.rs", "ProblemCode"),
    ("Problems of a field", "`code` in `errors` of `invalid_request`.", "codes.rs", "FieldProblem"),
    (
        "Reasons",
        "Why something was not done: `reason` of a check, an insert or a backfill, `reason_code` of a\nmessage.",
        "codes.rs",
        "Reason",
    ),
    (
        "Reasons of all channels",
        "`reason_code` of a message, `reason` of an entry of a mailing, `code` of an offer.",
        "delivery/outcome.rs",
        "code",
    ),
    ("Reasons of Telegram", "As above.", "channels/telegram.rs", "code"),
    ("Reasons of WhatsApp", "As above.", "channels/whatsapp/evolution.rs", "code"),
    ("Reasons of email", "As above.", "channels/email/ses.rs", "code"),
    (
        "Holds by SES",
        "SES refuses all mail of the account: `paused_for` of a mailing, `reason_code` of a message.",
        "codes.rs",
        "SendingHold",
    ),
    (
        "Suppressions",
        "`reason` of a suppression, beside the reasons of Telegram and WhatsApp.",
        "suppression.rs",
        "reason",
    ),
    (
        "Sources of an unsubscription",
        "`source` of a suppression with a `list`. Without a list it is `provider`, `ses` or `operator`.",
        "mailings/unsubscribe.rs",
        "UnsubscribeSource",
    ),
    ("Actions of ingest", "`action` of an insert.", "codes.rs", "Action"),
    ("Matched keys", "`matched_by` of an insert; null for a new entry.", "codes.rs", "MatchedBy"),
    ("States of a backfill", "`state` of a backfill.", "ingest/backfill/row.rs", "BackfillState"),
    ("States of a mailing", "`status` of a mailing.", "mailings/mailing.rs", "MailingState"),
    ("States of an import", "`import.state` of a mailing.", "mailings/rows.rs", "ImportState"),
    (
        "Problems of a CSV row",
        "`reason` in the report of a mailing, and of an entry with the status `INVALID`. In the report,\n\
        `duplicate` occurs, too: the line repeats the address of an earlier line.",
        "codes.rs",
        "RowProblem",
    ),
    (
        "Problems of a CSV file",
        "`code` in `import.problem` of a mailing, where `input_missing` and `input_changed` occur, too. An\n\
        upload that is refused has a [problem of the field](#problems-of-a-field) `file` instead.",
        "codes.rs",
        "FileProblem",
    ),
    ("Status of a conversation", "`status` of a conversation.", "conversations/views.rs", "ConversationStatus"),
    (
        "Phase of a batch",
        "`processing.phase` of a conversation. `processing` is null while the phase is `idle`.",
        "conversations/course.rs",
        "Phase",
    ),
    ("Holder of a conversation", "`hold.by` of a conversation.", "conversations/course.rs", "HeldBy"),
    ("State of a message of a contact", "`fate` of a message in a conversation.", "conversations/views.rs", "Fate"),
    ("Author of a message", "`author` of a message in a conversation.", "conversations/rows.rs", "Author"),
    ("Source of a reply", "`answered_by` of a batch.", "conversations/rows.rs", "AnsweredBy"),
    (
        "Received messages",
        "`outcome` of an added message, the counts in the answer to a webhook, and `outcome` of the log event\n\
        `CONVERSATION_MESSAGE_RECEIVED`.",
        "conversations/rows.rs",
        "ReceiveOutcome",
    ),
    (
        "Ignored events",
        "The dimension `Why` of the metric `WebhooksIgnored`; the answer to the webhook counts them as\n\
        `ignored`. `no_conversations` occurs, too: the bot has no instance.",
        "conversations/inbound.rs",
        "Ignored",
    ),
    (
        "Problems of a responder",
        "`code` of the log event `CONVERSATION_NEEDS_HUMAN`, `outcome` of `CONVERSATION_BATCH_ADVANCED`.",
        "conversations/reply.rs",
        "ResponderProblem",
    ),
    ("Status of an offer", "`status` of an offer in the queue of a bot.", "downsells/offer.rs", "OfferStatus"),
    (
        "Delivery of a pending offer",
        "`delivery` of an offer with the status `pending`.",
        "downsells/offer.rs",
        "DeliveryView",
    ),
    ("Why an offer was not sent", "`cancel_reason` of an offer.", "downsells/offer.rs", "CancelReason"),
    (
        "Downsells without an offer",
        "Counts in the answer to a trigger: downsells of which it made no offer.",
        "downsells/schedule.rs",
        "Refused",
    ),
    ("Status of a charge", "`charge` in the answer to a payment webhook.", "downsells/charges.rs", "ChargeStatus"),
    (
        "Fields of another contact",
        "`differs` in the answer to a payment webhook.",
        "downsells/webhook.rs",
        "OwnerField",
    ),
    ("Warnings about a downsell", "`warnings` in the answer about a downsell.", "downsells/definition.rs", "Warning"),
    ("Warnings about a bot", "`warnings` in the answer about a bot.", "senders/bots.rs", "BotWarning"),
];

const CHOSEN: &str = "its values are chosen in requests; infra/openapi.yaml and the guides list them";
const INTERNAL: &str = "only stored rows contain it";

/// The closed lists that are not on the page of codes: file, name, and why not.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("telemetry.rs", "Event", "docs/reference/logs.md"),
    ("telemetry.rs", "Metric", "docs/reference/metrics.md"),
    ("queue.rs", "Priority", CHOSEN),
    ("channels/address.rs", "Channel", CHOSEN),
    ("channels/content/types.rs", "ParseMode", CHOSEN),
    ("channels/content/types.rs", "TelegramMediaKind", CHOSEN),
    ("channels/content/types.rs", "WhatsappMediaKind", CHOSEN),
    ("conversations/identity.rs", "Via", CHOSEN),
    ("conversations/inbound.rs", "MessageKind", CHOSEN),
    ("downsells/definition.rs", "Rearm", CHOSEN),
    ("downsells/offer.rs", "Trigger", CHOSEN),
    ("ingest/words.rs", "Schema", CHOSEN),
    ("ingest/words.rs", "System", CHOSEN),
    ("ingest/words.rs", "ContentType", CHOSEN),
    ("ingest/words.rs", "PolicyKey", CHOSEN),
    ("ingest/words.rs", "ConflictAction", CHOSEN),
    ("ingest/words.rs", "Column", CHOSEN),
    ("mailings/encoding.rs", "Encoding", CHOSEN),
    ("mailings/identity.rs", "NameMode", CHOSEN),
    ("mailings/format.rs", "Separator", INTERNAL),
    ("mailings/shard.rs", "ShardState", INTERNAL),
];

/// Returns the codes of a closed list with the comment of each, from the source.
fn codes(file: &str, list: &str) -> Vec<(String, String)> {
    let source = read(&workspace_root().join(DOMAIN).join(file));
    let code = Regex::new(r#"^\w+ = "([^"]+)",$"#).expect("a pattern");
    let mut found = Vec::new();
    let mut comment = Vec::new();
    let from = source.lines().map(str::trim).skip_while(|line| *line != format!("{list} {{")).skip(1);
    for line in from.take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim().to_owned());
        } else if let Some(named) = code.captures(line) {
            found.push((named[1].to_owned(), std::mem::take(&mut comment).join(" ")));
        }
    }
    assert!(!found.is_empty(), "{file} has no list {list}");
    found
}

#[test]
fn the_docs_list_and_describe_every_code() {
    let mut page =
        "# Codes and reasons\n\nThe closed lists of codes in answers. A code is part of the API: it is never \
        renamed. This page is\ngenerated from the code.\n"
            .to_owned();
    for (heading, introduction, file, list) in LISTS {
        write!(page, "\n## {heading}\n\n{introduction}\n\n| code | meaning |\n|---|---|\n").expect("written");
        for (code, meaning) in codes(file, list) {
            assert!(!meaning.is_empty(), "{code} of {list} in {file} has no comment");
            writeln!(page, "| `{code}` | {meaning} |").expect("written");
        }
    }
    is_generated("docs/reference/codes.md", &page);
}

/// Returns the closed lists of a source, by name.
fn lists_of(source: &str) -> Vec<String> {
    let name = Regex::new(r"^    (\w+) \{$").expect("a pattern");
    let blocks = source.split("\ncodes! {\n").skip(1).chain(source.split("\ntexts! {\n").skip(1));
    let bodies = blocks.map(|block| block.split("\n}").next().unwrap_or_default());
    bodies.flat_map(|body| body.lines().filter_map(|line| Some(name.captures(line)?[1].to_owned()))).collect()
}

#[test]
fn every_closed_list_is_on_the_page_of_codes_or_has_a_reason_not_to_be() {
    let root = workspace_root().join(DOMAIN);
    let uses = Regex::new(r"\b(codes|texts)! ?[{(\[]").expect("a pattern");
    let mut defined = BTreeSet::new();
    for (path, text) in sources(DOMAIN) {
        let file = path.strip_prefix(&root).expect("below the domain").display().to_string();
        let at_the_start = text.lines().filter(|line| *line == "codes! {" || *line == "texts! {").count();
        assert_eq!(uses.find_iter(&text).count(), at_the_start, "{file} has a list that this test cannot read");
        defined.extend(lists_of(&text).into_iter().map(|list| (file.clone(), list)));
    }
    let listed = LISTS.iter().map(|(_, _, file, list)| (*file, *list));
    let all: Vec<_> = listed.chain(ELSEWHERE.iter().map(|(file, list, _)| (*file, *list))).collect();
    let known: BTreeSet<_> = all.iter().map(|(file, list)| ((*file).to_owned(), (*list).to_owned())).collect();
    assert_eq!(known.len(), all.len(), "a list is named twice");
    assert_eq!(defined, known);
}

#[test]
fn lists_are_found_in_a_source() {
    let source = "use x;\n\ncodes! {\n    /// A.\n    A {\n        B = \"b\",\n    }\n\n    C {\n        D = \"d\",\n    }\n}\n\
        \ntexts! {\n    code {\n        E = \"e\",\n    }\n}\n\nstruct F {\n    G {\n";
    assert_eq!(lists_of(source), ["A", "C", "code"]);
}

/// Returns the properties of the API whose values are a closed list, with the lists. The value of
/// an array is that of its items.
fn enums() -> BTreeMap<BTreeSet<String>, BTreeSet<String>> {
    fn resolved(schema: &Value) -> &Value {
        let target = schema["$ref"].as_str().and_then(|target| description().pointer(target.trim_start_matches('#')));
        let schema = target.unwrap_or(schema);
        if schema["items"].is_object() { resolved(&schema["items"]) } else { schema }
    }
    fn walk(value: &Value, into: &mut BTreeMap<BTreeSet<String>, BTreeSet<String>>) {
        for (name, schema) in value["properties"].as_object().into_iter().flatten() {
            let codes = resolved(schema)["enum"].as_array().into_iter().flatten();
            let codes: BTreeSet<_> = codes.filter_map(|code| code.as_str().map(str::to_owned)).collect();
            if !codes.is_empty() {
                into.entry(codes).or_default().insert(name.clone());
            }
        }
        match value {
            Value::Object(fields) => fields.values().for_each(|value| walk(value, into)),
            Value::Array(items) => items.iter().for_each(|value| walk(value, into)),
            _ => {}
        }
    }
    let mut found = BTreeMap::new();
    walk(description(), &mut found);
    found
}

#[test]
fn the_introduction_of_a_list_names_a_field_that_has_its_codes() {
    let (enums, quoted) = (enums(), Regex::new("`([^`]+)`").expect("a pattern"));
    let mut compared = 0;
    for (heading, introduction, file, list) in LISTS {
        let codes: BTreeSet<_> = codes(file, list).into_iter().map(|(code, _)| code).collect();
        let Some(fields) = enums.get(&codes) else { continue };
        let named = quoted.captures_iter(introduction).any(|word| word[1].split('.').any(|name| fields.contains(name)));
        assert!(named, "{heading}: the API has these codes in {fields:?}");
        compared += 1;
    }
    assert!(compared > 15, "only {compared} lists are the values of a field");
}

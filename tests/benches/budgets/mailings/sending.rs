//! Sends one mailing from its file to SENT, and counts the calls of each function to the stores.

use serde_json::json;
use umavez_domain::keys;
use umavez_local::calls::Call;
use umavez_tests::World;

use super::{file, upload};
use crate::before::{self, Took};
use crate::prices;

/// The calls of a mailing.
pub struct Sent {
    recipients: usize,
    importer: Vec<Call>,
    sender: Vec<Call>,
    /// The calls of the upload and of the relay.
    beside: Vec<Call>,
    /// The calls that handle the events of SES.
    pub after: Vec<Call>,
}

pub async fn send(world: &World, recipients: usize, longer_names: &str) -> Sent {
    let position = world.stack.calls().position();
    let content = json!({"subject": "Olá {{nome}}", "from": "Loja <loja@example.com>",
        "html": "<p>Oi {{nome}}, <a href=\"{{unsubscribe_url}}\">sair</a></p>"});
    let id = upload(world, "sent.csv", &file(recipients, longer_names), content).await;
    world.drain().await;
    let shown = world.get(&format!("/mailings/{id}")).await.body;
    assert_eq!((&shown["status"], &shown["counts"]["sent"]), (&json!("COMPLETED"), &json!(recipients)), "{shown}");
    assert_eq!(world.stack.catcher().sent(Some("email"), None).len(), recipients, "not one mail per recipient");
    let calls = world.stack.calls().since(position);
    let of = |function: &str| part(&calls, |call| call.caller == function);
    Sent {
        recipients,
        importer: of("mailing-importer"),
        sender: of("mailing-sender"),
        beside: [of("mailings-api"), of("outbox-relay")].concat(),
        after: of("delivery-events"),
    }
}

impl Sent {
    /// Returns all calls up to SENT.
    pub fn calls(&self) -> Vec<Call> {
        [self.both(), self.beside.clone()].concat()
    }

    /// Returns the write units of a recipient's own row: created, claimed and settled.
    pub fn entry_units_of_one(&self) -> f64 {
        prices::write_units(&part(&self.both(), is_of_entries)) / self.recipients as f64
    }

    /// Returns the write units of shared rows, per recipient: leases, checkpoints, shards, slots.
    pub fn other_units_of_one(&self) -> f64 {
        prices::write_units(&part(&self.both(), |call| !is_of_entries(call))) / self.recipients as f64
    }

    fn both(&self) -> Vec<Call> {
        [self.importer.clone(), self.sender.clone()].concat()
    }

    pub fn print(&self, how: &str) {
        let Self { recipients, importer, sender, beside, after } = self;
        println!(
            "\n{:<44} {:>8} {:>9} {:>8} {:>9} {:>8} {:>9}   {}, of one",
            format!("{recipients} mails, {how}"),
            "requests",
            "of one",
            "write u.",
            "of one",
            "read u.",
            "of one",
            before::TITLE
        );
        let row = |name: &str, calls: &[Call]| {
            let all = Took::of(calls);
            let one = all.of_one(*recipients);
            let before = before::column(&format!("{name}, {how}"), one);
            println!(
                "{name:<44} {:>8} {:>9.3} {:>8} {:>9.3} {:>8} {:>9.3}{before}",
                all.requests, one.requests, all.write, one.write, all.read, one.read
            );
        };
        row("import: entries", &part(importer, is_of_entries));
        row("import: lease, checkpoints, shards", &part(importer, |call| !is_of_entries(call)));
        row("sending: claims and outcomes", &part(sender, is_of_entries));
        let others = part(sender, |call| !is_of_slots(call) && !is_mail(call) && !is_of_entries(call));
        row("sending: leases, shards, reads", &others);
        row("sending: slots", &part(sender, is_of_slots));
        row("sending: mails", &part(sender, is_mail));
        row("import to SENT", &self.both());
        row("beside it: upload, relay", beside);
        row("after it: what SES tells", after);
    }
}

fn part(calls: &[Call], which: impl Fn(&Call) -> bool) -> Vec<Call> {
    calls.iter().filter(|call| which(call)).cloned().collect()
}

fn is_of_entries(call: &Call) -> bool {
    let of_one = || call.key.as_ref().is_some_and(|key| key.contains(keys::MAILING_ENTRY_PREFIX));
    call.operation == "BatchExecuteStatement" || call.operation == "UpdateItem" && of_one()
}

/// The bucket is the only row of that table that a sender changes.
fn is_of_slots(call: &Call) -> bool {
    call.target.ends_with("-outbound") && call.operation == "UpdateItem"
}

fn is_mail(call: &Call) -> bool {
    call.service == "ses"
}

//! `POST /api/admin/bots/{slug}/downsells/{id}/test`: sends a downsell now to the given Telegram
//! id. The test is an ordinary message and not an offer: it takes no slot, needs no charge, and
//! does not count in the metrics.

use serde_json::json;
use umavez_domain::channels::Content;
use umavez_domain::codes::FieldProblem;
use umavez_domain::downsells::webhook::read_telegram_id;
use umavez_domain::fields::{FieldError, Fields};
use umavez_domain::idempotency::Replay;
use umavez_domain::messages::{MessageId, NewMessage};
use umavez_domain::queue::Priority;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;
use umavez_platform::messages::Accepted;

use crate::Deps;
use crate::downsells::named_downsell;

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let (bot, row) = named_downsell(deps, invocation, request).await?;
    let body = request.object()?;
    let mut fields = Fields::of(&body);
    let telegram_id = read_telegram_id(&mut fields);
    let telegram_id = fields.finish(telegram_id).map_err(Problem::invalid)?;
    if deps.senders.lacks_credential(invocation, &deps.senders.of_bot(&bot)).await {
        let detail = "the secret of senders has no token for the bot's token_ref";
        return Err(Problem::invalid(vec![FieldError::new("token_ref", FieldProblem::NotAllowed, detail)]));
    }
    let caller = &request.caller()?.key_id;
    // Without an idempotency key, each request is a separate test.
    let identity = request.identity(invocation)?;
    let metadata = json!({"test": true, "bot_slug": row.slug, "downsell_id": row.id}).to_string();
    let message = NewMessage {
        id: MessageId::of(caller, &identity.key),
        caller: caller.to_string(),
        body_hash: identity.body,
        sender: bot.slug,
        to: telegram_id.to_string(),
        content: Content::Telegram(row.content),
        priority: Priority::Start,
        hold: None,
        send_at: None,
        not_after: None,
        metadata: Some(metadata),
        then: None,
    };
    let (row, replayed) = match deps.messages.accept(invocation, &message).await? {
        Accepted::New(row) => (row, false),
        Accepted::Existing(row) if Replay::of(&row.body_hash, &message.body_hash) == Replay::Same => (row, true),
        // Only a message with an intent returns the last two.
        Accepted::Existing(_) | Accepted::KeyReused | Accepted::TooManyScheduled => {
            return Err(Problem::key_reused("a test with another body"));
        }
    };
    let answer = Answer::json(202, &json!({"ok": true, "test": true, "message_id": row.id}))?;
    Ok(if replayed { answer.replayed() } else { answer })
}

//! `POST /webhooks/telegram/{bot}`: receives an update of the Bot API. A /start schedules offers.
//! Anything else that a person writes is a message of a conversation, if the bot has conversations.

use serde_json::json;
use umavez_domain::channels::Channel;
use umavez_domain::conversations::Via;
use umavez_domain::conversations::inbound::telegram;
use umavez_domain::downsells::start::{self, StartCommand};
use umavez_domain::downsells::views::Scheduled;
use umavez_domain::downsells::{Trigger, TriggerEvent};
use umavez_domain::senders::bots::BotRow;
use umavez_domain::telemetry::Event;
use umavez_domain::webhooks::WebhookSecrets;
use umavez_platform::downsells::log;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::Deps;
use crate::intake::{self, Admitted, WebhookSource};

const SECRET_HEADER: &str = "x-telegram-bot-api-secret-token";

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let name = request.path.get("bot").map(String::as_str).unwrap_or_default();
    let source = WebhookSource { via: Via::Telegram, name };
    let header = request.header(SECRET_HEADER);
    let verify = |secrets: &WebhookSecrets| secrets.verify_telegram(name, header);
    let by_bot = |bot: &BotRow| bot.admits(header);
    let mut bot = match intake::admit(deps, invocation, request, &source, verify, by_bot).await? {
        Admitted::ByBot(bot) => Some(bot),
        Admitted::BySecret => None,
    };
    let reading = telegram::read(request.body()).map_err(intake::unreadable)?;
    let start = start::read(request.body());
    if start.is_some() && bot.is_none() {
        bot = deps.downsells.bots.get(invocation, name).await?.map(Box::new);
    }
    let mut answer = intake::store_messages(deps, invocation, &source, &reading, bot.is_some()).await?;
    if let (Some(start), Some(bot)) = (start, bot) {
        // A user who presses start does not block this bot, or does so no longer. Suppressions
        // identify a bot by its token reference.
        let to = start.telegram_id.to_string();
        deps.suppressions.lift(invocation, Channel::Telegram, &to, &bot.token_ref).await?;
        // The sender would only skip the offers of an inactive bot.
        let counts = match bot.active {
            true => schedule(deps, invocation, &bot, &start).await?,
            false => Scheduled::default(),
        };
        let (body, counts) = (answer.as_object_mut(), json!(counts));
        body.into_iter().for_each(|body| body.extend(counts.as_object().cloned().unwrap_or_default()));
    }
    Answer::json(200, &answer)
}

/// Schedules the offers that follow a /start.
async fn schedule(
    deps: &Deps,
    invocation: &Invocation,
    bot: &BotRow,
    start: &StartCommand,
) -> Result<Scheduled, Problem> {
    let update_id = start.update_id.to_string();
    let meta = start.payload.as_ref().map(|payload| json!({ "payload": payload }).to_string());
    let event = TriggerEvent {
        bot: &bot.slug,
        telegram_id: start.telegram_id,
        trigger: Trigger::Start,
        source: &update_id,
        at: start.at.unwrap_or(invocation.now).min(invocation.now),
        correlation_id: &invocation.request_id,
        meta: meta.as_deref(),
        keep_days: deps.downsells.keep_days,
    };
    let plan = deps.downsells.started(invocation, &event).await?;
    log::triggered(invocation, &plan);
    let counts = Scheduled::of(&plan);
    let Scheduled { scheduled, duplicates, already_pending, not_rearmed, .. } = counts;
    tracing::info!(
        event = Event::StartHandled.as_str(),
        bot = bot.slug,
        scheduled,
        duplicates,
        already_pending,
        not_rearmed,
        request_id = invocation.request_id,
    );
    Ok(counts)
}

//! `POST /webhooks/telegram/{bot}`: an update of the Bot API.

use umavez_domain::conversations::Via;
use umavez_domain::conversations::inbound::telegram;
use umavez_domain::webhooks::WebhookSecrets;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::Deps;
use crate::intake::{self, Source};

const SECRET_HEADER: &str = "x-telegram-bot-api-secret-token";

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let bot = request.path.get("bot").map(String::as_str).unwrap_or_default();
    let source = Source { via: Via::Telegram, name: bot };
    let verify = |secrets: &WebhookSecrets| secrets.verify_telegram(bot, request.header(SECRET_HEADER));
    intake::admit(deps, invocation, request, &source, verify).await?;
    let reading = telegram::read(request.body()).map_err(intake::unreadable)?;
    intake::take(deps, invocation, &source, &reading).await
}

//! `POST /webhooks/evolution/{instance}`: receives an event of Evolution API.

use umavez_domain::conversations::Via;
use umavez_domain::conversations::inbound::evolution;
use umavez_domain::webhooks::WebhookSecrets;
use umavez_platform::http::{Answer, Problem, Request};
use umavez_platform::invocation::Invocation;

use crate::Deps;
use crate::intake::{self, WebhookSource};

pub async fn run(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let instance = request.path.get("instance").map(String::as_str).unwrap_or_default();
    let source = WebhookSource { via: Via::Whatsapp, name: instance };
    let header = |name: &str| request.header(name);
    let verify = |secrets: &WebhookSecrets| secrets.verify_evolution(instance, header, invocation.now);
    intake::admit(deps, invocation, request, &source, verify, |_| false).await?;
    let reading = evolution::read(request.body()).map_err(intake::unreadable)?;
    Answer::json(200, &intake::store_messages(deps, invocation, &source, &reading, false).await?)
}

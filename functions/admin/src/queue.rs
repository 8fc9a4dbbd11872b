//! `/api/admin/bots/{slug}/queue`: the offers of a bot and their outcomes.

use serde_json::json;
use umavez_domain::codes::{FieldProblem, ProblemCode};
use umavez_domain::downsells::views::OfferFilter;
use umavez_domain::downsells::webhook::read_telegram_id;
use umavez_domain::downsells::{ContactId, DeliveryView, OfferId, OfferRow, OfferStatus, Trigger};
use umavez_domain::fields::{FieldError, Fields};
use umavez_domain::keys;
use umavez_platform::downsells::{QueueFilter, log};
use umavez_platform::http::{Answer, Problem, Request, paging};
use umavez_platform::invocation::Invocation;

use crate::Deps;

pub async fn list(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let bot = crate::bot(deps, invocation, request).await?;
    let mut errors = Vec::new();
    let telegram_id = number(request, "telegram_id", &mut errors);
    // Accepts only a cursor that a page has returned: exactly the text of a time and an id, or of
    // an offer's key if the queue is filtered by contact.
    let is_place = |place: &str| match telegram_id {
        Some(_) => place.strip_prefix(keys::OFFER_PREFIX).is_some_and(|id| OfferId::parse(id).is_some()),
        None => place.split_once('#').and_then(|(_, id)| OfferId::parse(id)).is_some_and(|id| {
            keys::time_of(place).is_some_and(|at| at.millis() > 0 && keys::at_time(at, id.as_str()) == place)
        }),
    };
    let of = QueueFilter {
        telegram_id,
        offers: OfferFilter {
            status: word(request, "status", OfferStatus::parse, &mut errors),
            trigger: word(request, "trigger", Trigger::parse, &mut errors),
            downsell_id: number(request, "downsell_id", &mut errors).and_then(|id| u64::try_from(id).ok()),
            unknown: word(request, "delivery", unknown, &mut errors).map(|_| true),
        },
        after: paging::cursor(request, &mut errors, is_place),
        limit: paging::limit(request, &mut errors),
    };
    Problem::if_any(errors)?;
    let page = deps.downsells.queue(invocation, &bot.slug, &of).await?;
    let queue: Vec<_> = page.rows.iter().map(OfferRow::view).collect();
    let cursor = page.next.map(|place| paging::to_cursor(&place));
    Answer::json(200, &json!({"ok": true, "queue": queue, "cursor": cursor}))
}

/// Settles an offer whose delivery is UNKNOWN. The body is `{telegram_id, sent}`: the operator
/// states whether the offer was sent.
pub async fn settle(deps: &Deps, invocation: &Invocation, request: &Request) -> Result<Answer, Problem> {
    let bot = crate::bot(deps, invocation, request).await?;
    let id = request.path.get("id").and_then(|id| OfferId::parse(id)).ok_or_else(no_such_offer)?;
    let body = request.object()?;
    let mut fields = Fields::of(&body);
    let telegram_id = read_telegram_id(&mut fields);
    let sent = fields.optional_bool("sent");
    if sent.is_none() && !fields.refused("sent") {
        fields.refuse("sent", FieldProblem::Missing, "is required");
    }
    let (telegram_id, sent) = fields.finish(telegram_id.zip(sent)).map_err(Problem::invalid)?;
    let contact = ContactId::of(&bot.slug, telegram_id);
    let offer = deps.downsells.offer(invocation, &contact, &id).await?.ok_or_else(no_such_offer)?;
    let declared = deps.downsells.declare(invocation, &offer, sent).await?;
    let (offer, now) = declared.ok_or_else(no_such_offer)?;
    let says_so = offer.status == if sent { OfferStatus::Sent } else { OfferStatus::Failed };
    if !now && !says_so {
        let detail = "only an offer whose delivery is UNKNOWN can be settled";
        return Err(Problem::new(409, ProblemCode::NotUnknown, detail));
    }
    if now {
        log::changed(invocation, &offer);
    }
    Answer::json(200, &json!({"ok": true, "offer": offer.view()}))
}

fn unknown(text: &str) -> Option<DeliveryView> {
    DeliveryView::parse(text).filter(|delivery| *delivery == DeliveryView::Unknown)
}

fn word<T>(
    request: &Request,
    name: &'static str,
    parse: impl Fn(&str) -> Option<T>,
    errors: &mut Vec<FieldError>,
) -> Option<T> {
    let refused = (FieldProblem::NotAllowed, "is not a value that the queue can be filtered by");
    paging::parsed(request, name, parse, refused, errors)
}

fn number(request: &Request, name: &'static str, errors: &mut Vec<FieldError>) -> Option<i64> {
    let parse = |text: &str| text.parse().ok().filter(|number| *number > 0);
    paging::parsed(request, name, parse, (FieldProblem::Malformed, "must be a whole number above zero"), errors)
}

fn no_such_offer() -> Problem {
    Problem::not_found("there is no such offer of this bot and person")
}

//! Calls to the providers: one request per attempt, which this module never retries.

use std::time::Duration;

use aws_sdk_sesv2::config::retry::RetryConfig;
use aws_sdk_sesv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sesv2::operation::send_email::SendEmailError;
use aws_sdk_sesv2::types::{
    Body, Content as SesContent, Destination, EmailContent, Message, MessageHeader, MessageTag,
};
use aws_smithy_runtime_api::client::http::http_client_fn;
use umavez_domain::channels::content::Email;
use umavez_domain::channels::email::ses;
use umavez_domain::channels::whatsapp::evolution;
use umavez_domain::channels::{Content, telegram};
use umavez_domain::delivery::{CallFailure, Outcome, code, of_failure};

use crate::aws::Aws;
use crate::config::{self, ConfigError};
use crate::outgoing::{Outgoing, Response, failure_of};

/// The addresses and settings of the providers.
#[derive(Debug, Clone)]
pub struct ProviderConfig {
    pub telegram_url: String,
    pub evolution_url: String,
    pub configuration_set: Option<String>,
    /// The longest time for one call.
    pub timeout: Duration,
}

impl ProviderConfig {
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Self {
            telegram_url: config::required("TELEGRAM_URL")?,
            evolution_url: config::text("EVOLUTION_URL").unwrap_or_default(),
            ..Self::of_mail()?
        })
    }

    /// Reads the configuration of a function that sends only mail.
    pub fn of_mail() -> Result<Self, ConfigError> {
        let seconds = config::number("PROVIDER_TIMEOUT_SECONDS", 15, 1..=30, "1 to 30")?;
        Ok(Self {
            telegram_url: String::new(),
            evolution_url: String::new(),
            configuration_set: config::text("SES_CONFIGURATION_SET"),
            timeout: Duration::from_secs(seconds.into()),
        })
    }
}

#[derive(Debug)]
pub struct Providers {
    pub config: ProviderConfig,
    outgoing: Outgoing,
    ses: aws_sdk_sesv2::Client,
}

/// The sender and the recipient of a message.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// The id that the provider's events carry.
    pub id: &'a str,
    pub sender: &'a str,
    pub to: &'a str,
}

impl Providers {
    pub fn new(aws: &Aws, config: ProviderConfig) -> Self {
        let outgoing = Outgoing::new(config.timeout);
        let for_ses = outgoing.connector();
        let ses = aws.sesv2(http_client_fn(move |_, _| for_ses.clone()), RetryConfig::disabled());
        Self { config, outgoing, ses }
    }

    /// Makes the one call of attempt n within `limit`.
    pub async fn send(
        &self,
        envelope: &Envelope<'_>,
        content: &Content,
        credential: &str,
        attempt: u32,
        limit: Duration,
    ) -> Outcome {
        let limit = limit.min(self.config.timeout);
        let Envelope { sender, to, .. } = *envelope;
        let (base, call) = match content {
            Content::Email(email) => return self.send_mail(envelope, email, attempt, limit).await,
            Content::Telegram(content) => (&self.config.telegram_url, telegram::request(credential, to, content)),
            Content::Whatsapp(content) => {
                (&self.config.evolution_url, evolution::request(sender, credential, to, content))
            }
        };
        // The channel is not configured; no byte is sent.
        if !base.starts_with("http://") && !base.starts_with("https://") {
            return Outcome::Transient { code: code::NOT_CONFIGURED };
        }
        match (self.outgoing.call(base, &call, limit).await, content) {
            (Err(failure), _) => of_failure(failure),
            (Ok(Response { status, retry_after, body }), Content::Whatsapp(_)) => {
                evolution::classify(status, retry_after.as_deref(), &body)
            }
            (Ok(Response { status, body, .. }), _) => telegram::classify_for(to, status, &body),
        }
    }

    async fn send_mail(&self, envelope: &Envelope<'_>, email: &Email, attempt: u32, limit: Duration) -> Outcome {
        let Some(content) = email_content(email) else {
            return Outcome::Permanent { code: code::REJECTED, suppress: false };
        };
        let call = self
            .ses
            .send_email()
            .from_email_address(ses::mailbox(&email.from))
            .destination(Destination::builder().to_addresses(envelope.to).build())
            .set_reply_to_addresses(email.reply_to.as_ref().map(|reply_to| vec![ses::mailbox(reply_to)]))
            .content(content)
            .set_configuration_set_name(self.config.configuration_set.clone())
            .set_email_tags(tags(envelope.id, attempt));
        match tokio::time::timeout(limit, call.send()).await {
            Err(_) => of_failure(CallFailure::TimedOut),
            Ok(Ok(sent)) => match sent.message_id {
                Some(provider_id) if !provider_id.is_empty() => Outcome::Sent { provider_id },
                _ => of_failure(CallFailure::Unreadable),
            },
            Ok(Err(error)) => of_ses_error(&error, envelope.to),
        }
    }
}

fn email_content(email: &Email) -> Option<EmailContent> {
    let utf8 = |text: &str| SesContent::builder().data(text).charset("UTF-8").build().ok();
    let body = Body::builder()
        .set_text(email.text.as_deref().and_then(utf8))
        .set_html(email.html.as_deref().and_then(utf8))
        .build();
    let header = |(name, value): &(String, String)| MessageHeader::builder().name(name).value(value).build().ok();
    let headers = email.headers.iter().map(header).collect::<Option<Vec<_>>>()?;
    let message = Message::builder().subject(utf8(&email.subject)?).body(body);
    let message = message.set_headers(Some(headers).filter(|headers| !headers.is_empty())).build();
    Some(EmailContent::builder().simple(message).build())
}

/// Returns the tags by which SES events identify the message and the attempt.
fn tags(id: &str, attempt: u32) -> Option<Vec<MessageTag>> {
    let tag = |name: &str, value: String| MessageTag::builder().name(name).value(value).build().ok();
    [tag(ses::MESSAGE_TAG, id.to_owned()), tag(ses::ATTEMPT_TAG, attempt.to_string())].into_iter().collect()
}

fn of_ses_error(error: &SdkError<SendEmailError>, to: &str) -> Outcome {
    match error {
        // The request could not be built.
        SdkError::ConstructionFailure(_) => of_failure(CallFailure::NotConnected),
        SdkError::TimeoutError(_) => of_failure(CallFailure::TimedOut),
        SdkError::DispatchFailure(failure) => match failure.as_connector_error() {
            Some(error) => of_failure(failure_of(error)),
            None => of_failure(CallFailure::Broken),
        },
        SdkError::ServiceError(service) => {
            let refused = service.err();
            let text = refused.message().unwrap_or_default();
            let status = service.raw().status().as_u16();
            ses::classify(&ses::SesRefusal { status, code: refused.code(), text, to })
        }
        _ => of_failure(CallFailure::Unreadable),
    }
}

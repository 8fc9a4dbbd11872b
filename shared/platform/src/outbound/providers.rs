//! Calls to the providers: one request per attempt, with a timeout of its own, and never repeated here.
//!
//! Connections are kept for moments only. A function is frozen between invocations, and a request over a connection that
//! the provider has closed meanwhile fails after its bytes have left: nobody would know whether it was sent.

use std::error::Error;
use std::time::Duration;

use aws_sdk_sesv2::config::retry::RetryConfig;
use aws_sdk_sesv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sesv2::operation::send_email::SendEmailError;
use aws_sdk_sesv2::types::{
    Body, Content as SesContent, Destination, EmailContent, Message, MessageHeader, MessageTag,
};
use aws_smithy_http_client::{Connector, tls};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorSettings, SharedHttpConnector, http_client_fn};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use umavez_domain::outbound::content::Email;
use umavez_domain::outbound::message::MessageRow;
use umavez_domain::outbound::{CallFailure, Content, HttpCall, Outcome, code, evolution, of_failure, ses, wire};

use crate::aws::Aws;
use crate::config::{self, ConfigError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEPT_IDLE: Duration = Duration::from_secs(3);

/// Where the providers are.
#[derive(Debug, Clone)]
pub struct ProviderConfig {
    pub telegram_url: String,
    pub evolution_url: String,
    pub configuration_set: Option<String>,
    /// How long one call may take.
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

    /// Of whoever sends nothing but mail.
    pub fn of_mail() -> Result<Self, ConfigError> {
        let seconds = config::text("PROVIDER_TIMEOUT_SECONDS").unwrap_or_else(|| "15".to_owned());
        let seconds = seconds.parse().ok().filter(|seconds| (1..=30).contains(seconds));
        let seconds = seconds.ok_or_else(|| ConfigError::malformed("PROVIDER_TIMEOUT_SECONDS", "1 to 30"))?;
        Ok(Self {
            telegram_url: String::new(),
            evolution_url: String::new(),
            configuration_set: config::text("SES_CONFIGURATION_SET"),
            timeout: Duration::from_secs(seconds),
        })
    }
}

#[derive(Debug)]
pub struct Providers {
    pub config: ProviderConfig,
    connector: SharedHttpConnector,
    ses: aws_sdk_sesv2::Client,
}

/// One mail of one attempt.
#[derive(Debug)]
pub struct Mail<'a> {
    /// What its events are told to be about.
    pub id: &'a str,
    pub attempt: u32,
    pub to: &'a str,
    pub email: &'a Email,
}

struct Answer {
    status: u16,
    retry_after: Option<String>,
    body: Vec<u8>,
}

impl Providers {
    pub fn new(aws: &Aws, config: ProviderConfig) -> Self {
        let settings =
            HttpConnectorSettings::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(config.timeout).build();
        let connector = Connector::builder()
            .connector_settings(settings)
            .pool_idle_timeout(KEPT_IDLE)
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
            .build();
        let connector = SharedHttpConnector::new(connector);
        let for_ses = connector.clone();
        let ses = aws.sesv2(http_client_fn(move |_, _| for_ses.clone()), RetryConfig::disabled());
        Self { config, connector, ses }
    }

    /// Makes the one call of attempt n, within `limit`.
    pub async fn send(
        &self,
        row: &MessageRow,
        content: &Content,
        credential: &str,
        attempt: u32,
        limit: Duration,
    ) -> Outcome {
        let limit = limit.min(self.config.timeout);
        match content {
            Content::Email(email) => {
                let mail = Mail { id: &row.id, attempt, to: &row.to, email };
                self.send_mail(&mail, limit).await
            }
            Content::Telegram(content) => {
                if let Some(outcome) = Self::unconfigured(&self.config.telegram_url) {
                    return outcome;
                }
                let call = wire::to_telegram(credential, &row.to, content);
                match self.call(&self.config.telegram_url, &call, limit).await {
                    Ok(answer) => wire::of_telegram(&row.to, answer.status, &answer.body),
                    Err(failure) => of_failure(failure),
                }
            }
            Content::Whatsapp(content) => {
                if let Some(outcome) = Self::unconfigured(&self.config.evolution_url) {
                    return outcome;
                }
                let call = wire::to_evolution(&row.sender, credential, &row.to, content);
                match self.call(&self.config.evolution_url, &call, limit).await {
                    Ok(answer) => evolution::classify(answer.status, answer.retry_after.as_deref(), &answer.body),
                    Err(failure) => of_failure(failure),
                }
            }
        }
    }

    /// The outcome of a channel that nobody has configured; no byte leaves.
    fn unconfigured(base: &str) -> Option<Outcome> {
        let is_absolute = base.starts_with("http://") || base.starts_with("https://");
        (!is_absolute).then_some(Outcome::Transient { code: code::NOT_CONFIGURED })
    }

    async fn call(&self, base: &str, call: &HttpCall, limit: Duration) -> Result<Answer, CallFailure> {
        let request = http_request(base, call).ok_or(CallFailure::NotConnected)?;
        let whole = async {
            let response = self.connector.call(request).await.map_err(|error| failure_of(&error))?;
            let status = response.status().as_u16();
            let retry_after = response.headers().get("retry-after").map(str::to_owned);
            let body = read_to_end(response.into_body()).await.ok_or(CallFailure::Unreadable)?;
            Ok(Answer { status, retry_after, body })
        };
        tokio::time::timeout(limit, whole).await.unwrap_or(Err(CallFailure::TimedOut))
    }

    /// Makes the one call that an attempt to send a mail is, within `limit`.
    pub async fn send_mail(&self, mail: &Mail<'_>, limit: Duration) -> Outcome {
        let (limit, email) = (limit.min(self.config.timeout), mail.email);
        let Some(content) = email_content(email) else {
            return Outcome::Permanent { code: code::REJECTED, suppress: false };
        };
        let call = self
            .ses
            .send_email()
            .from_email_address(ses::mailbox(&email.from))
            .destination(Destination::builder().to_addresses(mail.to).build())
            .set_reply_to_addresses(email.reply_to.as_ref().map(|reply_to| vec![ses::mailbox(reply_to)]))
            .content(content)
            .set_configuration_set_name(self.config.configuration_set.clone())
            .set_email_tags(tags(mail.id, mail.attempt));
        match tokio::time::timeout(limit, call.send()).await {
            Err(_) => of_failure(CallFailure::TimedOut),
            Ok(Ok(sent)) => match sent.message_id {
                Some(provider_id) if !provider_id.is_empty() => Outcome::Sent { provider_id },
                _ => of_failure(CallFailure::Unreadable),
            },
            Ok(Err(error)) => of_ses_error(&error),
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

/// By these its events find the message and the attempt.
fn tags(id: &str, attempt: u32) -> Option<Vec<MessageTag>> {
    let tag = |name: &str, value: String| MessageTag::builder().name(name).value(value).build().ok();
    [tag(ses::MESSAGE_TAG, id.to_owned()), tag(ses::ATTEMPT_TAG, attempt.to_string())].into_iter().collect()
}

fn of_ses_error(error: &SdkError<SendEmailError>) -> Outcome {
    match error {
        // It was not possible to make the request at all.
        SdkError::ConstructionFailure(_) => of_failure(CallFailure::NotConnected),
        SdkError::TimeoutError(_) => of_failure(CallFailure::TimedOut),
        SdkError::DispatchFailure(failure) => match failure.as_connector_error() {
            Some(error) => of_failure(failure_of(error)),
            None => of_failure(CallFailure::Broken),
        },
        SdkError::ServiceError(service) => {
            let refused = service.err();
            let text = refused.message().unwrap_or_default();
            ses::classify(service.raw().status().as_u16(), refused.code(), text)
        }
        _ => of_failure(CallFailure::Unreadable),
    }
}

fn http_request(base: &str, call: &HttpCall) -> Option<HttpRequest> {
    let uri = format!("{}{}", base.trim_end_matches('/'), call.path);
    let mut request = http::Request::builder().method(call.method).uri(uri);
    for (name, value) in &call.headers {
        request = request.header(*name, value);
    }
    let request = request.body(SdkBody::from(call.body.as_str())).ok()?;
    HttpRequest::try_from(request).ok()
}

/// Whether a byte can have left.
fn failure_of(error: &ConnectorError) -> CallFailure {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>()
            && error.is_connect()
        {
            return CallFailure::NotConnected;
        }
        cause = error.source();
    }
    if error.is_timeout() {
        CallFailure::TimedOut
    } else if error.is_user() {
        CallFailure::NotConnected
    } else {
        CallFailure::Broken
    }
}

/// Nobody answers a message with more than this.
const LARGEST_ANSWER: usize = 256 * 1024;

async fn read_to_end(mut body: SdkBody) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(frame) =
        std::future::poll_fn(|cx| http_body::Body::poll_frame(std::pin::Pin::new(&mut body), cx)).await
    {
        if let Ok(data) = frame.ok()?.into_data() {
            if bytes.len() + data.len() > LARGEST_ANSWER {
                return None;
            }
            bytes.extend_from_slice(&data);
        }
    }
    Some(bytes)
}

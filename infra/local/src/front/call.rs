//! A call as it arrives: its caller, its service, and its target.

use std::sync::{Mutex, OnceLock, PoisonError};

use axum::extract::Request;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::statements::{self, Statement};
use super::{Front, PROVIDER};
use crate::calls::Needed;
use crate::catcher::ses::address;
use crate::s3::{self, Posted, What};
use crate::template::secret_name;

/// The services whose calls policies have to allow.
const GRANTED: &[&str] = &["dynamodb", "sqs", "s3", "ses", "secretsmanager"];

/// A parsed call.
pub(super) struct Arrived {
    pub(super) caller: String,
    /// The session token of the calling process, if a function made the call.
    pub(super) process: String,
    pub(super) service: String,
    pub(super) operation: String,
    pub(super) target: String,
    pub(super) path: String,
    pub(super) method: http::Method,
    pub(super) headers: HeaderMap,
    /// Empty for S3.
    pub(super) body: Bytes,
    /// The body of a call to a service that speaks JSON.
    pub(super) request: Value,
    /// The caller whose signature a presigned URL bears.
    signer: Option<String>,
    /// Set for a call to S3, whose body has not been read yet.
    pub(super) object: Option<ForS3>,
}

/// A call to S3.
pub(super) struct ForS3 {
    pub(super) what: What,
    /// `None` once the call is carried out.
    request: Mutex<Option<Request>>,
    /// The parts of an upload that only its form contains.
    pub(super) posted: OnceLock<Posted>,
}

impl ForS3 {
    pub(super) fn take(&self) -> Option<Request> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Arrived {
    /// Returns a call to S3, or the request if it is for another service. A call to S3 is signed in
    /// a header, in its URL, in its form, or not at all.
    pub(super) fn at_s3(front: &Front, request: Request) -> Result<Self, Box<Request>> {
        let (method, headers) = (request.method().clone(), request.headers().clone());
        let what = What::of(&method, request.uri(), &headers);
        let (signed, in_url) = (Signed::of(&headers), s3::signer(request.uri()));
        let unsigned = !headers.contains_key("authorization");
        if signed.service != "s3" && !(unsigned && (in_url.is_some() || front.s3.has_bucket(&what.bucket))) {
            return Err(Box::new(request));
        }
        let (caller, signer) = match &in_url {
            Some(credential) => {
                (s3::PRESIGNED.to_owned(), Some(front.permissions.caller(Signed::from_scope(credential).access_key)))
            }
            None if what.operation == "PostObject" && unsigned => (s3::PRESIGNED.to_owned(), None),
            None => (front.permissions.caller(signed.access_key), None),
        };
        let path = request.uri().path_and_query().map_or("", |path| path.as_str()).to_owned();
        Ok(Self {
            caller,
            process: process(&headers),
            service: "s3".to_owned(),
            operation: what.operation.to_owned(),
            target: what.bucket.clone(),
            path,
            method,
            headers,
            body: Bytes::new(),
            request: Value::Null,
            signer,
            object: Some(ForS3 { what, request: Mutex::new(Some(request)), posted: OnceLock::new() }),
        })
    }

    pub(super) fn of(front: &Front, parts: http::request::Parts, body: Bytes) -> Self {
        let whole = parts.uri.path_and_query().map_or("", |path| path.as_str()).to_owned();
        let http::request::Parts { method, headers, .. } = parts;
        if let Some(path) = whole.strip_prefix(PROVIDER) {
            let mut words = path.splitn(3, '/');
            let (caller, service) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let path = format!("/{}", words.next().unwrap_or_default());
            let operation = provider_operation(service, &path).to_owned();
            let (caller, process) = caller.split_once('@').unwrap_or((caller, ""));
            let (caller, process, service) = (caller.to_owned(), process.to_owned(), service.to_owned());
            let (target, request) = (String::new(), Value::Null);
            let (signer, object) = (None, None);
            return Self {
                caller,
                process,
                service,
                operation,
                target,
                path,
                method,
                headers,
                body,
                request,
                signer,
                object,
            };
        }
        let signed = Signed::of(&headers);
        let (process, caller, service) =
            (process(&headers), front.permissions.caller(signed.access_key), signed.service);
        let operation = if service == "ses" { "SendEmail".to_owned() } else { operation(&headers) };
        let request = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let target = target_of(&request);
        let (path, signer, object) = (whole, None, None);
        Self { caller, process, service, operation, target, path, method, headers, body, request, signer, object }
    }

    /// Returns the caller whose signature a presigned URL or form bears.
    pub(super) fn signer(&self, front: &Front) -> Option<String> {
        let posted = self.object.as_ref().and_then(|object| object.posted.get());
        posted.map(|posted| front.permissions.caller(posted.access_key.clone())).or_else(|| self.signer.clone())
    }

    /// Returns the key of the row if the call is about a single row.
    pub(super) fn key(&self) -> Option<String> {
        let key = self.request.get("Key").and_then(Value::as_object)?;
        let values = key.values().filter_map(Value::as_object).flat_map(|value| value.values());
        Some(values.filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
    }

    /// Returns the caller whose policies apply: the signer of a presigned call, else the caller.
    pub(super) fn answers_for(&self) -> &str {
        self.signer.as_deref().unwrap_or(&self.caller)
    }

    /// Returns the actions that policies have to allow before the call is carried out. Calls to
    /// providers need none because they are outside AWS. The signer of a form is known only when
    /// the form is read.
    pub(super) fn to_be_granted(&self) -> Vec<Needed> {
        if GRANTED.contains(&self.service.as_str()) { self.needed() } else { Vec::new() }
    }

    /// Returns the values of the keys that conditions of policies can test.
    pub(super) fn context(&self) -> Vec<(&'static str, String)> {
        match self.object.as_ref().and_then(|object| object.what.prefix.clone()) {
            Some(prefix) => vec![("s3:prefix", prefix)],
            None if self.service == "ses" => vec![("ses:FromAddress", sender(&self.request).to_owned())],
            None => Vec::new(),
        }
    }

    /// Returns the actions that the call needs.
    pub(super) fn needed(&self) -> Vec<Needed> {
        match &self.object {
            Some(ForS3 { what, posted, .. }) => posted.get().map_or_else(|| what.needed(), Posted::needed),
            None => actions(&self.service, &self.operation, &self.target, &self.request),
        }
    }
}

fn process(headers: &HeaderMap) -> String {
    headers.get("x-amz-security-token").and_then(|token| token.to_str().ok()).unwrap_or_default().to_owned()
}

/// The access key and the service of a request, from the credential of its SigV4 header. The
/// signature is not checked.
#[derive(Debug, Default, PartialEq, Eq)]
struct Signed {
    access_key: String,
    service: String,
}

impl Signed {
    fn of(headers: &HeaderMap) -> Self {
        let header = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let scope = header.split_once("Credential=").map(|(_, rest)| rest).unwrap_or_default();
        Self::from_scope(scope.split([',', ' ']).next().unwrap_or_default())
    }

    fn from_scope(scope: &str) -> Self {
        let mut parts = scope.split('/');
        let access_key = parts.next().unwrap_or_default().to_owned();
        let service = parts.nth(2).unwrap_or_default().to_owned();
        Self { access_key, service }
    }
}

fn operation(headers: &HeaderMap) -> String {
    let target = headers.get("x-amz-target").and_then(|value| value.to_str().ok()).unwrap_or_default();
    target.rsplit('.').next().unwrap_or_default().to_owned()
}

/// Returns the method of a provider call. In `/bot<token>/<method>` and
/// `/message/<method>/<instance>` it is the second part; the first may be secret. A call to a
/// responder is always `Ask`, at any path.
fn provider_operation<'a>(service: &str, path: &'a str) -> &'a str {
    match service {
        "responder" => "Ask",
        _ => path.split(['/', '?']).nth(2).unwrap_or_default(),
    }
}

/// Returns the table, queue or secret that a request names. Several tables are listed once each, as
/// `a+b`.
fn target_of(request: &Value) -> String {
    if let Some(table) = request["TableName"].as_str() {
        return table.to_owned();
    }
    if let Some(url) = request["QueueUrl"].as_str() {
        return url.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if let Some(secret) = request["SecretId"].as_str() {
        return secret_name(secret).to_owned();
    }
    let mut tables: Vec<&str> = Vec::new();
    let of_statements = statements::texts(request).into_iter().filter_map(Statement::read).map(|known| known.table);
    for table in of_statements.chain(parts(request).map(|(_, table)| table)).chain(batched(request)) {
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    tables.join("+")
}

/// Returns the operation and the table of each part of a transaction.
fn parts(request: &Value) -> impl Iterator<Item = (&str, &str)> {
    let items = request["TransactItems"].as_array().map(Vec::as_slice).unwrap_or_default();
    let parts = items.iter().filter_map(Value::as_object).flatten();
    parts.map(|(part, what)| (part.as_str(), what["TableName"].as_str().unwrap_or_default()))
}

/// Returns the tables of a batch of keys or rows.
fn batched(request: &Value) -> impl Iterator<Item = &str> {
    request["RequestItems"].as_object().into_iter().flatten().map(|(table, _)| table.as_str())
}

/// Returns the sender address of an email.
fn sender(request: &Value) -> &str {
    address(request["FromEmailAddress"].as_str().unwrap_or_default())
}

/// Returns the actions that a policy has to allow for a call, without duplicates. A query of an
/// index needs the index. A transaction and a batch of statements need the actions of their parts.
/// A batch of messages needs the action of a single message. An email needs its sender identity and
/// its configuration set.
fn actions(service: &str, operation: &str, target: &str, request: &Value) -> Vec<Needed> {
    let needed = |action: &str, on: &str| Needed { action: format!("{service}:{action}"), on: on.to_owned() };
    let mut all: Vec<_> = match operation {
        "Query" | "Scan" => match request["IndexName"].as_str() {
            Some(index) => vec![needed(operation, &format!("{target}/index/{index}"))],
            None => vec![needed(operation, target)],
        },
        "TransactWriteItems" | "TransactGetItems" => {
            parts(request).map(|(part, table)| needed(&format!("{part}Item"), table)).collect()
        }
        "ExecuteStatement" | "BatchExecuteStatement" | "ExecuteTransaction" => {
            let known = statements::texts(request).into_iter().filter_map(Statement::read);
            known.map(|statement| needed(statement.verb.action(), &statement.on())).collect()
        }
        "SendEmail" => {
            let set = request["ConfigurationSetName"].as_str().map(|set| format!("configuration-set/{set}"));
            let on = std::iter::once(format!("identity/{}", sender(request))).chain(set);
            on.map(|on| needed(operation, &on)).collect()
        }
        "BatchGetItem" | "BatchWriteItem" => batched(request).map(|table| needed(operation, table)).collect(),
        _ => vec![needed(operation.strip_suffix("Batch").unwrap_or(operation), target)],
    };
    // An unreadable request needs an action that no policy grants.
    if all.is_empty() {
        all.push(needed(operation, target));
    }
    all.sort();
    all.dedup();
    all
}

/// Removes the headers that belong to a connection.
pub(super) fn end_to_end(mut headers: HeaderMap<HeaderValue>) -> HeaderMap<HeaderValue> {
    for name in ["host", "connection", "content-length", "transfer-encoding", "keep-alive", "expect"] {
        headers.remove(HeaderName::from_static(name));
    }
    headers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_caller_and_the_service_are_read_from_the_credential() {
        let mut headers = HeaderMap::new();
        let header = "AWS4-HMAC-SHA256 Credential=local-a/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0";
        headers.insert("authorization", HeaderValue::from_static(header));
        let signed = Signed { access_key: "local-a".to_owned(), service: "dynamodb".to_owned() };
        assert_eq!(Signed::of(&headers), signed);
        assert_eq!(Signed::of(&HeaderMap::new()), Signed::default());
    }

    #[test]
    fn the_operation_of_a_provider_is_its_method_and_of_a_responder_is_ask() {
        for (service, path, operation) in [
            ("telegram", "/bot1:S/sendMessage?chat_id=1", "sendMessage"),
            ("evolution", "/message/sendText/main", "sendText"),
            ("telegram", "/", ""),
            ("responder", "/", "Ask"),
            ("responder", "/a/b/c?d=e", "Ask"),
        ] {
            assert_eq!(provider_operation(service, path), operation, "{service}{path}");
        }
    }

    #[test]
    fn the_target_of_a_call_is_named_by_its_request() {
        let arn = "arn:aws:secretsmanager:us-east-1:000000000000:secret:s-local0";
        let insert = |table: &str| json!({"Statement": format!("INSERT INTO \"{table}\" VALUE {{'pk': ?}}")});
        let put = |table: &str| json!({"Put": {"TableName": table}});
        for (request, target) in [
            (json!({"TableName": "t"}), "t"),
            (json!({"QueueUrl": "http://x/000000000000/q"}), "q"),
            (json!({"SecretId": arn}), "s"),
            (json!({"SecretId": "s"}), "s"),
            (json!({"TransactItems": [put("b"), put("a"), put("b")]}), "b+a"),
            (json!({"Statements": [insert("t"), insert("t")]}), "t"),
            (json!({"TransactStatements": [insert("b"), insert("a")]}), "b+a"),
            (insert("t"), "t"),
            (json!({"RequestItems": {"t": {"Keys": []}}}), "t"),
            (json!({}), ""),
        ] {
            assert_eq!(target_of(&request), target, "{request}");
        }
    }

    #[test]
    fn a_call_needs_the_actions_of_its_parts() {
        let needed = |action: &str, on: &str| Needed { action: action.to_owned(), on: on.to_owned() };
        assert_eq!(actions("sqs", "SendMessageBatch", "q", &json!({})), [needed("sqs:SendMessage", "q")]);
        let query = json!({"TableName": "t", "IndexName": "i"});
        assert_eq!(actions("dynamodb", "Query", "t", &query), [needed("dynamodb:Query", "t/index/i")]);
        let put = json!({"Put": {"TableName": "a"}});
        let check = json!({"ConditionCheck": {"TableName": "b"}});
        let both = json!({"TransactItems": [put, check, put]});
        let expected = [needed("dynamodb:ConditionCheckItem", "b"), needed("dynamodb:PutItem", "a")];
        assert_eq!(actions("dynamodb", "TransactWriteItems", "a+b", &both), expected);
        let statements = ["INSERT INTO \"a\" VALUE {}", "UPDATE \"b\" SET x = 1", "INSERT INTO \"a\" VALUE {}"];
        let batch = json!({"Statements": statements.map(|text| json!({"Statement": text}))});
        let expected = [needed("dynamodb:PartiQLInsert", "a"), needed("dynamodb:PartiQLUpdate", "b")];
        assert_eq!(actions("dynamodb", "BatchExecuteStatement", "a+b", &batch), expected);
        let unreadable = json!({"Statement": "nonsense"});
        let expected = [needed("dynamodb:ExecuteStatement", "")];
        assert_eq!(actions("dynamodb", "ExecuteStatement", "", &unreadable), expected);
        let mail = json!({"FromEmailAddress": "Ana <a@b.co>", "ConfigurationSetName": "set"});
        let expected = [needed("ses:SendEmail", "configuration-set/set"), needed("ses:SendEmail", "identity/a@b.co")];
        assert_eq!(actions("ses", "SendEmail", "", &mail), expected);
        let keys = json!({"RequestItems": {"a": {}, "b": {}}});
        let expected = [needed("dynamodb:BatchGetItem", "a"), needed("dynamodb:BatchGetItem", "b")];
        assert_eq!(actions("dynamodb", "BatchGetItem", "a+b", &keys), expected);
    }
}

//! Cross-origin requests: what the rules of a bucket allow a web page to do.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::refuse;
use crate::model::CorsRule;

/// Answers a preflight request.
pub(super) fn preflight(rules: &[CorsRule], headers: &HeaderMap) -> Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (origin, method) = (text("origin"), text("access-control-request-method"));
    let wanted = text("access-control-request-headers");
    let asked: Vec<_> = wanted.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let fits = |rule: &&CorsRule| {
        let allows = |name: &&str| rule.headers.iter().any(|allowed| matches(allowed, name));
        rule.allows(origin, method) && asked.iter().all(allows)
    };
    let Some(rule) = rules.iter().find(fits) else {
        let message = "CORSResponse: This CORS request is not allowed.";
        return refuse(403, "AccessForbidden", message);
    };
    let mut response = Response::new(Body::empty());
    let into = response.headers_mut();
    rule.write_headers(origin, into);
    put(into, "access-control-allow-headers", wanted);
    if let Some(seconds) = rule.max_age {
        put(into, "access-control-max-age", &seconds.to_string());
    }
    response
}

/// Adds the CORS headers if a rule allows the page to read the response.
pub(super) fn allow(rules: &[CorsRule], origin: &HeaderValue, method: &Method, into: &mut HeaderMap) {
    let origin = origin.to_str().unwrap_or_default();
    if let Some(rule) = rules.iter().find(|rule| rule.allows(origin, method.as_str())) {
        rule.write_headers(origin, into);
    }
}

impl CorsRule {
    fn allows(&self, origin: &str, method: &str) -> bool {
        let origins = self.origins.iter().any(|allowed| matches(allowed, origin));
        origins && self.methods.iter().any(|allowed| allowed == method)
    }

    fn write_headers(&self, origin: &str, into: &mut HeaderMap) {
        let everybody = self.origins.iter().any(|allowed| allowed == "*");
        put(into, "access-control-allow-origin", if everybody { "*" } else { origin });
        put(into, "access-control-allow-methods", &self.methods.join(", "));
        put(into, "access-control-expose-headers", &self.exposed.join(", "));
        put(into, "vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method");
    }
}

/// Matches a pattern in which one asterisk stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.to_lowercase(), text.to_lowercase());
    match pattern.split_once('*') {
        Some((before, after)) => {
            text.len() >= before.len() + after.len() && text.starts_with(before) && text.ends_with(after)
        }
        None => pattern == text,
    }
}

fn put(into: &mut HeaderMap, name: &'static str, value: &str) {
    if let Some(value) = HeaderValue::from_str(value).ok().filter(|value| !value.is_empty()) {
        into.insert(HeaderName::from_static(name), value);
    }
}

//! `GET /console`: the console page. The page contains no data. The operator enters an API key,
//! which stays in that browser tab.

use umavez_platform::http::Answer;

const PAGE: &str = include_str!("console.html");

/// The page loads nothing from other origins and connects only to this API.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

pub fn page() -> Answer {
    Answer::text(200, "text/html; charset=utf-8", PAGE.to_owned())
        .header("content-security-policy", POLICY)
        .header("x-content-type-options", "nosniff")
        .header("referrer-policy", "no-referrer")
        .header("cache-control", "no-store")
}

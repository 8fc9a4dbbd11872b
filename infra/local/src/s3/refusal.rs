//! Error responses in the format of S3.

use axum::response::{IntoResponse, Response};
use http::StatusCode;

pub fn refuse(status: u16, code: &str, message: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{}</Message>\
         <RequestId>local</RequestId></Error>",
        escaped(message)
    );
    (status, [("content-type", "application/xml")], body).into_response()
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

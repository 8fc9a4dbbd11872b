//! S3 in memory: what the product uses of it.

use std::collections::BTreeMap;

use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;

#[derive(Debug, Default)]
pub struct Objects {
    /// The content of each object, by path.
    objects: BTreeMap<String, Vec<u8>>,
}

impl Objects {
    /// Stores an object. Returns its ETag, without quotation marks.
    pub fn put(&mut self, bucket: &str, key: &str, content: Vec<u8>) -> String {
        let etag = etag(&content);
        self.objects.insert(format!("aws.local/{bucket}/{key}"), content);
        etag.trim_matches('"').to_owned()
    }

    /// Carries out a request: PUT, GET of a range, or DELETE of one object.
    pub fn call(&mut self, request: &HttpRequest) -> HttpResponse {
        let uri = request.uri();
        let path = uri.split_once("://").map_or(uri, |(_, rest)| rest);
        let path = path.split('?').next().unwrap_or_default().to_owned();
        let header = |name: &str| request.headers().get(name).unwrap_or_default().trim_matches('"').to_owned();
        match request.method() {
            "PUT" => {
                let content = request.body().bytes().expect("the product puts what is in memory").to_vec();
                let etag = etag(&content);
                self.objects.insert(path, content);
                with(200, &[("etag", &etag)], Vec::new())
            }
            "DELETE" => {
                self.objects.remove(&path);
                with(204, &[], Vec::new())
            }
            "GET" => {
                let Some(content) = self.objects.get(&path) else { return error(404, "NoSuchKey") };
                let wanted = header("if-match");
                if !wanted.is_empty() && wanted != etag(content).trim_matches('"') {
                    return error(412, "PreconditionFailed");
                }
                let range = header("range");
                let range = range.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
                let (from, to) = match range.map(|(from, to)| (from.parse::<usize>(), to.parse::<usize>())) {
                    Some((Ok(from), Ok(to))) => (from, (to + 1).min(content.len())),
                    _ => (0, content.len()),
                };
                let part = content.get(from..to).unwrap_or_default().to_vec();
                let length = part.len().to_string();
                with(206, &[("etag", &etag(content)), ("content-length", &length)], part)
            }
            other => panic!("the simulator has no S3 operation {other}"),
        }
    }
}

/// Returns the ETag, which depends on nothing but the content, as on S3.
fn etag(content: &[u8]) -> String {
    let hash = content
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("\"{hash:032x}\"")
}

fn with(status: u16, headers: &[(&'static str, &str)], body: Vec<u8>) -> HttpResponse {
    let mut response = HttpResponse::new(status.try_into().expect("a status"), SdkBody::from(body));
    for (name, value) in headers {
        response.headers_mut().insert(*name, (*value).to_owned());
    }
    response
}

fn error(status: u16, code: &str) -> HttpResponse {
    with(status, &[], format!("<Error><Code>{code}</Code><Message>no</Message></Error>").into_bytes())
}

use axum::http::Request;

use super::*;

const AT: i64 = 1_583_348_638_390;

#[test]
fn a_get_with_repeated_query_and_headers_is_the_documented_event() {
    let request = Request::get("/things/a%20b?tag=x&tag=y%2Cz&empty=&flag&space=a+b")
        .header("Host", "api.example.test:3000")
        .header("User-Agent", "agent")
        .header("X-Two", "1")
        .header("X-Two", "2")
        .header("Cookie", "a=1; b=2")
        .header("Connection", "keep-alive")
        .header("X-Amzn-Trace-Id", "Root=1-5e6722a7-cc56xmpl46db7ae02d4da47e");
    let event = build_event(&incoming(request, b""), None);
    let expected = json!({
        "version": "2.0",
        "routeKey": "GET /things/{id}",
        "rawPath": "/things/a%20b",
        "rawQueryString": "tag=x&tag=y%2Cz&empty=&flag&space=a+b",
        "cookies": ["a=1", "b=2"],
        "headers": {
            "content-length": "0",
            "host": "api.example.test:3000",
            "user-agent": "agent",
            "x-amzn-trace-id": "Root=1-5e6722a7-cc56xmpl46db7ae02d4da47e",
            "x-forwarded-for": "192.0.2.1",
            "x-forwarded-port": "3000",
            "x-forwarded-proto": "http",
            "x-two": "1,2",
        },
        "queryStringParameters": { "tag": "x,y,z", "empty": "", "flag": "", "space": "a b" },
        "requestContext": {
            "accountId": "000000000000",
            "apiId": "local-api",
            "domainName": "api.example.test",
            "domainPrefix": "api",
            "http": {
                "method": "GET",
                "path": "/things/a%20b",
                "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1",
                "userAgent": "agent",
            },
            "requestId": "JKJaXmPLvHcESHA=",
            "routeKey": "GET /things/{id}",
            "stage": "$default",
            "time": "04/Mar/2020:19:03:58 +0000",
            "timeEpoch": AT,
        },
        "pathParameters": { "id": "a b" },
        "isBase64Encoded": false,
    });
    assert_eq!(event, expected);
}

#[test]
fn empty_fields_are_omitted() {
    let mut incoming = incoming(Request::get("/things/7"), b"");
    incoming.parameters.clear();
    let event = build_event(&incoming, None);
    for name in ["cookies", "queryStringParameters", "pathParameters", "body", "stageVariables"] {
        assert_eq!(event.get(name), None, "{name}");
    }
    assert_eq!(event["rawQueryString"], "");
}

#[test]
fn a_text_body_stays_as_it_is_and_any_other_is_base64() {
    let given = |content_type: &str, body: &[u8]| {
        let event = build_event(&incoming(Request::post("/").header("Content-Type", content_type), body), None);
        (event["body"].as_str().map(str::to_owned), event["isBase64Encoded"].as_bool().unwrap())
    };
    for text in
        ["application/json", "Application/JSON; charset=utf-8", "text/csv", "application/xml", "application/javascript"]
    {
        assert_eq!(given(text, "é".as_bytes()), (Some("é".to_owned()), false), "{text}");
    }
    for binary in [
        "application/octet-stream",
        "application/problem+json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "image/png",
        "",
    ] {
        assert_eq!(given(binary, b"abc"), (Some("YWJj".to_owned()), true), "{binary}");
    }
    assert_eq!(given("text/csv", b"S\xe3o"), (Some("S\u{fffd}o".to_owned()), false), "invalid UTF-8");
    assert_eq!(given("image/png", b""), (None, false));
}

#[test]
fn the_event_of_the_authorizer_has_everything_except_the_body() {
    let incoming = incoming(Request::post("/things/7?a=b").header("Authorization", "Bearer x"), b"secret");
    let event = authorizer_event(&incoming);
    assert_eq!(event["version"], "2.0");
    assert_eq!(event["type"], "REQUEST");
    assert_eq!(event["routeArn"], "arn:aws:execute-api:us-east-1:000000000000:local-api/$default/POST/things/7");
    assert_eq!(event["identitySource"], Value::Null);
    assert_eq!(event["headers"]["authorization"], "Bearer x");
    assert_eq!(event["requestContext"]["http"]["method"], "POST");
    assert_eq!((event.get("body"), event.get("isBase64Encoded")), (None, None));
}

#[test]
fn the_context_of_the_authorizer_is_in_the_request_context() {
    let event = build_event(&incoming(Request::get("/"), b""), Some(json!({ "who": "me" })));
    assert_eq!(event["requestContext"]["authorizer"], json!({ "lambda": { "who": "me" } }));
}

#[test]
fn the_address_of_the_client_is_appended_to_x_forwarded_for() {
    let event = build_event(&incoming(Request::get("/").header("X-Forwarded-For", "198.51.100.9"), b""), None);
    assert_eq!(event["headers"]["x-forwarded-for"], "198.51.100.9, 192.0.2.1");
}

fn incoming(request: http::request::Builder, body: &[u8]) -> Incoming {
    Incoming {
        id: "JKJaXmPLvHcESHA=".to_owned(),
        route_key: "GET /things/{id}".to_owned(),
        parameters: [("id".to_owned(), "a b".to_owned())].into(),
        source_ip: "192.0.2.1".to_owned(),
        at_ms: AT,
        parts: request.body(()).unwrap().into_parts().0,
        body: Bytes::copy_from_slice(body),
    }
}

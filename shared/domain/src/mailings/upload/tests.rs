use serde_json::json;

use super::*;

type Refusals = Vec<(String, FieldProblem)>;

const HEX: &str = "2CF24DBA5FB0A30E26E83B2AC5B9E29E1B161E5C1FA7425E73043362938B9824";
const BASE64: &str = "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";

fn refusals(errors: Vec<FieldError>) -> Refusals {
    errors.into_iter().map(|error| (error.field, error.code)).collect()
}

fn refused(what: &[(&str, FieldProblem)]) -> Refusals {
    what.iter().map(|(field, code)| ((*field).to_owned(), *code)).collect()
}

fn csv(query: &[(&str, &str)]) -> Result<UploadRequest, Refusals> {
    UploadRequest::of_csv(query.iter().copied()).map_err(refusals)
}

fn form(file: &str, form: &[(&str, &str)], query: &[(&str, &str)]) -> Result<UploadRequest, Refusals> {
    let form: Vec<_> = form.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    UploadRequest::of_form(file, &form, query.iter().copied()).map_err(refusals)
}

fn json(body: &Value) -> Result<UploadRequest, Refusals> {
    UploadRequest::of_json(body.as_object().expect("an object")).map_err(refusals)
}

fn plain(file_name: &str) -> UploadRequest {
    UploadRequest {
        file_name: file_name.to_owned(),
        mode: NameMode::Lenient,
        options: ImportOptions::default(),
        content: None,
        unsubscribe: true,
        list: None,
        sha256: None,
        size: None,
    }
}

#[test]
fn the_options_of_a_csv_upload_are_in_its_query() {
    assert_eq!(csv(&[("filename", "C:\\x\\monthly.csv")]), Ok(plain("monthly.csv")));
    let query = [("filename", "m.csv"), ("mode", "strict"), ("encoding", "ISO-8859-1"), ("email_column", " Contato ")];
    let options = ImportOptions { encoding: Some(Encoding::Latin1), email_column: Some("Contato".to_owned()) };
    assert_eq!(csv(&query), Ok(UploadRequest { mode: NameMode::Strict, options, ..plain("m.csv") }));
}

#[test]
fn an_invalid_query_is_refused_with_the_names_of_its_fields() {
    use FieldProblem::{Conflicting, Malformed, Missing, NotAllowed, OutOfRange, Unknown};
    let long = "x".repeat(201);
    for (query, what) in [
        (vec![], refused(&[("filename", Missing)])),
        (vec![("filename", " ")], refused(&[("filename", Missing)])),
        (vec![("filename", "a/")], refused(&[("filename", Malformed)])),
        (vec![("filename", "a"), ("filename", "b")], refused(&[("filename", Conflicting)])),
        (vec![("filename", "a"), ("mode", "Strict")], refused(&[("mode", NotAllowed)])),
        (vec![("filename", "a"), ("encoding", "utf-7")], refused(&[("encoding", NotAllowed)])),
        (vec![("filename", "a"), ("email_column", &long)], refused(&[("email_column", OutOfRange)])),
        (vec![("filename", "a"), ("subject", "s")], refused(&[("subject", Unknown)])),
    ] {
        assert_eq!(csv(&query), Err(what), "{query:?}");
    }
}

#[test]
fn a_form_has_content_and_options_beside_the_file() {
    assert_eq!(form("monthly.csv", &[("subject", ""), ("html", " ")], &[]), Ok(plain("monthly.csv")), "left blank");
    let fields = [
        ("subject", "Oi {{nome}}"),
        ("text", "Olá\r\n{{nome}}"),
        ("html", ""),
        ("from", "Loja <a@b.co>"),
        ("list", "Clientes"),
        ("unsubscribe", "false"),
        ("email_column", "contato"),
    ];
    let request = form("m.csv", &fields, &[("mode", "strict")]).expect("read");
    let content = request.content.expect("content");
    assert_eq!((content.subject.as_str(), content.text.as_deref()), ("Oi {{nome}}", Some("Olá\r\n{{nome}}")));
    assert_eq!((content.html, request.list.as_deref()), (None, Some("Clientes")));
    assert_eq!((request.unsubscribe, request.mode), (false, NameMode::Strict));
    assert_eq!(request.options.email_column.as_deref(), Some("contato"));
    assert!(form("m.csv", &[("unsubscribe", "true")], &[]).is_ok_and(|request| request.unsubscribe));
}

#[test]
fn an_invalid_form_is_refused_with_the_names_of_its_fields() {
    use FieldProblem::{Conflicting, Malformed, Missing, Unknown, WrongType};
    for (fields, query, what) in [
        (vec![("subject", "s"), ("from", "a@b.co")], vec![], refused(&[("text", Missing)])),
        (
            vec![("subject", "a\r\nBcc: x"), ("text", "t"), ("from", "a@b.co")],
            vec![],
            refused(&[("subject", Malformed)]),
        ),
        (vec![("unsubscribe", "yes")], vec![], refused(&[("unsubscribe", WrongType)])),
        (vec![("list", "a"), ("list", "a")], vec![], refused(&[("list", Conflicting)])),
        (vec![("mode", "strict")], vec![("mode", "strict")], refused(&[("mode", Conflicting)])),
        (vec![("sha256", HEX)], vec![], refused(&[("sha256", Unknown)])),
        (vec![("filename", "b.csv")], vec![], refused(&[("filename", Unknown)])),
        (vec![], vec![("filename", "b.csv")], refused(&[("filename", Unknown)])),
        (vec![], vec![("list", "a")], refused(&[("list", Unknown)])),
    ] {
        assert_eq!(form("a.csv", &fields, &query), Err(what), "{fields:?} {query:?}");
    }
    assert_eq!(form("", &[], &[]), Err(refused(&[("file", Malformed)])));
}

#[test]
fn a_file_that_is_uploaded_later_is_announced_with_json() {
    let asked = json!({"filename": "big.csv", "sha256": HEX, "size": 1_073_741_824_u64, "mode": "strict",
        "subject": "s", "html": "h", "from": "a@b.co", "unsubscribe": false});
    let request = json(&asked).expect("read");
    assert_eq!(request.sha256, Some(HEX.to_lowercase()));
    assert_eq!((request.size, request.unsubscribe), (Some(LARGEST_UPLOAD), false));
    assert!(request.content.is_some());
    let request = json(&json!({"filename": "big.csv", "sha256": BASE64})).expect("read");
    assert_eq!(request.sha256, Some(HEX.to_lowercase()), "the same hash in the encoding of S3");
    assert_eq!(json(&json!({"filename": "big.csv"})), Ok(plain("big.csv")));
}

#[test]
fn an_invalid_announcement_is_refused_with_the_names_of_its_fields() {
    use FieldProblem::{Malformed, Missing, OutOfRange, Unknown, WrongType};
    for (body, what) in [
        (json!({}), refused(&[("filename", Missing)])),
        (json!({"filename": "a", "mode": "strict"}), refused(&[("sha256", Missing)])),
        (json!({"filename": "a", "mode": "strict", "sha256": "x"}), refused(&[("sha256", Malformed)])),
        (json!({"filename": "a", "sha256": &HEX[1..]}), refused(&[("sha256", Malformed)])),
        (json!({"filename": "a", "sha256": &BASE64[4..]}), refused(&[("sha256", Malformed)])),
        (json!({"filename": "a", "sha256": 7}), refused(&[("sha256", WrongType)])),
        (json!({"filename": "a", "size": 0}), refused(&[("size", OutOfRange)])),
        (json!({"filename": "a", "size": LARGEST_UPLOAD + 1}), refused(&[("size", OutOfRange)])),
        (json!({"filename": "a", "size": -1}), refused(&[("size", OutOfRange)])),
        (json!({"filename": "a", "size": 1.5}), refused(&[("size", OutOfRange)])),
        (json!({"filename": "a", "size": "1"}), refused(&[("size", WrongType)])),
        (json!({"filename": "a", "file": "x", "reply_to": "r"}), {
            let content = [("from", Missing), ("subject", Missing), ("reply_to", Malformed), ("text", Missing)];
            let mut what = refused(&content);
            what.extend(refused(&[("file", Unknown)]));
            what
        }),
    ] {
        assert_eq!(json(&body), Err(what), "{body}");
    }
}

#[test]
fn the_canonical_text_of_a_request_contains_all_its_fields() {
    let asked = UploadRequest::of_csv([("filename", "a.csv")]).expect("a request");
    assert_eq!(asked.canonical_text(), r#"[["file_name","a.csv"],["mode","lenient"],["unsubscribe","true"]]"#);
    let body = serde_json::json!({"filename": "a.csv", "mode": "strict", "encoding": "latin1", "email_column": "e",
        "subject": "a \"b\"", "html": "h", "text": "t", "from": "a@b.co", "reply_to": "c@d.co", "unsubscribe": false,
        "list": "l", "sha256": "0".repeat(64), "size": 7});
    let asked = UploadRequest::of_json(body.as_object().expect("an object")).expect("a request");
    let said = format!(
        r#"[["file_name","a.csv"],["mode","strict"],["encoding","latin1"],["email_column","e"],["subject","a \"b\""],["html","h"],["text","t"],["from","a@b.co"],["reply_to","c@d.co"],["unsubscribe","false"],["list","l"],["sha256","{}"],["size","7"]]"#,
        "0".repeat(64)
    );
    assert_eq!(asked.canonical_text(), said);
}

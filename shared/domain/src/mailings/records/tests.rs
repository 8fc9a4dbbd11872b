use super::*;
use crate::mailings::{Encoding, ImportOptions};

type AllRecords = Vec<Result<Record, UnreadableFile>>;

fn detect(file: &[u8]) -> Format {
    Format::detect(file, true, &ImportOptions::default()).expect("a format")
}

fn all(file: &[u8]) -> AllRecords {
    let format = detect(file);
    Records::of(&file[format.start.next_byte as usize..], &format, format.start, true).collect()
}

/// Reads a file as an importer does: in pieces of this size, and in longer ones only where a record
/// does not fit. It keeps nothing but the checkpoint after each piece.
fn in_pieces(file: &[u8], size: usize) -> AllRecords {
    let checkpoint = serde_json::to_string(&detect(file)).expect("json");
    let (mut at, mut found, mut wanted) = (detect(file).start, AllRecords::new(), size);
    while (at.next_byte as usize) < file.len() || at.skipping {
        let format: Format = serde_json::from_str(&checkpoint).expect("read back");
        let from = at.next_byte as usize;
        let to = (from + wanted).min(file.len());
        let mut records = Records::of(&file[from..to], &format, at, to == file.len());
        found.extend(records.by_ref());
        if found.last().is_some_and(Result::is_err) {
            break;
        }
        wanted = if records.place() == at { wanted + size } else { size };
        assert!(wanted <= LONGEST_RECORD + 4 + size, "a piece of that length gets on");
        at = records.place();
    }
    found
}

fn shown(found: &AllRecords) -> Vec<String> {
    let show = |record: &Result<Record, UnreadableFile>| match record {
        Ok(Record { line, recipient: Ok(row), .. }) => format!("{line} {} {:?}", row.email, row.variables),
        Ok(Record { line, recipient: Err(problem), .. }) => format!("{line} {problem}"),
        Err(unreadable) => unreadable.to_string(),
    };
    found.iter().map(show).collect()
}

fn utf16(text: &str) -> Vec<u8> {
    format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_be_bytes).collect()
}

const FILE: &str = "nome;Email;\r\n\"Ana\r\nMaria\"; A@B.co ;\r\n\r\n;;\nZé;zé;\n\"x \"\"y\"\"\";c@d.co\n;e@f.co;;\n1;2;3;4\n\
    fim;g@bücher.example";

#[test]
fn each_record_is_a_recipient_or_has_a_problem() {
    assert_eq!(
        shown(&all(FILE.as_bytes())),
        [
            r#"2 a@b.co {"nome": "Ana\r\nMaria"}"#,
            "6 email_malformed",
            r#"7 c@d.co {"nome": "x \"y\""}"#,
            r#"8 e@f.co {"nome": ""}"#,
            "9 too_many_fields",
            r#"10 g@xn--bcher-kva.example {"nome": "fim"}"#,
        ]
    );
}

#[test]
fn a_file_has_the_same_records_in_each_encoding() {
    assert_eq!(shown(&all(&utf16(FILE))), shown(&all(FILE.as_bytes())));
    assert_eq!(detect(&utf16(FILE)).encoding, Encoding::Utf16Be);
}

#[test]
fn a_file_has_the_same_records_in_chunks_of_any_size() {
    for file in [FILE.as_bytes().to_vec(), utf16(FILE), b"a@b.co\r\rc@d.co\r".to_vec(), b"email\n\"a@b.co\"".to_vec()] {
        for size in 1..=file.len() {
            assert_eq!(in_pieces(&file, size), all(&file), "{size}");
        }
    }
}

#[test]
fn an_import_resumes_at_any_record() {
    let file = FILE.as_bytes();
    let (format, whole) = (detect(file), all(file));
    for (done, record) in whole.iter().enumerate() {
        let after = record.as_ref().expect("a record").after;
        let rest: AllRecords = Records::of(&file[after.next_byte as usize..], &format, after, true).collect();
        assert_eq!(rest, whole[done + 1..]);
    }
}

#[test]
fn a_line_that_is_too_long_does_not_affect_other_lines() {
    for over in [0, 1, 2, LONGEST_RECORD] {
        for end in ["\n", "\r\n", "\r"] {
            let long = "x".repeat(LONGEST_RECORD - 1 + over);
            let file = format!("email{end}a@b.co{end}{long}{end}c@d.co{end}");
            let found = all(file.as_bytes());
            assert_eq!((found.len(), shown(&found)[2].as_str()), (3, "4 c@d.co {}"), "{over} {end:?}");
            for size in [30_001, LONGEST_RECORD, LONGEST_RECORD + 1] {
                assert_eq!(in_pieces(file.as_bytes(), size), found, "{over} {end:?} {size}");
            }
        }
    }
    let endless = format!("email\n{}", "x".repeat(3 * LONGEST_RECORD));
    assert_eq!(shown(&all(endless.as_bytes())), ["2 row_too_long"]);
    assert_eq!(in_pieces(endless.as_bytes(), 50_000), all(endless.as_bytes()));
}

#[test]
fn an_error_that_ends_the_reading_names_its_line() {
    let open = format!("email\na@b.co\n\"c@d.co\n{}", "e@f.co\n".repeat(20_000));
    for (file, last) in [
        (&b"email\na@b.co\n\"c@d.co\ne@f.co"[..], "quote_never_closes in line 3"),
        (open.as_bytes(), "quote_never_closes in line 3"),
        (b"email,n\na@b.co,\xe7\nc@d.co,", "file_not_utf8 in line 2"),
        (b"email,n\na@b.co,\0\n", "file_not_text in line 2"),
    ] {
        let found = all(file);
        assert_eq!(shown(&found).last().map(String::as_str), Some(last));
        assert_eq!(in_pieces(file, 30_000), found, "{last}");
    }
    let mut odd = utf16("email\na@b.co");
    odd.push(0);
    assert_eq!(shown(&all(&odd)).last().map(String::as_str), Some("file_not_utf16 in line 2"));
}

#[test]
fn random_files_never_panic_and_have_the_same_records_in_chunks() {
    let mut dice = fastrand::Rng::with_seed(11);
    for _ in 0..3_000 {
        let mut file = b"email,a\n".to_vec();
        file.extend((0..dice.usize(..40)).map(|_| b"\"\",\n\r\nab@.c"[dice.usize(..11)]));
        assert_eq!(in_pieces(&file, dice.usize(1..9)), all(&file), "{:?}", String::from_utf8_lossy(&file));
    }
}

//! Runs the examples of the documentation, as they are printed, against a fresh stack per page.
//!
//! A block that begins with "sh example" is run. All blocks of a page run in one shell, in page
//! order, as a reader would paste them. A block that begins with "json answer" or "text answer" is
//! what the example before it prints: `…` stands for any text, and white space does not count.
//!
//! `UMAVEZ_DOCS_PAGE=docs/guides/send.md cargo test -p umavez-tests --test behaviour docs` runs one
//! page.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;
use umavez_local::binaries::{self, workspace_root};
use umavez_tests::docs::pages;
use umavez_tests::{Setup, World};

/// Runs `cargo run -- …` with the program that is already built, against the stack of the test.
const PRELUDE: &str = r#"
cargo() {
  while [ "$1" = run ] || [ "$1" = -q ] || [ "$1" = -- ]; do shift; done
  "$UMAVEZ" --port "$PORT" "$@"
}
"#;

/// The address of the stack in the pages.
const STACK: &str = "http://127.0.0.1:3000";

/// Printed between two examples. No example prints it.
const SEPARATOR: char = '\u{1e}';

/// An example of a page.
struct Example {
    line: usize,
    script: String,
    answer: Option<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_docs_print_what_the_docs_say() {
    let chosen = std::env::var_os("UMAVEZ_DOCS_PAGE").map(PathBuf::from);
    let is_verbose = chosen.is_some();
    let mut ran = 0;
    for page in chosen.map_or_else(pages, |page| vec![workspace_root().join(page)]) {
        let examples = examples(&std::fs::read_to_string(&page).expect("a page"));
        if !examples.is_empty() {
            run_page(&page, &examples, is_verbose).await;
            ran += examples.len();
        }
    }
    assert!(ran > 0, "no page has an example");
}

fn examples(page: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```").filter(|info| !info.is_empty()) else { continue };
        let indent = line.len() - line.trim_start().len();
        let block = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim_start() != "```");
        let text: String = block.map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect();
        match info {
            "sh example" => found.push(Example { line: number + 1, script: text, answer: None }),
            "json answer" | "text answer" => {
                let example = found.last_mut().filter(|example| example.answer.is_none());
                example.unwrap_or_else(|| panic!("line {}: an answer without an example", number + 1)).answer =
                    Some(text);
            }
            _ => {}
        }
    }
    found
}

async fn run_page(page: &Path, examples: &[Example], is_verbose: bool) {
    let world = World::start(Setup::default()).await;
    world.create_key("local", &["*"]).await;
    // A page must work on a stack whose clock was advanced.
    world.advance(Duration::from_secs(7 * 86_400)).await;
    let separator = format!("\nprintf '{SEPARATOR}'\n");
    let scripts: Vec<_> = examples.iter().map(|example| example.script.as_str()).collect();
    let (succeeded, printed, error) = paste(&world, &scripts.join(&separator)).await;
    let mut answers = printed.split(SEPARATOR);
    for example in examples {
        let place = format!("{}, line {}", page.display(), example.line);
        let printed = answers.next().unwrap_or_else(|| panic!("{place}: not reached"));
        if is_verbose {
            println!("---- line {}\n{printed}", example.line);
        }
        if let Some(answer) = &example.answer {
            assert!(is_match(answer, printed), "{place}: the docs say\n{answer}\nbut the example printed\n{printed}");
        }
    }
    assert!(succeeded, "{}: {error}", page.display());
    world.stack.stop().await.expect("the stack stops");
}

/// Runs a script in a shell, in a folder of its own, against the stack of the test. Returns whether
/// it succeeded, what it printed, and its errors.
pub async fn paste(world: &World, script: &str) -> (bool, String, String) {
    let url = world.stack.url();
    let port = url.rsplit(':').next().expect("a port");
    let folder = std::env::temp_dir().join(format!("umavez-docs-{}-{port}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let output = Command::new("bash")
        .args(["-euc", &format!("{PRELUDE}{}", script.replace(STACK, url))])
        .env("UMAVEZ", binaries::directory().expect("a directory").join("umavez-local"))
        .env("PORT", port)
        .env("no_proxy", "127.0.0.1")
        .current_dir(&folder)
        .output()
        .await
        .expect("bash");
    std::fs::remove_dir_all(&folder).expect("removed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(url, STACK);
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Returns whether a text is what a page says, with `…` for any text and without white space.
fn is_match(expected: &str, printed: &str) -> bool {
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let (expected, printed) = (bare(expected), bare(printed));
    let mut parts = expected.split('…');
    let Some(mut rest) = parts.next().and_then(|first| printed.strip_prefix(first)) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn an_answer_is_compared_in_order_and_completely() {
    assert!(is_match("{\"a\": 1, …}", "{\"a\":1,\"b\":2}\n"));
    assert!(is_match("…", "anything"));
    assert!(is_match("a … b … c", "a1b2c"));
    assert!(!is_match("{\"a\": 1}", "{\"a\":1,\"b\":2}"), "printed more than the docs say");
    assert!(!is_match("a … b … c", "a2c1b"), "another order");
    assert!(!is_match("ab…bc", "abc"), "one letter cannot match twice");
}

#[test]
fn an_example_is_found_with_its_answer() {
    let page = "x\n```sh example\necho 1\n```\nthen\n\n```text answer\n1\n```\n```sh\nnot run\n```\n- a\n  ```sh example\n  b\n  ```\n";
    let found = examples(page);
    let read: Vec<_> = found.iter().map(|e| (e.line, e.script.as_str(), e.answer.as_deref())).collect();
    assert_eq!(read, [(2, "echo 1\n", Some("1\n")), (14, "b\n", None)]);
}

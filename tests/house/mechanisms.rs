//! One mechanism per idea: mechanisms that were removed do not come back.

use regex_lite::Regex;

use crate::{sources, without_tests};

/// The number of attribute names in writes and conditions outside the store and the keys. Rows are
/// values: a rule changes the row, and the store writes the difference. The remaining ones are in
/// the limiter, the intent hold, the suppressions and counters, which are changed without a read.
/// This number must only decrease.
const MOST_ATTRIBUTE_LITERALS: usize = 62;

/// The retry loops of the platform outside the store, and why each cannot use `Store::change`.
const RETRY_LOOPS: &[(&str, &str)] = &[
    ("shared/platform/src/limiter.rs", "computes a slot by arithmetic from the bucket that refused it"),
    ("shared/platform/src/intents/guards.rs", "commits the caller's writes too; only the guard is decided again"),
    ("shared/platform/src/lease.rs", "is conditional on the epoch that the last try found, without a read"),
    ("shared/platform/src/ingest/entries.rs", "follows markers from slot to slot, and inserts by several rows"),
    ("shared/platform/src/mailings/counts.rs", "reads the entries of a shard page by page"),
];

pub fn product() -> impl Iterator<Item = (String, String)> {
    let root = umavez_local::binaries::workspace_root();
    ["shared/domain/src", "shared/platform/src", "functions"].into_iter().flat_map(sources).map(move |(path, text)| {
        let path = path.strip_prefix(&root).expect("below the root").display().to_string();
        (path, without_tests(&text).to_owned())
    })
}

#[test]
fn only_the_store_and_a_few_others_retry_lost_races() {
    let gives_up =
        Regex::new(r"for \w+ in 0\.\.=?[A-Z_]*(ROUNDS|TRIES)|Err\(StoreError::Conflict\)").expect("a pattern");
    let repeats = Regex::new(r"\bloop \{").expect("a pattern");
    let is_allowed = |path: &str| path.contains("/store/") || RETRY_LOOPS.iter().any(|(allowed, _)| *allowed == path);
    for (path, text) in product().filter(|(path, _)| !is_allowed(path)) {
        // Loops in functions iterate over files and shards.
        let has_loop = gives_up.is_match(&text) || path.contains("/platform/") && repeats.is_match(&text);
        assert!(!has_loop, "{path} has a retry loop of its own: use Store::change or Store::retry");
    }
}

#[test]
fn only_rows_and_a_few_others_use_attribute_names() {
    let literal = Regex::new(
        r#"(\.(set|set_number|set_value|remove|increment|add|append|append_value|copy|stamp)|Condition::(has|has_not|is|is_not|is_number|at_most|more_than|lacks|shorter|not_stamped|begins_with|Is|IsNot))\(\s*"[a-z_]+""#,
    )
    .expect("a pattern");
    let found: Vec<_> = product()
        .filter(|(path, _)| !path.contains("/store/") && !path.contains("/domain/"))
        .map(|(path, text)| (literal.find_iter(&text).count(), path))
        .filter(|(count, _)| *count > 0)
        .collect();
    let all: usize = found.iter().map(|(count, _)| count).sum();
    assert!(all <= MOST_ATTRIBUTE_LITERALS, "{all} attribute names: {found:?}");
}

#[test]
fn comments_are_at_most_a_hundred_columns_wide() {
    for below in ["shared", "functions", "infra", "tests"] {
        for (path, text) in sources(below) {
            // A row of a table cannot be wrapped.
            let is_table = |line: &&str| line.trim_start_matches(['/', '!', ' ']).starts_with('|');
            let is_comment = |line: &&str| line.trim_start().starts_with("//") && !is_table(line);
            let too_wide: Vec<_> = text.lines().filter(is_comment).filter(|line| line.chars().count() > 100).collect();
            assert!(too_wide.is_empty(), "{}: {too_wide:?}", path.display());
        }
    }
}

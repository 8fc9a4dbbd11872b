//! Event source mappings: they deliver messages and changes to functions and handle failed batches.

mod filter;
mod queue;
mod stream;

pub use filter::{FilterError, check as check_filter, passes as passes_filter};
pub use queue::QueueMapping;
pub use stream::StreamMapping;

use std::collections::HashSet;

use serde_json::Value;

/// The result that a function reports for a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    AllDone,
    AllFailed,
    Failed(HashSet<String>),
}

/// Reads a batch response as Lambda does. No response or an empty list is success. An empty or
/// unknown identifier, or a response that cannot be parsed, fails the whole batch.
fn verdict(answer: &[u8], partial: bool, known: &HashSet<String>) -> Verdict {
    if !partial || answer.is_empty() {
        return Verdict::AllDone;
    }
    let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return Verdict::AllFailed };
    let failures = match answer.get("batchItemFailures") {
        None | Some(Value::Null) => return Verdict::AllDone,
        Some(Value::Array(failures)) if failures.is_empty() => return Verdict::AllDone,
        Some(Value::Array(failures)) => failures,
        Some(_) => return Verdict::AllFailed,
    };
    let ids: Option<HashSet<_>> =
        failures.iter().map(|failure| failure["itemIdentifier"].as_str().map(str::to_owned)).collect();
    match ids {
        Some(ids) if ids.is_subset(known) => Verdict::Failed(ids),
        _ => Verdict::AllFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_response_is_read_as_lambda_reads_it() {
        let known = HashSet::from(["a".to_owned(), "b".to_owned()]);
        let judge = |answer: &str| verdict(answer.as_bytes(), true, &known);
        assert_eq!(judge(""), Verdict::AllDone);
        assert_eq!(judge("null"), Verdict::AllDone);
        assert_eq!(judge(r#"{"batchItemFailures":[]}"#), Verdict::AllDone);
        let one = r#"{"batchItemFailures":[{"itemIdentifier":"b"}]}"#;
        assert_eq!(judge(one), Verdict::Failed(HashSet::from(["b".to_owned()])));
        for whole in [
            "{",
            r#"{"batchItemFailures":[{"itemIdentifier":""}]}"#,
            r#"{"batchItemFailures":[{"itemIdentifier":"x"}]}"#,
            r#"{"batchItemFailures":[{}]}"#,
        ] {
            assert_eq!(judge(whole), Verdict::AllFailed, "{whole}");
        }
        assert_eq!(verdict(one.as_bytes(), false, &known), Verdict::AllDone);
    }
}

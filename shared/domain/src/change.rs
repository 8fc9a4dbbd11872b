//! A change of one stored row: the new row, and the condition under which it may be written.
//!
//! A rule is a pure function from a row, as it was read, to [`Next`]. The rule decides; the store
//! commits on the row's [`Fence`]. If another writer was faster, the store calls the rule again
//! with the row that won.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::keys::Key;

/// A row that is changed as a whole: read, decided on, and written if it has not changed since it
/// was read.
pub trait Row: Clone + Serialize + DeserializeOwned {
    fn key(&self) -> Key;
    /// The condition on the stored row for committing a change of this one.
    fn fence(&self) -> Fence;
}

/// The condition of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Fence {
    /// The row does not exist yet.
    Absent,
    /// The row has not changed since it was read.
    Version(u64),
    /// These attributes are as they were read. Null stands for an absent attribute.
    Same(Vec<(String, Value)>),
}

impl Fence {
    /// The condition for a row that counts its changes. A row that was never written has version 0.
    pub fn version(version: u64) -> Self {
        if version == 0 { Self::Absent } else { Self::Version(version) }
    }

    /// The attributes that store these parts of a row have not changed.
    pub fn same(parts: &impl Serialize) -> Self {
        match serde_json::to_value(parts) {
            Ok(Value::Object(parts)) => Self::Same(parts.into_iter().collect()),
            // Only a struct has attributes. For anything else, this condition fails on every stored
            // row.
            _ => Self::Absent,
        }
    }
}

/// What a rule decides about a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<R, T> {
    /// Write this row in place of the one that was read.
    Commit(R, T),
    /// Write nothing.
    Stop(T),
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Asserts that the row fulfills its own fence as soon as it is stored.
    pub(crate) fn assert_fence_holds(row: &impl Row) {
        let stored = serde_json::to_value(row).expect("a row");
        let Fence::Same(parts) = row.fence() else { panic!("a fence of parts") };
        for (name, value) in parts {
            assert_eq!(stored.get(&name).unwrap_or(&Value::Null), &value, "{name}");
        }
    }

    #[derive(Serialize)]
    struct Part {
        state: &'static str,
        lease_until: Option<i64>,
    }

    #[test]
    fn a_fence_lists_each_attribute_and_marks_absent_ones() {
        let Fence::Same(same) = Fence::same(&Part { state: "PENDING", lease_until: None }) else { panic!("a part") };
        assert_eq!(same, [("lease_until".to_owned(), Value::Null), ("state".to_owned(), Value::from("PENDING"))]);
        assert_eq!(Fence::version(0), Fence::Absent);
        assert_eq!(Fence::version(3), Fence::Version(3));
    }
}

//! A change of one stored row: what the row becomes, and what must still hold for that to be
//! written.
//!
//! A rule is a pure function from a row, as it was read, to [`Next`]. It decides; the store commits
//! on the row's [`Fence`] and, if another writer was faster, asks the rule again with the row that
//! won.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::keys::Key;

/// A row that is changed as a whole: read, decided on, and written if nobody has changed it since.
pub trait Row: Clone + Serialize + DeserializeOwned {
    fn key(&self) -> Key;
    /// What must hold of the stored row for a change of this one to be committed.
    fn fence(&self) -> Fence;
}

/// The condition of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Fence {
    /// There is no such row yet.
    Absent,
    /// Nobody has changed the row since it was read.
    Version(u64),
    /// These attributes are as they were read; null stands for an attribute that is not there.
    Same(Vec<(String, Value)>),
}

impl Fence {
    /// The version of a row that counts its changes; one that was never written has version 0.
    pub fn version(version: u64) -> Self {
        if version == 0 { Self::Absent } else { Self::Version(version) }
    }

    /// The attributes that these parts of a row are stored as have not changed.
    pub fn same(parts: &impl Serialize) -> Self {
        match serde_json::to_value(parts) {
            Ok(Value::Object(parts)) => Self::Same(parts.into_iter().collect()),
            // Only a struct has attributes; anything else is met by no row.
            _ => Self::Absent,
        }
    }
}

/// What a rule decides about a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<R, T> {
    /// Write this row in place of the one that was read.
    Commit(R, T),
    /// Nothing is to be written.
    Stop(T),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Part {
        state: &'static str,
        lease_until: Option<i64>,
    }

    #[test]
    fn a_fence_names_each_attribute_and_which_are_absent() {
        let Fence::Same(same) = Fence::same(&Part { state: "PENDING", lease_until: None }) else { panic!("a part") };
        assert_eq!(same, [("lease_until".to_owned(), Value::Null), ("state".to_owned(), Value::from("PENDING"))]);
        assert_eq!(Fence::version(0), Fence::Absent);
        assert_eq!(Fence::version(3), Fence::Version(3));
    }
}

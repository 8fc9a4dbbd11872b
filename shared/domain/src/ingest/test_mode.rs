//! Test mode: determines which of the two schemas requests use. One row stores it for all
//! instances.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use serde_with::skip_serializing_none;

use super::words::Schema;
use crate::change::{Fence, Next, Row};
use crate::fields::{FieldError, Fields};
use crate::keys::{self, Key};
use crate::time::Timestamp;

/// The row keeps at least this many of the latest flips. Every insert reads the row, so it must
/// stay short.
const REMEMBERED: usize = 64;

/// The row of the test mode. The mode is the parity of `flips`, so a toggle is one addition, even
/// if other requests toggle at the same time.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestModeRow {
    pub flips: u64,
    /// Tokens of the requests that flipped last, oldest first. A retry of a flip whose response was
    /// lost finds its token here and does not flip again.
    #[serde(default)]
    pub recent: Vec<String>,
    pub updated_at: Option<Timestamp>,
}

impl Row for TestModeRow {
    fn key(&self) -> Key {
        keys::test_mode()
    }

    /// The mode has not changed since the row was read.
    fn fence(&self) -> Fence {
        match self.flips {
            0 => Fence::Absent,
            flips => Fence::same(&json!({"flips": flips})),
        }
    }
}

impl TestModeRow {
    pub fn is_test_mode(&self) -> bool {
        is_test_mode(self.flips)
    }

    pub fn schema(&self) -> Schema {
        if self.is_test_mode() { Schema::PkmTest } else { Schema::Pkm }
    }

    /// Returns the row after one more flip. `token` identifies the request.
    pub fn flipped(&self, token: &str, now: Timestamp) -> Self {
        let mut recent = self.recent.clone();
        recent.push(token.to_owned());
        Self { flips: self.flips + 1, recent, updated_at: Some(now) }.trimmed()
    }

    /// Sets the mode. Changes nothing if the row already has this mode, or if this same request has
    /// set it before and its response was lost: later changes by others stay.
    pub fn set(&self, is_test_mode: bool, token: &str, now: Timestamp) -> Next<Self, ()> {
        match self.is_test_mode() == is_test_mode || self.mode_after(token).is_some() {
            true => Next::Stop(()),
            false => Next::Commit(self.flipped(token, now), ()),
        }
    }

    /// Returns the mode right after the flip of `token`. `None` if the row does not have the token.
    pub fn mode_after(&self, token: &str) -> Option<bool> {
        let later = self.recent.iter().rev().position(|flip| flip == token)?;
        Some(is_test_mode(self.flips.saturating_sub(u64::try_from(later).ok()?)))
    }

    /// Removes the oldest flips once there are more than twice as many as the row must keep.
    pub fn trimmed(mut self) -> Self {
        if self.recent.len() > 2 * REMEMBERED {
            self.recent.drain(..self.recent.len() - REMEMBERED);
        }
        self
    }
}

fn is_test_mode(flips: u64) -> bool {
    flips % 2 == 1
}

/// The response of `GET /test-mode` and of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TestModeView {
    pub is_test_mode: bool,
    pub schema: Schema,
    pub updated_at: Option<Timestamp>,
}

impl From<&TestModeRow> for TestModeView {
    fn from(row: &TestModeRow) -> Self {
        Self { is_test_mode: row.is_test_mode(), schema: row.schema(), updated_at: row.updated_at }
    }
}

/// Reads the body of `PUT /test-mode`: `{is_test_mode}`.
pub fn read_test_mode(body: &Map<String, Value>) -> Result<bool, Vec<FieldError>> {
    let mut fields = Fields::of(body);
    let wanted = fields.optional_bool("is_test_mode");
    let wanted = fields.required("is_test_mode", wanted);
    fields.finish(wanted)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::codes::FieldProblem;

    fn now() -> Timestamp {
        Timestamp::from_seconds(1_751_342_400)
    }

    #[test]
    fn a_new_deployment_is_not_in_test_mode() {
        let row: TestModeRow = serde_json::from_value(json!({"flips": 0})).expect("a row");
        assert_eq!(row, TestModeRow::default());
        assert_eq!((row.is_test_mode(), row.schema()), (false, Schema::Pkm));
    }

    #[test]
    fn an_odd_number_of_toggles_turns_test_mode_on() {
        let mut row = TestModeRow::default();
        for count in 1..=1_001_u64 {
            row = row.flipped(&format!("r{count}"), now());
            assert_eq!(row.is_test_mode(), count % 2 == 1);
            assert!(row.recent.len() <= 2 * REMEMBERED);
        }
        assert_eq!((row.flips, row.schema()), (1_001, Schema::PkmTest));
    }

    #[test]
    fn setting_the_current_mode_again_changes_nothing() {
        let row = TestModeRow::default();
        assert_eq!(row.set(false, "a", now()), Next::Stop(()));
        let Next::Commit(on, ()) = row.set(true, "a", now()) else { panic!("not changed") };
        assert!(on.is_test_mode());
        assert_eq!(on.set(true, "b", now()), Next::Stop(()));
        let Next::Commit(off, ()) = on.set(false, "b", now()) else { panic!("not changed") };
        assert!(!off.is_test_mode());
        assert_eq!(off.set(true, "a", now()), Next::Stop(()), "the same request has already set the mode");
    }

    #[test]
    fn a_toggle_whose_reply_was_lost_is_found_with_its_result() {
        let row = TestModeRow::default().flipped("a", now()).flipped("b", now()).flipped("c", now());
        let modes = ["a", "b", "c", "d"].map(|token| row.mode_after(token));
        assert_eq!(modes, [Some(true), Some(false), Some(true), None]);
    }

    #[test]
    fn the_mode_is_read_only_from_its_boolean_field() {
        let read = |body: Value| {
            let read = read_test_mode(body.as_object().expect("an object"));
            read.map_err(|errors| errors.into_iter().map(|error| (error.field, error.code)).collect::<Vec<_>>())
        };
        assert_eq!(read(json!({"is_test_mode": true})), Ok(true));
        let refused = |code| Err(vec![("is_test_mode".to_owned(), code)]);
        assert_eq!(read(json!({})), refused(FieldProblem::Missing));
        assert_eq!(read(json!({"is_test_mode": "yes"})), refused(FieldProblem::WrongType));
        assert!(read(json!({"is_test_mode": true, "schema": "pkm"})).is_err());
    }
}

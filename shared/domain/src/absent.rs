//! What rows leave out: a field that has its default value is not written, and is read back as it
//! was.

/// For `#[serde(default, skip_serializing_if = "is_default")]`.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

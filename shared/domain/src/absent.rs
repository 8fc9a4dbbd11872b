//! Omits fields with their default value from stored rows. Reading such a row restores the default.

/// For `#[serde(default, skip_serializing_if = "is_default")]`.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

//! The indexes of the tables: the name and the key attributes of each, as in the template.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index {
    pub name: &'static str,
    /// The attribute that is the partition key.
    pub partition: &'static str,
    /// The attribute that is the sort key.
    pub sort: &'static str,
}

impl Index {
    /// Returns whether the index is a local one. A local index has the partitions of its table and
    /// can be read consistently with it. Any other index is updated after the table, so it may be
    /// stale.
    pub fn is_local(&self) -> bool {
        self.partition == "pk"
    }
}

/// Rows that wait for something, by the time at which it is due. Every table with such rows has
/// this index.
pub const BY_TIME: Index = Index { name: "by-time", partition: "wake", sort: "wake_at" };

/// The messages of a recipient, by the time of their request.
pub const BY_RECIPIENT: Index = Index { name: "by-recipient", partition: "recipient", sort: "asked_at" };

/// The messages of a client, by the time of their request.
pub const BY_CLIENT: Index = Index { name: "by-client", partition: "client", sort: "asked_at" };

/// The messages of a conversation, in their order.
pub const BY_PLACE: Index = Index { name: "by-place", partition: "pk", sort: "place" };

/// The offers of a bot, by the time of their creation.
pub const BY_BOT: Index = Index { name: "by-bot", partition: "listed", sort: "listed_at" };

pub const ALL: &[Index] = &[BY_TIME, BY_RECIPIENT, BY_CLIENT, BY_PLACE, BY_BOT];

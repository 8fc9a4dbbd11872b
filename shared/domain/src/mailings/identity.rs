//! The ids, names and hashes that identify a mailing and its entries.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::codes::codes;
use crate::id::{hash_id, is_hex};
use crate::keys::short_hash;
use crate::unicode::{comparable, visible};

const HASH_DIGITS: usize = 32;
const LONGEST_FILE_NAME: usize = 255;

/// The most shards of a mailing. The import's last write is one transaction that creates the rows
/// of all shards and changes the mailing's row, and a transaction has at most a hundred actions.
pub const MOST_SHARDS: u32 = 99;

/// About two thousand recipients: minutes of sending, not hours, and many leases for a large file.
const BYTES_OF_A_SHARD: u64 = 64 * 1024;

hash_id! {
    /// The id of a mailing.
    MailingId = "mlg_", 32
}

impl MailingId {
    /// Derives the id from the file's name, independent of the caller: the same name is the same
    /// mailing, also with a new API key. `turn` counts how often the name was released because its
    /// file proved unreadable; the row of the name stores it.
    pub fn of(file_name: &str, turn: u32) -> Self {
        Self::hash(&format!("{turn}:{}", comparable(file_name)))
    }
}

/// The id of one recipient of one mailing. Its text is valid as an SES tag, by which events find
/// their entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MailingEntryId {
    pub mailing: MailingId,
    pub shard: u32,
    /// See [`email_hash`].
    pub email_hash: String,
}

impl MailingEntryId {
    pub fn of(mailing: &MailingId, email: &str, shards: u32) -> Self {
        // Take the half of the hash that `email_hash` does not use.
        let hash = Sha256::digest(email.as_bytes());
        let place = hash.iter().skip(HASH_DIGITS / 2).take(8).fold(0_u64, |all, byte| (all << 8) | u64::from(*byte));
        let shard = u32::try_from(place % u64::from(shards.max(1))).unwrap_or(0);
        Self { mailing: mailing.clone(), shard, email_hash: email_hash(email) }
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (mailing, shard, hash) = (MailingId::parse(parts.next()?)?, parts.next()?, parts.next()?);
        let shaped = parts.next().is_none() && is_hex(hash, HASH_DIGITS) && shard.len() == 2;
        let shard = shard.bytes().all(|byte| byte.is_ascii_digit()).then(|| shard.parse().ok())??;
        shaped.then(|| Self { mailing, shard, email_hash: hash.to_owned() })
    }
}

impl fmt::Display for MailingEntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:02}-{}", self.mailing, self.shard, self.email_hash)
    }
}

/// Returns the hash that replaces a normalized address where the address must not be readable: in
/// the keys of entries, in links, and in the rows of unsubscribed recipients.
pub fn email_hash(email: &str) -> String {
    short_hash(email)
}

/// Returns over how many shards a file of this size is spread.
pub fn shards_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_OF_A_SHARD)).unwrap_or(MOST_SHARDS).clamp(1, MOST_SHARDS)
}

/// Returns the shard of a row that has no valid address.
pub fn shard_of_line(line: u64, shards: u32) -> u32 {
    u32::try_from(line % u64::from(shards.max(1))).unwrap_or(0)
}

/// Returns the name of an uploaded file as it was given, without the folders that some browsers put
/// before it. The error is written for the caller.
pub fn file_name(text: &str) -> Result<String, &'static str> {
    let name = text.rsplit(['/', '\\']).next().unwrap_or(text).trim().to_owned();
    if visible(&name).trim().is_empty() {
        Err("must not be blank")
    } else if name.len() > LONGEST_FILE_NAME {
        Err("must not be longer than 255 bytes")
    } else if name.chars().any(char::is_control) {
        Err("must not contain control characters")
    } else {
        Ok(name)
    }
}

/// Returns the hash that identifies a file's content. It compares bytes, not meaning.
pub fn content_hash(file: &[u8]) -> String {
    hex::encode(Sha256::digest(file))
}

codes! {
    /// What to do if a known file name is uploaded with other content.
    NameMode {
        /// Answer with the mailing that has the name, and say that the content differs.
        Lenient = "lenient",
        /// Refuse the upload, so that a new month's `monthly.csv` is not ignored.
        Strict = "strict",
    }
}

/// Returns whether an upload has the content of the mailing that has its name; `None` if one of the
/// two hashes is not known, so that the contents cannot be compared. The error says how the mailing
/// has the name, if strict mode refuses the upload.
pub fn judge_upload(stored: Option<&str>, asked: Option<&str>, mode: NameMode) -> Result<Option<bool>, &'static str> {
    let matches = stored.zip(asked).map(|(stored, asked)| stored == asked);
    match (mode, matches) {
        (NameMode::Strict, Some(false)) => Err("with other content"),
        (NameMode::Strict, None) => Err("and its content cannot be compared"),
        _ => Ok(matches),
    }
}

/// Returns the earlier line that has the address of `line`. `stored` is the line of the entry that
/// existed already. If it is the same line, an importer inserted it before a crash, and it counts
/// as new.
pub fn duplicate_of(stored: Option<u64>, line: u64) -> Option<u64> {
    stored.filter(|stored| *stored != line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    fn mailing() -> MailingId {
        MailingId::of("monthly.csv", 0)
    }

    #[test]
    fn the_same_file_name_gives_the_same_mailing_id() {
        assert_eq!(MailingId::of("monthly.csv", 0), mailing());
        assert_ne!(MailingId::of("Monthly.csv", 0), mailing());
        assert_ne!(MailingId::of("monthly.csv", 1), mailing(), "the name of an invalid file can be used again");
        assert_eq!(MailingId::parse(mailing().as_str()), Some(mailing()));
        assert_eq!(MailingId::parse("mlg_7"), None);
    }

    #[test]
    fn an_entry_id_is_parsed_from_its_tag() {
        let id = MailingEntryId::of(&mailing(), "a@b.co", 99);
        let tag = id.to_string();
        assert_eq!(MailingEntryId::parse(&tag), Some(id));
        assert!(tag.len() <= 256 && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)), "{tag}");
        for text in ["", "msg_1", &tag[1..], &format!("{tag}-"), &tag.replacen('-', "-+", 1)] {
            assert_eq!(MailingEntryId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn recipients_are_spread_evenly_over_the_shards() {
        let mut counts = [0_u32; 99];
        for n in 0..99_000 {
            counts[MailingEntryId::of(&mailing(), &format!("user{n}@example.com"), 99).shard as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
        assert_eq!(MailingEntryId::of(&mailing(), "a@b.co", 0).shard, 0);
    }

    #[test]
    fn the_size_of_a_file_gives_it_between_1_and_99_shards() {
        assert_eq!([0, 1, 64 * 1024, 64 * 1024 + 1, 1 << 40].map(shards_of), [1, 1, 1, 2, 99]);
        assert_eq!(shards_of(u64::MAX), 99);
        assert_eq!((shard_of_line(100, 99), shard_of_line(5, 0)), (1, 0));
    }

    #[test]
    fn a_file_name_loses_its_path_and_must_not_be_blank() {
        let named = |text| file_name(text).expect("a name");
        assert_eq!(named("C:\\fakepath\\monthly.csv "), "monthly.csv");
        assert_eq!(named("a/b/lista de março.csv"), "lista de março.csv");
        assert_eq!(named("relato\u{301}rio.csv"), "relato\u{301}rio.csv", "the name is shown as it was given");
        for text in ["", " ", "a/", "\u{200b} \u{feff}", "a\nb.csv", "a\0.csv", &"a".repeat(256)] {
            assert!(file_name(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn two_file_names_that_look_the_same_are_one_mailing() {
        for same in ["relato\u{301}rio.csv", "\u{feff}relatório.csv", "rela\u{200b}tório\u{ad}.csv"] {
            assert_eq!(MailingId::of(same, 1), MailingId::of("relatório.csv", 1), "{same:?}");
            assert_eq!(keys::mailing_name(same), keys::mailing_name("relatório.csv"), "{same:?}");
        }
        assert_ne!(MailingId::of("relatorio.csv", 1), MailingId::of("relatório.csv", 1));
    }

    #[test]
    fn the_same_file_name_with_other_content_is_reported_or_refused() {
        let (october, november) = (content_hash(b"a@b.co"), content_hash(b"c@d.co"));
        let (october, november) = (Some(october.as_str()), Some(november.as_str()));
        for (stored, asked, mode, judged) in [
            (november, november, NameMode::Strict, Ok(Some(true))),
            (november, november, NameMode::Lenient, Ok(Some(true))),
            (october, november, NameMode::Lenient, Ok(Some(false))),
            (october, november, NameMode::Strict, Err("with other content")),
            (None, november, NameMode::Lenient, Ok(None)),
            (october, None, NameMode::Strict, Err("and its content cannot be compared")),
        ] {
            assert_eq!(judge_upload(stored, asked, mode), judged, "{mode}");
        }
    }

    #[test]
    fn a_replay_distinguishes_its_own_rows_from_duplicates() {
        assert_eq!(duplicate_of(None, 3), None);
        assert_eq!(duplicate_of(Some(3), 3), None);
        assert_eq!(duplicate_of(Some(1), 3), Some(1));
    }
}

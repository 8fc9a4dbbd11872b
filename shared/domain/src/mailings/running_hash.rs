//! A SHA-256 whose state can be stored between two pieces of a file, so that another worker can
//! resume it.

use serde::{Deserialize, Serialize};
use sha2::compress256;
use sha2::digest::generic_array::GenericArray;

const BLOCK: usize = 64;
/// FIPS 180-4, 5.3.3.
const INITIAL: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The hash of the bytes read so far, in the form that a checkpoint stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningHash {
    state: [u32; 8],
    /// The bytes that do not fill a block yet, in hexadecimal.
    rest: String,
    bytes: u64,
}

impl Default for RunningHash {
    fn default() -> Self {
        Self { state: INITIAL, rest: String::new(), bytes: 0 }
    }
}

impl RunningHash {
    /// Returns the hash extended by the next bytes of the file.
    pub fn and(&self, more: &[u8]) -> Self {
        let mut state = self.state;
        let mut open = hex::decode(&self.rest).unwrap_or_default();
        let (first, more_whole) = more.split_at(more.len().min((BLOCK - open.len() % BLOCK) % BLOCK));
        open.extend_from_slice(first);
        let whole = open.chunks_exact(BLOCK).chain(more_whole.chunks_exact(BLOCK));
        whole.for_each(|block| compress256(&mut state, std::slice::from_ref(GenericArray::from_slice(block))));
        let rest = match open.len() {
            BLOCK | 0 => more_whole.chunks_exact(BLOCK).remainder(),
            _ => &open,
        };
        Self { state, rest: hex::encode(rest), bytes: self.bytes + more.len() as u64 }
    }

    /// Returns the hash of all bytes so far, in hexadecimal.
    pub fn finish(&self) -> String {
        let open = self.rest.len() / 2;
        let zeros = (2 * BLOCK - 9 - open) % BLOCK;
        let mut end = vec![0x80];
        end.resize(1 + zeros, 0);
        end.extend_from_slice(&(self.bytes * 8).to_be_bytes());
        let state = self.and(&end).state;
        hex::encode(state.map(u32::to_be_bytes).concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailings::content_hash;

    #[test]
    fn the_hash_of_a_file_in_chunks_equals_the_hash_of_the_whole_file() {
        let mut dice = fastrand::Rng::with_seed(5);
        for length in (0..200).chain([4_096, 10_007]) {
            let file: Vec<u8> = (0..length).map(|_| dice.u8(..)).collect();
            let (mut running, mut left) = (RunningHash::default(), file.as_slice());
            while !left.is_empty() {
                let (piece, rest) = left.split_at(dice.usize(1..=left.len().min(150)));
                let kept = serde_json::to_string(&running.and(piece)).expect("JSON");
                (running, left) = (serde_json::from_str(&kept).expect("read back"), rest);
            }
            assert_eq!(running.finish(), content_hash(&file), "{length}");
        }
    }
}

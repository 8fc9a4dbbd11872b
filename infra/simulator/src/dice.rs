//! Random numbers of one play. Each decision has its own generator, from the seed and the name of
//! the decision, so that leaving out one fault does not change the others.

use fastrand::Rng;

#[derive(Debug, Clone, Copy)]
pub struct Dice(pub u64);

impl Dice {
    /// Returns the generator of a decision.
    pub fn of(self, decision: &str) -> Rng {
        // FNV-1a: the same on every machine, unlike the hashers of the standard library.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in decision.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Rng::with_seed(hash)
    }

    /// Returns true in `percent` of the cases. It does not use the generator of [`Self::of`], whose
    /// numbers decide what follows.
    pub fn chance(self, decision: &str, percent: u32) -> bool {
        self.of(&format!("whether {decision}")).u32(0..100) < percent
    }
}

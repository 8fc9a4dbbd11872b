//! The simulator: runs the functions of the product in one process, one thread and virtual time,
//! with the real AWS SDK, against the emulators of the local stack. Everything that can happen in
//! any order is drawn from a seed, so that a play can be repeated exactly.
//!
//! A play has two phases. First things go wrong: calls fail, replies are lost, instances are killed
//! or frozen, deliveries are late or doubled, clocks differ. Then nothing goes wrong any more, and
//! everything that was accepted must end. At last the history is audited: what each client was
//! answered, and what each provider heard.

pub mod audit;
pub mod broken;
pub mod clients;
pub mod dice;
pub mod faults;
pub mod lambda;
pub mod net;
pub mod objects;
pub mod outside;
pub mod play;
pub mod profile;
pub mod providers;
pub mod queues;
pub mod runner;
pub mod shrink;
pub mod sources;
pub mod tables;
pub mod trace;
pub mod workloads;

/// Plays allocate small objects all the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

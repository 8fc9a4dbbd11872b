//! The workers beside the senders: the one that enqueues shards, recovery, and the importer.

use umavez_domain::lease::Lease;
use umavez_domain::mailings::{Completion, ImportState, MailingRow, MailingState, ShardRow, shards_to_enqueue};

use crate::rows::{Held, Mailing, NOW, OWN, Shard, Shards, When};
use crate::scenario::MailingModel;
use crate::world::{Enqueuer, Importer, Job, Recovery, World};

/// Longer than any step of time.
const IMPORT_LEASE_MS: i64 = 60_000;

impl MailingModel {
    pub fn receive_hand_out(&self, world: &mut World) {
        world.hand_outs -= 1;
        if world.mailing.row().needs_senders() {
            world.enqueuer = Enqueuer::Begun(world.mailing);
        }
    }

    /// Lets the worker that enqueues shards take its next step. Returns `None` if there is none.
    pub fn enqueuer_works(&self, world: &mut World) -> Option<()> {
        world.enqueuer = match world.enqueuer {
            Enqueuer::Idle => return None,
            Enqueuer::Begun(mailing) => {
                let shards = *world.shards();
                // If no shard has an order to follow, nothing is written in between.
                match mailing.row().has_new_order(&shards.rows()) {
                    true => Enqueuer::Follow(mailing, shards),
                    false => Enqueuer::Enqueue(mailing, shards),
                }
            }
            Enqueuer::Follow(mailing, shards) => match self.shards_follow(world, &mailing, shards) {
                Some(shards) => Enqueuer::Enqueue(mailing, shards),
                None => Enqueuer::Begun(mailing),
            },
            Enqueuer::Enqueue(mailing, shards) => {
                let rows = shards.rows();
                let to_enqueue = shards_to_enqueue(&rows, NOW);
                if to_enqueue.is_empty() {
                    Enqueuer::Completing(world.mailing, *world.shards())
                } else {
                    let refused = to_enqueue.into_iter().fold(false, |refused, (shard, not_before)| {
                        let at = crate::world::at_of(shard.shard);
                        !world.commit_shard(at, &Shard::of(shard), &shard.enqueued(not_before, NOW)) || refused
                    });
                    if refused { Enqueuer::Begun(mailing) } else { Enqueuer::Clear(mailing) }
                }
            }
            Enqueuer::Clear(mailing) => {
                world.change_mailing(|row| row.shards_enqueued(mailing.emits.into(), NOW).ok_or(())).ok();
                Enqueuer::Idle
            }
            Enqueuer::Completing(mailing, shards) => match self.complete(world, &mailing, &shards) {
                true => Enqueuer::Idle,
                false => Enqueuer::Completing(world.mailing, *world.shards()),
            },
        };
        Some(())
    }

    /// Records the latest retry order in each shard. Returns `None` if a shard has changed since it
    /// was read.
    fn shards_follow(&self, world: &mut World, mailing: &Mailing, mut shards: Shards) -> Option<Shards> {
        let row = mailing.row();
        let mut refused = false;
        for at in 0..OWN.len() {
            let before = shards.own[at];
            if before.retried < mailing.retry {
                let after = before.row().following_order(&row);
                refused |= !world.commit_shard(at, &before, &after);
                shards.own[at] = Shard::of(&after);
            }
        }
        shards.idle_retried = shards.idle_retried.max(mailing.retry);
        let idle = &mut world.shards.as_mut().expect("the shards exist").idle_retried;
        *idle = shards.idle_retried.max(*idle);
        (!refused).then_some(shards)
    }

    pub fn recovery_works(&self, world: &mut World) -> Option<()> {
        world.recovery = match world.recovery {
            Recovery::Idle => return None,
            Recovery::Shard { at, is_sent } => {
                let before = world.shards().own[at];
                let waits_there = before.wake == Some(When::Past);
                match before.row().recovered(is_sent, NOW).filter(|_| waits_there) {
                    Some((after, is_stalled)) => {
                        world.store_shard(at, &before, &after);
                        if is_stalled { Recovery::Abandon(world.mailing, *world.shards()) } else { Recovery::Idle }
                    }
                    None => Recovery::Idle,
                }
            }
            Recovery::Abandon(mailing, shards) => {
                if let Some(after) = mailing.row().abandoned(&shards.rows(), NOW) {
                    world.commit_mailing(&mailing, &after);
                }
                Recovery::Idle
            }
            Recovery::Mailing(mailing, shards) => {
                self.recover_mailing(world, &mailing, &shards);
                Recovery::Idle
            }
        };
        Some(())
    }

    fn recover_mailing(&self, world: &mut World, mailing: &Mailing, shards: &Shards) {
        let row = mailing.row();
        if matches!(mailing.import, ImportState::Queued | ImportState::Running) {
            let mut after = row;
            after.enqueue_import(NOW);
            world.commit_mailing(mailing, &after);
            return;
        }
        let rows = shards.rows();
        let (current, now_shards) = (world.mailing, *world.shards());
        let (found, ended) = current.row().completed(&now_shards.rows(), NOW);
        let is_ended = ended.as_ref().is_some_and(|after| after.state != current.state);
        self.complete(world, &current, &now_shards);
        let after = match found {
            Completion::Complete(_) if is_ended => return,
            Completion::Complete(_) if !row.has_new_order(&rows) => return,
            Completion::Mismatch { .. } => {
                let mut after = row;
                after.watch(NOW);
                after
            }
            Completion::Complete(_) | Completion::Open(_) => row.shards_recovered(&rows, NOW).0,
        };
        world.commit_mailing(mailing, &after);
    }

    /// Returns whether recovery would do more than schedule its next check.
    pub fn is_stalled(&self, world: &World) -> bool {
        let row = world.mailing.row();
        let Some(shards) = world.shards.as_ref().map(Shards::rows) else { return true };
        let ends = row.completed(&shards, NOW).1.is_some();
        ends || row.needs_senders() && row.shards_recovered(&shards, NOW).1
    }

    /// Takes the lease of the import, and writes the first checkpoint. Returns `None` if there is
    /// nothing to import.
    pub fn receive_import(&self, world: &mut World, n: usize, job: usize) {
        world.imports.remove(job);
        let before = world.mailing;
        if !matches!(before.import, ImportState::Queued | ImportState::Running) {
            return;
        }
        let row = before.row();
        let owner = (n + 5).to_string();
        let held = match Lease::taken(row.lease.as_ref(), &owner, NOW, IMPORT_LEASE_MS) {
            Ok(held) => held,
            Err(_) => {
                world.imports.push(true);
                return;
            }
        };
        let row = Mailing::of(&MailingRow { lease: Some(held.clone()), ..row });
        world.mailing.lease = row.lease;
        let held = Held::of(&held);
        world.importers[n] = Importer::Insert { held, row: self.checkpoint(world, held, &row, row).unwrap_or(row) };
    }

    /// Writes a checkpoint. Returns the mailing after it, or `None` if the store refused the write.
    fn checkpoint(&self, world: &mut World, held: Held, row: &Mailing, progress: Mailing) -> Option<Mailing> {
        let stored = world.mailing;
        let is_held = stored.row().is_held_by(&held.lease());
        let fence = row.row().importing_as_read() == stored.row().importing_as_read();
        if !is_held || !fence || stored.state == MailingState::Canceled {
            return None;
        }
        let until = When::Future.at();
        let after = Mailing::of(&row.row().checkpointed(&held.lease(), progress.row().progress, until));
        world.mailing.merge(row, &after);
        Some(after)
    }

    /// Stores the shards of the mailing, and enqueues the first ones.
    pub fn create_shards(&self, world: &mut World, rows: &[ShardRow]) {
        world.shards = Some(Shards::of(rows, |at| self.recipients.contains(&at)));
        for at in 0..OWN.len() {
            let shard = world.shards().own[at];
            if shard.emits > 0 {
                world.put_job(Job { at, seq: shard.emits, later: false });
            }
        }
    }

    pub fn importer_works(&self, world: &mut World, n: usize) -> Option<()> {
        world.importers[n] = match world.importers[n] {
            Importer::Idle => return None,
            Importer::Insert { held, row } => {
                world.entries[usize::from(row.lines)].get_or_insert_default();
                Importer::Checkpoint { held, row }
            }
            Importer::Checkpoint { held, row } => {
                let shard = self.recipients[usize::from(row.lines)];
                let mut progress = Mailing { lines: row.lines + 1, ..row };
                progress.by_shard[shard] += 1;
                if usize::from(progress.lines) == self.recipients.len() {
                    Importer::End { held, progress }
                } else if row.state == MailingState::Canceled {
                    Importer::End { held, progress: Mailing { partial: true, ..progress } }
                } else if let Some(row) = self.checkpoint(world, held, &row, progress) {
                    Importer::Insert { held, row }
                } else if world.mailing.row().is_held_by(&held.lease()) {
                    Importer::End { held, progress: Mailing { partial: true, ..progress } }
                } else {
                    Importer::Idle
                }
            }
            Importer::End { held, progress } => {
                let before = world.mailing;
                let row = before.row();
                let is_mine = row.is_held_by(&held.lease());
                if before.import != ImportState::Done && is_mine {
                    let (after, shards) = row.imported(&progress.row().progress, true, NOW);
                    world.store_mailing(&before, &after);
                    self.create_shards(world, &shards);
                }
                Importer::Idle
            }
        };
        Some(())
    }
}

//! Primitives as they are often written, each with one mistake. The crash-point suite has to catch
//! every one.

use umavez_platform::config::ConfigError;
use umavez_platform::http::{Answer, Problem};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::{Condition, Write, Written, read_row};

use crate::Deps;
use crate::api::{created, decision};
use crate::job::{Job, key};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The SDK's retry finds the row of its own first attempt and takes it for another owner's.
    NoOwnerToken,
    /// The terminal write does not check whether the lease is still held, or whether the job is
    /// already done.
    UnfencedWrite,
    /// The row is written first, and the message is sent afterwards.
    PublishOutside,
    /// Reads the row, and writes it if it is absent.
    ReadThenWrite,
}

impl Broken {
    pub const NAMES: [&str; 4] = ["no_owner_token", "unfenced_write", "publish_outside", "read_then_write"];

    pub fn parse(name: &str) -> Result<Self, ConfigError> {
        match name {
            "no_owner_token" => Ok(Self::NoOwnerToken),
            "unfenced_write" => Ok(Self::UnfencedWrite),
            "publish_outside" => Ok(Self::PublishOutside),
            "read_then_write" => Ok(Self::ReadThenWrite),
            _ => Err(ConfigError::malformed("BROKEN", "the name of a broken primitive")),
        }
    }

    pub async fn create(self, deps: &Deps, invocation: &Invocation, job: Job) -> Result<Answer, Problem> {
        let owner = job.owner.clone();
        let put = |job: &Job| Write::put(&deps.table, key(&job.id), job);
        match self {
            Self::UnfencedWrite => {
                let written = deps.store.write(invocation, put(&job)?.when(Condition::Absent)).await?;
                answer(written, &owner)
            }
            Self::NoOwnerToken => match deps.store.write(invocation, put(&job)?.when(Condition::Absent)).await? {
                Written::New => created(&owner),
                Written::Mine => decision(false, &owner),
                refused => answer(refused, &owner),
            },
            Self::PublishOutside => {
                let emit = job.emit.clone();
                let silent = Job { emit: None, check_at: None, ..job };
                let written = deps.store.write(invocation, put(&silent)?.when(Condition::Absent)).await?;
                if let (Written::New, Some(emit)) = (&written, emit) {
                    let url = &deps.relay.queues[&emit.queue];
                    // Ignores a failure.
                    let _ = deps.relay.sqs.send_message().queue_url(url).message_body(emit.body).send().await;
                }
                answer(written, &owner)
            }
            Self::ReadThenWrite => {
                let there: Option<Job> = deps.store.get(invocation, &deps.table, &key(&job.id)).await?;
                match there {
                    Some(there) => decision(there.owner == owner, &there.owner),
                    None => {
                        deps.store.write(invocation, put(&job)?).await?;
                        created(&owner)
                    }
                }
            }
        }
    }
}

fn answer(written: Written, owner: &str) -> Result<Answer, Problem> {
    match written {
        Written::New | Written::Mine => created(owner),
        Written::Refused(item) => {
            let there: Job = read_row(item.unwrap_or_default())?;
            decision(there.owner == owner, &there.owner)
        }
    }
}

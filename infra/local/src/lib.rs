//! The local stack: reads `template.yaml`, embeds the emulators, and runs the real functions
//! against them, so that the whole product runs on a laptop with one command and no AWS account.
//!
//! It contains no business logic. Tables, queues, routes, schedules and mappings come from the
//! template, and it refuses a template with anything that it does not support. Every call of a
//! function to AWS or to a provider passes through the [`front`].

pub mod activity;
pub mod beside;
pub mod binaries;
pub mod bus;
pub mod calls;
pub mod catcher;
pub mod clock;
pub mod control;
pub mod dynamo;
pub mod email_events;
pub mod faults;
pub mod front;
pub mod functions;
pub mod gateway;
pub mod greeting;
pub mod local_parameters;
pub mod model;
pub mod parts;
pub mod permissions;
pub mod queues;
pub mod s3;
pub mod schedules;
pub mod secrets;
pub mod sources;
pub mod stack;
pub mod state;
pub mod template;

use std::fmt::Display;
use std::path::Path;

pub use stack::{Options, Stack};

/// Why the stack cannot start or continue. The text is for the user of the command line.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    #[error(transparent)]
    Template(#[from] template::TemplateError),
    #[error("{0}")]
    Filter(#[from] sources::FilterError),
    #[error("{0}")]
    Policy(String),
    #[error("{0}")]
    Build(String),
    #[error("port {0} is in use: another stack may be running; stop it or choose one with --port")]
    PortInUse(u16),
    #[error("{0} is used by another running stack; stop it or choose another directory with --data")]
    DataInUse(String),
    #[error("{0}")]
    State(String),
    #[error("{0}")]
    Fault(String),
    #[error("{0}")]
    Secret(String),
    #[error("{0}")]
    Start(String),
    #[error("{0}")]
    Emulator(String),
    #[error("still at work after {seconds} s: {what}")]
    Restless { seconds: u64, what: String },
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl StackError {
    /// The error for a file that cannot be read. It names the file; most causes alone do not.
    pub fn unreadable(file: &Path, cause: impl Display) -> Self {
        Self::State(format!("{} cannot be read: {cause}", file.display()))
    }

    /// The error for a directory that cannot be created or written.
    pub fn unusable(directory: &Path, cause: impl Display) -> Self {
        Self::State(format!("{} cannot be used: {cause}", directory.display()))
    }
}

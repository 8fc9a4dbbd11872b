//! What the functions may do: the policies of the template, evaluated as IAM does it. A call needs
//! a grant for each of its actions, and a denial beats every grant. Whoever is no function may do
//! everything.
//!
//! Which grants were ever used is kept, so that tests can tell which the functions could do
//! without.

mod statement;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use self::statement::{Condition, Statement, holds, is_like};
use crate::StackError;
use crate::calls::Needed;
use crate::model::{Function, Model};
use crate::template::{self, ACCOUNT};

/// What a request says besides its action and its resource, by the keys that conditions know it by.
pub type Context = [(&'static str, String)];

/// What mappings do with the role of their function.
const OF_QUEUES: &[&str] = &["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"];
const OF_STREAMS: &[&str] =
    &["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator", "dynamodb:ListStreams"];

/// A handle: clones are cheap and mean the same.
#[derive(Debug, Clone)]
pub struct Permissions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Access keys and the functions that they belong to.
    callers: HashMap<String, String>,
    roles: HashMap<String, Role>,
    refusals: Mutex<Vec<Refusal>>,
}

/// What one function may do.
#[derive(Debug)]
struct Role {
    principal: String,
    /// By their actions.
    grants: HashMap<String, Vec<Grant>>,
    denials: Vec<Statement>,
}

#[derive(Debug)]
struct Grant {
    resource: String,
    conditions: Arc<[Condition]>,
    used: AtomicBool,
}

/// One action on one resource that a function may.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Granted {
    pub function: String,
    pub action: String,
    pub resource: String,
    pub used: bool,
}

/// A call that the policies of its caller do not let through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub function: String,
    pub action: String,
    pub resource: String,
    principal: String,
    explicit: bool,
}

/// As AWS says it.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { principal, action, resource, .. } = self;
        write!(f, "User: {principal} is not authorized to perform: {action} on resource: {resource} ")?;
        match self.explicit {
            true => f.write_str("with an explicit deny in an identity-based policy"),
            false => write!(f, "because no identity-based policy allows the {action} action"),
        }
    }
}

impl Permissions {
    /// `access_key`: what the processes of a function sign with.
    pub fn of(model: &Model, access_key: impl Fn(&Function) -> String) -> Result<Self, StackError> {
        let mut roles = HashMap::new();
        for function in &model.functions {
            let role = Role::of(function).map_err(|why| refused(function, &why))?;
            role.used_by_lambda(function).map_err(|why| refused(function, &why))?;
            roles.insert(function.binary.clone(), role);
        }
        let callers = model.functions.iter().map(|function| (access_key(function), function.binary.clone())).collect();
        Ok(Self(Arc::new(Shared { callers, roles, refusals: Mutex::default() })))
    }

    /// Whose access key it is: the function's, or nobody's that is known by another name.
    pub fn caller(&self, access_key: String) -> String {
        self.0.callers.get(&access_key).cloned().unwrap_or(access_key)
    }

    /// Whether a caller may do all that a call needs.
    pub fn check(&self, caller: &str, needed: &[Needed], context: &Context) -> Result<(), Refusal> {
        let Some(role) = self.0.roles.get(caller) else { return Ok(()) };
        for Needed { action, on } in needed {
            let resources = resources(action, on);
            let explicit = match role.decide(action, &resources, context) {
                Decision::Allowed => continue,
                Decision::Denied => true,
                Decision::NotGranted => false,
            };
            let refusal = Refusal {
                function: caller.to_owned(),
                action: action.clone(),
                resource: resources.into_iter().next().unwrap_or_default(),
                principal: role.principal.clone(),
                explicit,
            };
            self.0.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(refusal.clone());
            return Err(refusal);
        }
        Ok(())
    }

    /// Every grant of every function, and whether a call has needed it.
    pub fn grants(&self) -> Vec<Granted> {
        let mut all = Vec::new();
        for (function, role) in &self.0.roles {
            for (action, grants) in &role.grants {
                all.extend(grants.iter().map(|grant| Granted {
                    function: function.clone(),
                    action: action.clone(),
                    resource: grant.resource.clone(),
                    used: grant.used.load(Ordering::Relaxed),
                }));
            }
        }
        all.sort();
        all
    }

    /// What was refused so far.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.0.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Allowed,
    /// By a statement that says so.
    Denied,
    NotGranted,
}

impl Role {
    fn of(function: &Function) -> Result<Self, String> {
        let principal = format!("arn:aws:sts::{ACCOUNT}:assumed-role/{}/{}", function.binary, function.name);
        let mut role = Self { principal, grants: HashMap::new(), denials: Vec::new() };
        for statement in &function.policies {
            let statement = Statement::read(statement)?;
            if !statement.allows {
                role.denials.push(statement);
                continue;
            }
            for action in &statement.actions {
                // What of it is used, and what is not, could not be told.
                if action.contains(['*', '?']) {
                    return Err(format!("the local stack does not know grants of many actions: {action}"));
                }
                let grants = role.grants.entry(action.clone()).or_default();
                grants.extend(statement.resources.iter().map(|resource| Grant {
                    resource: resource.clone(),
                    conditions: statement.conditions.clone(),
                    used: AtomicBool::new(false),
                }));
            }
        }
        Ok(role)
    }

    /// Whether an action may be done on a resource, which may have several names. Every grant that
    /// says so is used.
    fn decide(&self, action: &str, resources: &[String], context: &Context) -> Decision {
        let is_named = |pattern: &String| resources.iter().any(|resource| is_like(pattern, resource));
        let denies = |denial: &&Statement| {
            denial.actions.iter().any(|pattern| is_like(pattern, action))
                && denial.resources.iter().any(is_named)
                && holds(&denial.conditions, context)
        };
        if self.denials.iter().any(|denial| denies(&denial)) {
            return Decision::Denied;
        }
        let mut decision = Decision::NotGranted;
        for grant in self.grants.get(action).into_iter().flatten() {
            if is_named(&grant.resource) && holds(&grant.conditions, context) {
                grant.used.store(true, Ordering::Relaxed);
                decision = Decision::Allowed;
            }
        }
        decision
    }

    /// What Lambda itself does with the role of a function: it writes its logs, and its mappings
    /// read queues and streams. A mapping whose role does not let it is not made. Here the stack
    /// does this without asking, so it is asked now.
    fn used_by_lambda(&self, function: &Function) -> Result<(), String> {
        for action in ["logs:CreateLogStream", "logs:PutLogEvents"] {
            self.decide(action, &resources(action, &function.log_group), &[]);
        }
        // SAM makes a role for a function that names none, and puts into it what the mappings need.
        if function.policies.is_empty() {
            return Ok(());
        }
        for source in &function.queue_sources {
            OF_QUEUES.iter().try_for_each(|action| self.need(action, &source.queue))?;
        }
        for source in &function.stream_sources {
            let stream = format!("{}/stream/local", source.table);
            OF_STREAMS.iter().try_for_each(|action| self.need(action, &stream))?;
            source.on_failure_queue.iter().try_for_each(|queue| self.need("sqs:SendMessage", queue))?;
        }
        Ok(())
    }

    fn need(&self, action: &str, on: &str) -> Result<(), String> {
        match self.decide(action, &resources(action, on), &[]) {
            Decision::Allowed => Ok(()),
            _ => Err(format!("a mapping needs {action} on {on}, which the role does not grant")),
        }
    }
}

/// The ARNs that policies may name a thing by. Mail is sent from an address, by the identity of the
/// address or of any domain that it is in.
fn resources(action: &str, on: &str) -> Vec<String> {
    let service = action.split(':').next().unwrap_or_default();
    let arn = |name: &str| template::arn_at(service, name);
    let mut all = vec![arn(on)];
    if let Some((_, domain)) = on.strip_prefix("identity/").and_then(|address| address.rsplit_once('@')) {
        let parents = domain.match_indices('.').map(|(at, _)| &domain[at + 1..]);
        all.extend(std::iter::once(domain).chain(parents).map(|domain| arn(&format!("identity/{domain}"))));
    }
    all
}

fn refused(function: &Function, why: &str) -> StackError {
    StackError::Policy(format!("the role of {}: {why}", function.logical_id))
}

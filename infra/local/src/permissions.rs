//! Permissions of the functions: evaluates the policies of the template as IAM does. A call needs a
//! grant for each of its actions, and an explicit deny overrides every grant. A caller that is not
//! a function may do everything.
//!
//! Each grant records whether a call ever used it, so that tests can find grants that the functions
//! do not need.

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

/// The values of a request that conditions can test, by condition key, besides the action and the
/// resource.
pub type Context = [(&'static str, String)];

/// Actions that an event source mapping performs with the role of its function.
const OF_QUEUES: &[&str] = &["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"];
const OF_STREAMS: &[&str] =
    &["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator", "dynamodb:ListStreams"];

/// A cheap handle: all clones share the same state.
#[derive(Debug, Clone)]
pub struct Permissions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Maps access keys to the functions that own them.
    callers: HashMap<String, String>,
    roles: HashMap<String, Role>,
    refusals: Mutex<Vec<Refusal>>,
}

/// The permissions of one function.
#[derive(Debug)]
struct Role {
    principal: String,
    /// Grants by action.
    grants: HashMap<String, Vec<Grant>>,
    denials: Vec<Statement>,
}

#[derive(Debug)]
struct Grant {
    resource: String,
    conditions: Arc<[Condition]>,
    used: AtomicBool,
}

/// One action on one resource that a function is allowed to perform.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Granted {
    pub function: String,
    pub action: String,
    pub resource: String,
    pub used: bool,
}

/// A call that the policies of its caller do not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub function: String,
    pub action: String,
    pub resource: String,
    principal: String,
    explicit: bool,
}

/// Formats the error as AWS does.
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
    /// Reads the role of every function. `access_key` returns the access key with which the
    /// processes of a function sign.
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

    /// Returns the function that owns the access key, or the access key itself if no function does.
    pub fn caller(&self, access_key: String) -> String {
        self.0.callers.get(&access_key).cloned().unwrap_or(access_key)
    }

    /// Checks that a caller may perform every action that a call needs.
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

    /// Returns every grant of every function, and whether a call has used it.
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

    /// Returns the calls that were refused so far.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.0.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Allowed,
    /// An explicit deny statement applies.
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
                // With a wildcard, the stack could not know which of the actions are used.
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

    /// Decides whether an action is allowed on a resource, which may have several names. Marks
    /// every grant that allows it as used.
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

    /// Checks what Lambda itself does with the role of a function: it writes the function's logs,
    /// and its event source mappings read queues and streams. AWS refuses to create a mapping whose
    /// role lacks a permission. The local stack does not check these calls at run time, so it
    /// checks them here.
    fn used_by_lambda(&self, function: &Function) -> Result<(), String> {
        for action in ["logs:CreateLogStream", "logs:PutLogEvents"] {
            self.decide(action, &resources(action, &function.log_group), &[]);
        }
        // SAM creates a role for a function that names none, and grants what its mappings need.
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

/// Returns the ARNs by which policies may name a resource. An email may be sent through the
/// identity of its sender address or of any domain that contains the address.
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

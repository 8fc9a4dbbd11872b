//! `cargo run -- keys …`: API keys of the running stack, or of a deployment with `--table`.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use umavez_domain::access::{KeyId, PresentedKey, SCOPES, is_known_scope};
use umavez_domain::time::Timestamp;
use umavez_local::Stack;
use umavez_platform::api_keys;
use umavez_platform::aws::Aws;
use umavez_platform::clock::Clock;
use umavez_platform::invocation::Invocation;
use umavez_platform::store::{Store, StoreError};

use super::CliError;
use super::remote::Remote;

/// The access key by which the emulators know this command.
const CALLER: &str = "keys-command";
/// The output of the template that names the table of keys.
const TABLE_OUTPUT: &str = "ConfigTable";

#[derive(Args)]
pub struct KeysArguments {
    #[command(subcommand)]
    command: KeysCommand,
    /// The Config table of a deployment. Region and credentials then come from AWS_REGION,
    /// AWS_ACCESS_KEY_ID, …
    #[arg(long, global = true)]
    table: Option<String>,
}

#[derive(Subcommand)]
enum KeysCommand {
    /// Create a key and print it, once
    Create {
        /// Its scopes, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "*")]
        scopes: Vec<String>,
        /// Who uses it
        #[arg(long, default_value = "")]
        label: String,
    },
    /// List all keys: id, creation time, scopes, label
    List,
    /// Revoke a key by its id
    Revoke { id: String },
}

struct Keys {
    store: Store,
    table: String,
    invocation: Invocation,
}

pub async fn run(arguments: KeysArguments, remote: &Remote) -> Result<(), CliError> {
    let keys = match &arguments.table {
        Some(table) => {
            let aws = Aws::from_env().map_err(|error| CliError::Usage(error.to_string()))?;
            Keys::new(&aws, table.clone(), Clock::default().now())?
        }
        None => {
            let about = remote.about().await?;
            let (endpoint, table) = (about["aws"].as_str(), about["outputs"][TABLE_OUTPUT].as_str());
            let (Some(endpoint), Some(table)) = (endpoint, table) else {
                return Err(CliError::Failed(format!("port {} is not a stack with a {TABLE_OUTPUT}", remote.port)));
            };
            let now = about["now"].as_str().and_then(Timestamp::parse).unwrap_or_else(|| Clock::default().now());
            Keys::new(&Aws::at_endpoint(endpoint, CALLER), table.to_owned(), now)?
        }
    };
    match arguments.command {
        KeysCommand::Create { scopes, label } => keys.create(remote, &scopes, &label).await,
        KeysCommand::List => keys.list(remote).await,
        KeysCommand::Revoke { id } => keys.revoke(remote, &id).await,
    }
}

/// Creates the key that the first start announces. Returns whether it is valid: a key that was
/// revoked stays revoked.
pub async fn ensure(stack: &Stack, secret: &str) -> Result<bool, CliError> {
    let Some(table) = stack.output(TABLE_OUTPUT) else { return Ok(false) };
    let keys = Keys::new(&Aws::at_endpoint(stack.front_url(), CALLER), table.to_owned(), stack_time(stack))?;
    let scopes = ["*".to_owned()];
    api_keys::create(&keys.store, &keys.invocation, &keys.table, secret, &scopes, secret).await.map_err(failed)?;
    let presented = PresentedKey::of(secret);
    let found = api_keys::find(&keys.store, &keys.invocation, &keys.table, &presented).await.map_err(failed)?;
    Ok(found.is_some_and(|key| key.admits(&presented)))
}

impl Keys {
    fn new(aws: &Aws, table: String, now: Timestamp) -> Result<Self, CliError> {
        let request_id = format!("{CALLER}-{:016x}", fastrand::u64(..));
        let invocation = Invocation::new(request_id, now, Duration::from_secs(30));
        Ok(Self { store: Store::new(aws.dynamodb()), table, invocation })
    }

    async fn create(&self, remote: &Remote, scopes: &[String], label: &str) -> Result<(), CliError> {
        let scopes: Vec<_> = scopes.iter().map(|scope| scope.trim().to_owned()).collect();
        if let Some(unknown) = scopes.iter().find(|scope| !is_known_scope(scope)) {
            return Err(CliError::Usage(format!("there is no scope {unknown:?}; there are {}", SCOPES.join(", "))));
        }
        let secret = api_keys::new_secret().map_err(|error| CliError::Failed(error.to_string()))?;
        let id = api_keys::create(&self.store, &self.invocation, &self.table, &secret, &scopes, label).await;
        let id = id.map_err(failed)?;
        remote.print(&json!({"key": secret, "id": id.to_string(), "scopes": scopes, "label": label}), |_| {
            println!("key {secret}\nid  {id}\nThe key is shown this once; the store has only its hash.");
        });
        Ok(())
    }

    async fn list(&self, remote: &Remote) -> Result<(), CliError> {
        let keys = api_keys::list(&self.store, &self.invocation, &self.table).await.map_err(failed)?;
        if remote.json {
            let all: Vec<_> = keys
                .iter()
                .map(|key| {
                    json!({"id": key.key_id, "created_at": key.created_at, "scopes": key.scopes, "label": key.label,
                        "revoked_at": key.revoked_at})
                })
                .collect();
            println!("{}", json!({"keys": all}));
            return Ok(());
        }
        for key in keys {
            let revoked = key.revoked_at.map(|at| format!("  revoked {at}")).unwrap_or_default();
            println!("{}  {}  {}  {}{revoked}", key.key_id, key.created_at, key.scopes.join(","), key.label);
        }
        Ok(())
    }

    async fn revoke(&self, remote: &Remote, id: &str) -> Result<(), CliError> {
        let wrong = || CliError::Usage(format!("{id:?} is not the id of a key; `keys list` shows them"));
        let id = KeyId::parse(id).ok_or_else(wrong)?;
        let found = api_keys::revoke(&self.store, &self.invocation, &self.table, &id, self.invocation.now).await;
        if found.map_err(failed)? {
            remote.print(&json!({"revoked": id.to_string()}), |_| println!("revoked {id}"));
            Ok(())
        } else {
            Err(CliError::Failed(format!("there is no key {id}")))
        }
    }
}

fn stack_time(stack: &Stack) -> Timestamp {
    Timestamp::from_millis(stack.clock().now_ms())
}

fn failed(error: StoreError) -> CliError {
    CliError::Failed(error.to_string())
}

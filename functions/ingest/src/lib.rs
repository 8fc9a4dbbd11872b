//! Ingest over HTTP: normalize, insert by policy, test mode, policies, and backfill jobs.

mod backfills;
mod entries;
mod settings;

use umavez_domain::ingest::{normalize_email, normalize_telegram, read_insert};
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::http::Route;
use umavez_platform::ingest::{Backfills, Entries, SettingsTable};
use umavez_platform::store::Store;
use umavez_platform::uploads::Uploads;

umavez_platform::routes! {
    Route::scoped("POST /normalize/telegram", "ingest") =>
        async |_, _, request| entries::normalize(request, normalize_telegram),
    Route::scoped("POST /normalize/email", "ingest") =>
        async |_, _, request| entries::normalize(request, normalize_email),
    Route::scoped("POST /db/insert", "ingest") =>
        async |deps, invocation, request| entries::insert(deps, invocation, request, read_insert).await,
    Route::scoped("POST /ingest/telegram", "ingest") =>
        async |deps, invocation, request| entries::insert(deps, invocation, request, normalize_telegram).await,
    Route::scoped("POST /ingest/email", "ingest") =>
        async |deps, invocation, request| entries::insert(deps, invocation, request, normalize_email).await,
    Route::scoped("GET /entries/{id}", "ingest:read").query(&["schema"]) => entries::get,
    Route::scoped("GET /test-mode", "ingest:read") =>
        async |deps, invocation, _| settings::test_mode(deps, invocation).await,
    Route::scoped("PUT /test-mode", "ingest") => settings::set_test_mode,
    Route::scoped("POST /test-mode/toggle", "ingest") => settings::toggle,
    Route::scoped("GET /config", "ingest:read") => async |_, _, _| settings::config(),
    Route::scoped("GET /policies", "ingest:read").query(&["schema"]) => settings::policies,
    Route::scoped("PATCH /policies/{key}", "ingest").query(&["schema"]) => settings::patch_policy,
    Route::scoped("POST /backfills", "ingest") => backfills::begin,
    Route::scoped("GET /backfills/{id}", "ingest:read") => backfills::get,
}

#[derive(Debug)]
pub struct Deps {
    pub entries: Entries,
    pub settings: SettingsTable,
    pub backfills: Backfills,
    pub uploads: Uploads,
}

impl Deps {
    pub fn from_env() -> Result<Self, ConfigError> {
        let aws = Aws::from_env()?;
        let store = Store::new(aws.dynamodb());
        let table = config::required("ENTRIES_TABLE")?;
        let test_table = config::required("ENTRIES_TEST_TABLE")?;
        Ok(Self {
            backfills: Backfills { store: store.clone(), table: table.clone() },
            entries: Entries { store: store.clone(), table, test_table },
            settings: SettingsTable { store, table: config::required("CONFIG_TABLE")? },
            uploads: Uploads::new(aws, config::required("UPLOADS_BUCKET")?),
        })
    }
}

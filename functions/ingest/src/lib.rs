//! Ingest over HTTP: normalize, insert by policy, test mode, policies, and backfill jobs.

mod backfills;
mod entries;
mod settings;

use std::sync::Arc;

use umavez_domain::ingest::{normalize_email, normalize_telegram, read_insert};
use umavez_platform::aws::Aws;
use umavez_platform::config::{self, ConfigError};
use umavez_platform::http::{Answer, Problem, Request, Route};
use umavez_platform::ingest::{Backfills, Entries, SettingsTable};
use umavez_platform::invocation::Invocation;
use umavez_platform::store::Store;
use umavez_platform::uploads::Uploads;

const NORMALIZE_TELEGRAM: &str = "POST /normalize/telegram";
const NORMALIZE_EMAIL: &str = "POST /normalize/email";
const INSERT: &str = "POST /db/insert";
const INGEST_TELEGRAM: &str = "POST /ingest/telegram";
const INGEST_EMAIL: &str = "POST /ingest/email";
const ENTRY: &str = "GET /entries/{id}";
const TEST_MODE: &str = "GET /test-mode";
const SET_TEST_MODE: &str = "PUT /test-mode";
const TOGGLE: &str = "POST /test-mode/toggle";
const CONFIG: &str = "GET /config";
const POLICIES: &str = "GET /policies";
const PATCH_POLICY: &str = "PATCH /policies/{key}";
const BEGIN_BACKFILL: &str = "POST /backfills";
const BACKFILL: &str = "GET /backfills/{id}";

/// The routes of this function. The template declares the same routes.
pub const ROUTES: &[Route] = &[
    Route::scoped(NORMALIZE_TELEGRAM, "ingest"),
    Route::scoped(NORMALIZE_EMAIL, "ingest"),
    Route::scoped(INSERT, "ingest"),
    Route::scoped(INGEST_TELEGRAM, "ingest"),
    Route::scoped(INGEST_EMAIL, "ingest"),
    Route::scoped(ENTRY, "ingest:read").query(&["schema"]),
    Route::scoped(TEST_MODE, "ingest:read"),
    Route::scoped(SET_TEST_MODE, "ingest"),
    Route::scoped(TOGGLE, "ingest"),
    Route::scoped(CONFIG, "ingest:read"),
    Route::scoped(POLICIES, "ingest:read").query(&["schema"]),
    Route::scoped(PATCH_POLICY, "ingest").query(&["schema"]),
    Route::scoped(BEGIN_BACKFILL, "ingest"),
    Route::scoped(BACKFILL, "ingest:read"),
];

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

pub async fn run(deps: Arc<Deps>, invocation: Arc<Invocation>, request: Request) -> Result<Answer, Problem> {
    let (deps, invocation, request) = (&deps, &invocation, &request);
    match request.route.as_str() {
        NORMALIZE_TELEGRAM => entries::normalize(request, normalize_telegram),
        NORMALIZE_EMAIL => entries::normalize(request, normalize_email),
        INSERT => entries::insert(deps, invocation, request, read_insert).await,
        INGEST_TELEGRAM => entries::insert(deps, invocation, request, normalize_telegram).await,
        INGEST_EMAIL => entries::insert(deps, invocation, request, normalize_email).await,
        ENTRY => entries::get(deps, invocation, request).await,
        TEST_MODE => settings::test_mode(deps, invocation).await,
        SET_TEST_MODE => settings::set_test_mode(deps, invocation, request).await,
        TOGGLE => settings::toggle(deps, invocation, request).await,
        CONFIG => settings::config(),
        POLICIES => settings::policies(deps, invocation, request).await,
        PATCH_POLICY => settings::patch_policy(deps, invocation, request).await,
        BEGIN_BACKFILL => backfills::begin(deps, invocation, request).await,
        BACKFILL => backfills::get(deps, invocation, request).await,
        _ => Err(Problem::not_found("there is no such route")),
    }
}

//! JSON logs and embedded metrics on standard output, where Lambda collects both.
//!
//! A line holds ids, codes and counts. Payloads, addresses and secrets stay out by construction:
//! only our own crates speak below `warn` (the SDK prints bodies there), and a panic is told by its
//! place, never by its message.

use std::io::stdout;
use std::sync::OnceLock;

use metrics_cloudwatch_embedded::{Builder, Collector};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{self, ConfigError};

const NAMESPACE_VARIABLE: &str = "METRICS_NAMESPACE";
const LEVEL_VARIABLE: &str = "LOG_LEVEL";
static METRICS: OnceLock<&'static Collector> = OnceLock::new();

/// Sets up logs and metrics for this process. Called once, first thing. `path` is that of any item
/// of the function's crate.
pub fn init(path: &str) -> Result<(), ConfigError> {
    let level = config::optional::<LevelFilter>(LEVEL_VARIABLE, "a log level")?.unwrap_or(LevelFilter::INFO);
    let quiet = level.min(LevelFilter::WARN);
    let function = path.split("::").next().unwrap_or_default();
    let filter = Targets::new().with_default(quiet).with_target("umavez_", level).with_target(function, level);
    let lines =
        tracing_subscriber::fmt::layer().json().flatten_event(true).with_current_span(false).with_span_list(false);
    // A second initialization (a test process) keeps the first.
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(event = "PANIC", place);
    }));
    init_metrics()
}

fn init_metrics() -> Result<(), ConfigError> {
    let Some(namespace) = config::text(NAMESPACE_VARIABLE) else { return Ok(()) };
    // No dimension but a metric's own labels: CloudWatch adds nothing up over dimensions, and what
    // several functions tell of is one metric, on which alarms are set.
    let collector = Builder::new().cloudwatch_namespace(namespace).init();
    // Refused only when there is a recorder already: then that one goes on.
    if let Ok(collector) = collector {
        let _ = METRICS.set(collector);
    }
    Ok(())
}

/// Writes what was measured since the last time. Called before an invocation answers: afterwards
/// Lambda freezes us.
pub fn flush() {
    if let Some(collector) = METRICS.get() {
        // Nobody can be told that standard output is gone.
        let _ = collector.flush(stdout());
    }
}

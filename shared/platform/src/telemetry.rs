//! JSON logs and embedded metrics on standard output, where Lambda collects both.
//!
//! A log line contains ids, codes and counts. Payloads, addresses and secrets stay out by design:
//! only our own crates log below `warn` (the SDK prints bodies there), and a panic is logged with
//! its location, never with its message.

use std::io::stdout;
use std::sync::OnceLock;

use metrics_cloudwatch_embedded::{Builder, Collector};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use umavez_domain::telemetry::Event;

use crate::config::{self, ConfigError};

const NAMESPACE_VARIABLE: &str = "METRICS_NAMESPACE";
const LEVEL_VARIABLE: &str = "LOG_LEVEL";
static METRICS: OnceLock<&'static Collector> = OnceLock::new();

/// Sets up the logs and metrics of this process. Must be called once, before anything else. `path`
/// is the path of any item of the function's crate.
pub fn init(path: &str) -> Result<(), ConfigError> {
    let level = config::optional::<LevelFilter>(LEVEL_VARIABLE, "a log level")?.unwrap_or(LevelFilter::INFO);
    let quiet = level.min(LevelFilter::WARN);
    let function = path.split("::").next().unwrap_or_default();
    let filter = Targets::new().with_default(quiet).with_target("umavez_", level).with_target(function, level);
    let lines =
        tracing_subscriber::fmt::layer().json().flatten_event(true).with_current_span(false).with_span_list(false);
    // A second initialization (in a test process) keeps the first.
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(event = Event::FunctionPanicked.as_str(), place);
    }));
    init_metrics()
}

fn init_metrics() -> Result<(), ConfigError> {
    let Some(namespace) = config::text(NAMESPACE_VARIABLE) else { return Ok(()) };
    // Metrics have no dimensions except their own labels. CloudWatch does not aggregate over
    // dimensions, and alarms watch a metric that several functions emit as one.
    let collector = Builder::new().cloudwatch_namespace(namespace).init();
    // This fails only if there is a recorder already; that one stays in use.
    if let Ok(collector) = collector {
        let _ = METRICS.set(collector);
    }
    Ok(())
}

/// Writes the metrics since the last flush. Must be called before an invocation answers, because
/// Lambda freezes the process afterwards.
pub fn flush() {
    if let Some(collector) = METRICS.get() {
        // If standard output is closed, the error cannot be reported anywhere.
        let _ = collector.flush(stdout());
    }
}

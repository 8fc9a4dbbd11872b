//! Email through Amazon SES: requests, answers, and the events that SES publishes afterwards.

pub mod ses;
pub mod ses_events;

//! Email by Amazon SES: requests and answers, and the events that SES publishes afterwards.

pub mod ses;
pub mod ses_events;

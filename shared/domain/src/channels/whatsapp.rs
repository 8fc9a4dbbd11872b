//! WhatsApp, by way of the Evolution API.

pub mod evolution;

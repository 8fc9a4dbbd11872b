//! WhatsApp through the Evolution API.

pub mod evolution;

//! Query parameters that record how a visitor reached a page, and do not identify the page.

/// A list of tracking parameters, in lower case. Hashes made with it are stored, so adding or
/// removing a name makes a new version. Pages that were hashed with the old version are still found
/// by their primary key.
#[derive(Debug, Clone, Copy)]
pub struct TrackingList {
    pub version: u32,
    pub names: &'static [&'static str],
    pub prefixes: &'static [&'static str],
}

pub const TRACKING: TrackingList = TrackingList {
    version: 1,
    names: &[
        // Google
        "gclid",
        "dclid",
        "gbraid",
        "wbraid",
        "gclsrc",
        "gad_source",
        "gad_campaignid",
        "srsltid",
        "_ga",
        "_gl",
        // Meta
        "fbclid",
        "igshid",
        "igsh",
        "fb_action_ids",
        "fb_action_types",
        "fb_source",
        "fb_ref",
        // Microsoft, Yandex, X, TikTok, LinkedIn, Reddit, Pinterest, Snapchat
        "msclkid",
        "yclid",
        "ysclid",
        "_openstat",
        "twclid",
        "ref_src",
        "ref_url",
        "ttclid",
        "li_fat_id",
        "rdt_cid",
        "epik",
        "sccid",
        // Mailchimp, HubSpot, Marketo, Vero, Omeda, MailerLite
        "mc_cid",
        "mc_eid",
        "mc_tc",
        "_hsenc",
        "_hsmi",
        "__hssc",
        "__hstc",
        "__hsfp",
        "hsctatracking",
        "mkt_tok",
        "vero_id",
        "vero_conv",
        "oly_anon_id",
        "oly_enc_id",
        "ml_subscriber",
        "ml_subscriber_hash",
        // Affiliates
        "irclickid",
        "wickedid",
    ],
    prefixes: &["utm_"],
};

impl TrackingList {
    pub fn has(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.names.contains(&name.as_str()) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::mail::sha256;

    #[test]
    fn the_tracking_list_of_version_1_does_not_change() {
        assert_eq!((TRACKING.version, TRACKING.prefixes), (1, ["utm_"].as_slice()));
        let golden = "1fc894b4ebf3410cd122cc748f3fda251f08a694105b3fce685595912318d4ba";
        assert_eq!(sha256(&TRACKING.names.join(",")), golden, "a changed list needs a new version");
        let mut names = TRACKING.names.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TRACKING.names.len());
    }

    #[test]
    fn parameters_that_only_resemble_tracking_are_kept() {
        for name in ["utm_source", "UTM_Campaign", "utm_anything", "fbclid", "FBCLID", "_hsEnc", "ref_src"] {
            assert!(TRACKING.has(name), "{name}");
        }
        for name in ["", "utm", "ref", "id", "v", "source", "fbclid2", "xutm_source"] {
            assert!(!TRACKING.has(name), "{name}");
        }
    }
}

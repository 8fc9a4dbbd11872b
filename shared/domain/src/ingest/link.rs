//! Links: the canonical form of a URL, the form without tracking parameters, and the search for
//! URLs in a text. Nothing here fetches anything.

use url::Url;

use super::mail::sha256;
use super::tracking::TRACKING;

/// Longest accepted URL in bytes, both as given and in its normalized form.
pub const LONGEST_URL: usize = 2048;

/// A text counts as a link if it has no more than this many characters besides its URL: a title
/// that a browser adds, or a remark.
pub const LONGEST_COMMENT: usize = 140;

/// A URL, parsed by the WHATWG rules and reduced to the parts that identify the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The given URL in the form of the WHATWG rules, without credentials.
    pub url: String,
    /// The same URL, also without its fragment. This is the primary key.
    pub canonical_url: String,
}

impl Link {
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > LONGEST_URL {
            return Err("must not be longer than 2048 bytes");
        }
        let mut url = Url::parse(text.trim()).map_err(|_| "must be an absolute URL")?;
        let web = matches!(url.scheme(), "http" | "https") && url.has_host();
        // A secret must not be part of a key, and the page is the same without it.
        if !web || url.set_username("").is_err() || url.set_password(None).is_err() {
            return Err("must be an http or https URL");
        }
        let given = String::from(url.clone());
        url.set_fragment(None);
        if given.len() > LONGEST_URL {
            return Err("must not be longer than 2048 bytes when it is written in ASCII");
        }
        Ok(Self { url: given, canonical_url: url.into() })
    }
}

/// Returns the canonical form of a URL.
pub fn canonical_url(text: &str) -> Result<String, &'static str> {
    Link::parse(text).map(|link| link.canonical_url)
}

/// Returns the hash of a canonical URL without tracking parameters and with the other parameters
/// sorted. This is the secondary key.
pub fn url_hash(canonical_url: &str) -> String {
    sha256(&without_tracking(canonical_url))
}

/// Removes tracking parameters and sorts the others by name. Parameters with the same name keep
/// their order, because it may matter.
pub fn without_tracking(canonical_url: &str) -> String {
    let Some((page, query)) = canonical_url.split_once('?') else { return canonical_url.to_owned() };
    let mut kept: Vec<_> =
        query.split('&').filter(|pair| !pair.is_empty() && !TRACKING.has(&decoded_name(pair))).collect();
    kept.sort_by_key(|pair| name(pair));
    if kept.is_empty() { page.to_owned() } else { format!("{page}?{}", kept.join("&")) }
}

fn name(pair: &str) -> &str {
    pair.split_once('=').map_or(pair, |(name, _)| name)
}

fn decoded_name(pair: &str) -> String {
    url::form_urlencoded::parse(pair.as_bytes()).next().map(|(name, _)| name.into_owned()).unwrap_or_default()
}

/// Returns the only URL of a text, if there is at most a short comment besides. Otherwise `None`.
pub fn sole_link(text: &str) -> Option<Link> {
    let mut urls = text.split_whitespace().filter_map(url_in);
    let found = urls.next()?;
    let comment = text.trim().chars().count() - found.chars().count();
    if urls.next().is_some() || comment > LONGEST_COMMENT {
        return None;
    }
    Link::parse(found).ok()
}

/// Returns the first valid URL in a text, for a text that the caller declares to be a link.
pub fn first_link(text: &str) -> Option<Link> {
    text.split_whitespace().filter_map(url_in).find_map(|url| Link::parse(url).ok())
}

/// Returns the URL in a word, without the punctuation around it.
fn url_in(word: &str) -> Option<&str> {
    let lower = word.to_ascii_lowercase();
    let start = ["https://", "http://"].iter().filter_map(|scheme| lower.find(scheme)).min()?;
    let mut url = &word[start..];
    while let Some(last) = url.chars().next_back() {
        let opening = match last {
            ')' => Some('('),
            ']' => Some('['),
            '}' => Some('{'),
            '.' | ',' | ';' | ':' | '!' | '?' | '\'' | '"' | '>' | '»' | '”' | '’' | '…' => None,
            _ => break,
        };
        // A closing bracket belongs to the URL if the URL itself has the opening one.
        let count = |wanted: char| url.chars().filter(|c| *c == wanted).count();
        if opening.is_some_and(|opening| count(opening) >= count(last)) {
            break;
        }
        url = &url[..url.len() - last.len_utf8()];
    }
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_urls_have_one_canonical_form() {
        let cases = [
            ("HTTPS://Example.COM:443/a/../b?x=1#top", "https://example.com/b?x=1"),
            ("http://example.com:80", "http://example.com/"),
            ("http://example.com:8080", "http://example.com:8080/"),
            ("https://user:secret@example.com/", "https://example.com/"),
            (" https://example.com/é ü ", "https://example.com/%C3%A9%20%C3%BC"),
            ("https://Bücher.example/", "https://xn--bcher-kva.example/"),
            ("https://example.com/?utm_source=x", "https://example.com/?utm_source=x"),
            ("https://example.com/%7Ea", "https://example.com/%7Ea"),
            ("http://0x7f.1/", "http://127.0.0.1/"),
            ("http://[::1]:80/", "http://[::1]/"),
        ];
        for (text, form) in cases {
            assert_eq!(canonical_url(text).as_deref(), Ok(form), "{text}");
        }
    }

    #[test]
    fn a_url_keeps_its_fragment_and_loses_its_credentials() {
        let link = Link::parse("https://ana:secret@example.com/a#part").expect("a link");
        assert_eq!(link.url, "https://example.com/a#part");
    }

    #[test]
    fn a_url_that_is_not_of_a_web_page_is_refused() {
        let long = format!("https://example.com/{}", "a".repeat(2048));
        let grows = format!("https://example.com/{}", "é".repeat(600));
        let others = [
            "",
            "example.com",
            "/a",
            "ftp://example.com/",
            "javascript:alert(1)",
            "mailto:a@b.co",
            "file:///etc/passwd",
            "http://",
            "https://exa mple.com/",
            "https://example.com:99999/",
            "https://xn--a/",
            &long,
            &grows,
        ];
        for text in others {
            assert!(canonical_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn links_that_differ_only_by_tracking_and_order_have_one_hash() {
        let hash = |text: &str| url_hash(&canonical_url(text).expect("a URL"));
        let plain = hash("https://example.com/a?id=7&b=2");
        for text in [
            "https://example.com/a?b=2&id=7",
            "https://example.com/a?utm_source=x&id=7&UTM_Medium=y&b=2#z",
            "https://example.com/a?id=7&&b=2&fbclid=1&gclid",
            "https://example.com/a?id=7&b=2&utm%5Fsource=x",
        ] {
            assert_eq!(hash(text), plain, "{text}");
        }
        for text in
            ["https://example.com/a?id=8&b=2", "http://example.com/a?id=7&b=2", "https://example.com/a/?id=7&b=2"]
        {
            assert_ne!(hash(text), plain, "{text}");
        }
        assert_eq!(hash("https://example.com/?"), hash("https://example.com/?utm_source=x"));
        assert_ne!(hash("https://example.com/?t=1&t=2"), hash("https://example.com/?t=2&t=1"));
        assert_eq!(hash("https://example.com/"), "0f115db062b7c0dd030b16878c99dea5c354b49dc37b38eb8846179c7783e9d7");
    }

    #[test]
    fn a_text_with_one_url_and_few_words_is_a_link() {
        let long = format!("{} https://example.com/", "word ".repeat(30));
        let cases = [
            ("https://example.com/a", Some("https://example.com/a")),
            ("Worth reading: https://example.com/a.", Some("https://example.com/a")),
            ("(https://example.com/a_(b))", Some("https://example.com/a_(b)")),
            ("<HTTP://example.com>", Some("http://example.com/")),
            ("Título\nhttps://example.com/a?utm_source=x", Some("https://example.com/a?utm_source=x")),
            ("https://a.example https://b.example", None),
            ("example.com", None),
            ("http://", None),
            ("no link at all", None),
            (long.as_str(), None),
        ];
        for (text, url) in cases {
            assert_eq!(sole_link(text).map(|link| link.canonical_url).as_deref(), url, "{text}");
        }
    }

    #[test]
    fn normalizing_a_url_twice_changes_nothing() {
        let parts = [
            "https://",
            "http:",
            "//",
            "/",
            "\\",
            "a",
            "É",
            "%41",
            "%",
            "%zz",
            "?",
            "&",
            "=",
            "#",
            ":",
            "80",
            "443",
            "@",
            "..",
            ".",
            "[::1]",
            "utm_source=1",
            "b=2",
            " ",
            "\t",
            "+",
            "😀",
            "xn--",
            "\u{ad}",
            "ß",
            "'",
            "|",
            ";",
        ];
        let mut dice = fastrand::Rng::with_seed(3);
        let mut taken = 0;
        for _ in 0..20_000 {
            let rest: String = (0..dice.usize(0..10)).map(|_| parts[dice.usize(0..parts.len())]).collect();
            let Ok(form) = canonical_url(&format!("https://example.com{rest}")).or_else(|_| canonical_url(&rest))
            else {
                continue;
            };
            taken += 1;
            assert_eq!(canonical_url(&form).as_ref(), Ok(&form), "{rest:?}");
            let page = without_tracking(&form);
            assert_eq!(without_tracking(&page), page, "{rest:?}");
            assert_eq!(canonical_url(&page), Ok(page.clone()), "{rest:?}");
            sole_link(&rest);
        }
        assert!(taken > 5_000);
    }
}

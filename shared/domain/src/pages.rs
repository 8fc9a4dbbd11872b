//! What all our pages share: the reader's language, the frame, and the policy on what a browser may
//! load. A page is self-contained: no script, and nothing loaded from elsewhere.

/// The value of the answer's header. With it, even a page with injected content can do nothing but
/// post its own form.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; \
    base-uri 'none'; frame-ancestors 'none'";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Pt,
    En,
}

impl Language {
    /// Returns the language that an `Accept-Language` prefers, the first one among equals. Returns
    /// English if the header names neither.
    pub fn of(accept_language: Option<&str>) -> Self {
        let asked: Vec<_> = accept_language.unwrap_or_default().split(',').filter_map(asked).collect();
        let unnamed = |language: &Self| !asked.iter().any(|(name, _)| Self::named(name) == Some(*language));
        let (mut best, mut highest) = (Self::En, 0.0);
        for (name, quality) in &asked {
            let language = match *name {
                "*" => [Self::En, Self::Pt].into_iter().find(unnamed),
                name => Self::named(name),
            };
            if let Some(language) = language
                && *quality > highest
            {
                (best, highest) = (language, *quality);
            }
        }
        best
    }

    /// Matches a tag by the part before the region, so `pt-BR` and `pt-PT` get the same page.
    fn named(tag: &str) -> Option<Self> {
        let is = |name: &str| tag.split('-').next().is_some_and(|first| first.eq_ignore_ascii_case(name));
        [("pt", Self::Pt), ("en", Self::En)].into_iter().find(|(name, _)| is(name)).map(|(_, language)| language)
    }

    const fn tag(self) -> &'static str {
        match self {
            Self::Pt => "pt-BR",
            Self::En => "en",
        }
    }
}

/// Parses a language's tag and its quality. `None` if the item is malformed; it is then ignored.
fn asked(item: &str) -> Option<(&str, f32)> {
    let (name, parameter) = item.split_once(';').map_or((item, None), |(name, parameter)| (name, Some(parameter)));
    let quality = match parameter {
        None => 1.0,
        Some(parameter) => parameter.trim().strip_prefix(['q', 'Q'])?.trim().strip_prefix('=')?.trim().parse().ok()?,
    };
    (0.0..=1.0).contains(&quality).then_some((name.trim(), quality))
}

const STYLE: &str = "body{font:1.125rem/1.5 system-ui,sans-serif;margin:0;padding:10vh 1.25rem}\
    main{max-width:32rem;margin:auto}h1{font-size:1.5rem;line-height:1.25}strong{overflow-wrap:anywhere}\
    button{font:inherit;font-weight:600;padding:.75rem 1.5rem;border:2px solid;border-radius:.5rem;cursor:pointer}";

/// Returns a whole page. `title` and `content` are HTML.
pub fn page(language: Language, title: &str, content: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"{}\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"robots\" content=\"noindex\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<main>\n<h1>{title}</h1>\n{content}\n</main>\n</body>\n</html>\n",
        language.tag()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_of_a_page_follows_the_accept_language_header() {
        use Language::{En, Pt};
        for (header, language) in [
            ("", En),
            ("pt", Pt),
            ("PT-br", Pt),
            ("pt-BR,pt;q=0.9,en-US;q=0.8,en;q=0.7", Pt),
            ("en-US,en;q=0.9,pt;q=0.8", En),
            ("en;q=0.5, pt;q=0.9", Pt),
            ("pt;q=0.3, en;q=0.5, pt-PT ; q = 0.8", Pt),
            ("en, pt", En),
            ("pt, en", Pt),
            ("de, fr;q=0.5", En),
            ("de, pt;q=0.1", Pt),
            ("de, *;q=0.5", En),
            ("*", En),
            ("en;q=0, *", Pt),
            ("*, pt;q=0.5", En),
            ("pt;q=0.5, en;q=0.4, *", Pt),
            ("pt;q=0", En),
            ("pt;q=2, pt;q=x, pt;q=NaN, pt;level=1", En),
            ("ptx, ;;;, =, pt_BR", En),
        ] {
            assert_eq!(Language::of(Some(header)), language, "{header:?}");
        }
        assert_eq!(Language::of(None), En);
    }
}

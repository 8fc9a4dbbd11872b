//! The pages behind the unsubscribe link. They are self-contained: no script, and nothing loaded
//! from elsewhere. They do not show the recipient's address, because the link does not contain it.

use super::template::escape;
use crate::pages::{Language, page};

/// The page that asks whether to unsubscribe. Link scanners request it too, so it changes nothing.
/// Its form posts to the page's own address.
pub fn ask_page(language: Language, list: &str) -> String {
    let list = shown(list);
    let (title, question, note) = match language {
        Language::Pt => (
            "Cancelar inscrição",
            format!("Deseja parar de receber emails de {list}?"),
            "Nada muda até você apertar o botão.",
        ),
        Language::En => (
            "Unsubscribe",
            format!("Do you want to stop receiving emails from {list}?"),
            "Nothing changes until you press the button.",
        ),
    };
    let form = format!("<form method=\"post\"><button type=\"submit\">{title}</button></form>");
    page(language, title, &format!("<p>{question}</p>\n{form}\n<p><small>{note}</small></p>"))
}

/// The page after unsubscribing. It is the same whether the recipient unsubscribed now or earlier.
pub fn done_page(language: Language, list: &str) -> String {
    let list = shown(list);
    let (title, done, note) = match language {
        Language::Pt => (
            "Inscrição cancelada",
            format!("Você não receberá mais emails de {list}."),
            "Um email que já esteja a caminho ainda pode chegar.",
        ),
        Language::En => (
            "You are unsubscribed",
            format!("You will not receive any more emails from {list}."),
            "One that is already on its way may still arrive.",
        ),
    };
    page(language, title, &format!("<p role=\"status\">{done}</p>\n<p><small>{note}</small></p>"))
}

/// The page for a link without a valid signature.
pub fn unknown_page(language: Language) -> String {
    let (title, advice) = match language {
        Language::Pt => {
            ("Este link não funciona", "Ele pode ter sido cortado. Abra-o de novo no email ou copie-o por inteiro.")
        }
        Language::En => {
            ("This link does not work", "It may have been cut off. Open it in the email again, or copy all of it.")
        }
    };
    page(language, title, &format!("<p>{advice}</p>"))
}

/// The page for a failure on our side.
pub fn later_page(language: Language) -> String {
    let (title, advice) = match language {
        Language::Pt => ("Tente de novo em instantes", "Não foi possível registrar o seu pedido agora."),
        Language::En => ("Please try again in a moment", "Your request could not be recorded just now."),
    };
    page(language, title, &format!("<p>{advice}</p>"))
}

/// Renders a list's name as HTML. The name comes from an upload, so `bdi` keeps it from changing
/// the direction of the text around it.
fn shown(list: &str) -> String {
    let mut shown = "<strong><bdi>".to_owned();
    escape(list, &mut shown);
    shown + "</bdi></strong>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_loads_no_other_resources() {
        for (language, tag) in [(Language::Pt, "pt-BR"), (Language::En, "en")] {
            let pages = [ask_page(language, "x"), done_page(language, "x"), unknown_page(language)];
            for page in &pages {
                assert!(page.starts_with(&format!("<!doctype html>\n<html lang=\"{tag}\">")), "{page}");
                assert!(page.contains("<meta name=\"viewport\""));
                for foreign in ["<script", "http:", "https:", "//", "<link", "<img", "url(", "@import"] {
                    assert!(!page.contains(foreign), "{foreign} in {page}");
                }
            }
            let forms = pages.map(|page| page.matches("<form method=\"post\"><button type=\"submit\">").count());
            assert_eq!(forms, [1, 0, 0], "only the page with the question has a button");
        }
        assert!(ask_page(Language::Pt, "x").contains("Deseja parar") && ask_page(Language::En, "x").contains("Do you"));
    }

    #[test]
    fn the_name_of_a_list_is_escaped() {
        for page in [ask_page(Language::Pt, "<b>\"A\" & 'B'"), done_page(Language::En, "<b>\"A\" & 'B'")] {
            assert!(page.contains("<bdi>&lt;b&gt;&quot;A&quot; &amp; &#39;B&#39;</bdi>"), "{page}");
        }
    }
}

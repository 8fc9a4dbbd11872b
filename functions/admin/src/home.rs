//! `GET /`: a page with links to the pages for people. It contains no data and needs no key.

use umavez_domain::pages::{CONTENT_SECURITY_POLICY, Language, page};
use umavez_platform::http::{Answer, Request};

pub fn show(request: &Request) -> Answer {
    let language = Language::of(request.header("accept-language"));
    Answer::text(200, "text/html; charset=utf-8", page(language, "Umavez", content(language)))
        .header("content-security-policy", CONTENT_SECURITY_POLICY)
        .header("x-content-type-options", "nosniff")
        .header("referrer-policy", "no-referrer")
        .header("cache-control", "no-store")
        .header("vary", "accept-language")
}

fn content(language: Language) -> &'static str {
    match language {
        Language::En => {
            "<p>Every message that should go out goes out, and goes out once.</p>\n\
             <ul>\n\
             <li><a href=\"/console\">Console</a>: bots and downsells, their queue and their numbers. It asks for an API key.</li>\n\
             <li><a href=\"/health\">Health</a>: whether the API answers.</li>\n\
             </ul>\n\
             <p>The source describes every route of the API in <code>infra/openapi.yaml</code>, and how to use them in \
             <code>README.md</code> and <code>docs/</code>.</p>"
        }
        Language::Pt => {
            "<p>Toda mensagem que deve sair sai, e sai uma vez.</p>\n\
             <ul>\n\
             <li><a href=\"/console\">Console</a>: bots e downsells, sua fila e seus números. Pede uma chave da API.</li>\n\
             <li><a href=\"/health\">Saúde</a>: se a API responde.</li>\n\
             </ul>\n\
             <p>O código-fonte descreve cada rota da API em <code>infra/openapi.yaml</code>, e como usá-las em \
             <code>README.md</code> e <code>docs/</code>.</p>"
        }
    }
}

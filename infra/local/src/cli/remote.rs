//! Talks to a stack that runs already.

use reqwest::RequestBuilder;
use serde_json::Value;

use super::CliError;

/// A running stack, and how answers are printed.
pub struct Remote {
    pub port: u16,
    pub json: bool,
}

impl Remote {
    /// Returns what the stack says about itself.
    pub async fn about(&self) -> Result<Value, CliError> {
        self.get("/_local", &[]).await
    }

    pub async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, CliError> {
        let mut url = reqwest::Url::parse(&self.url(path)).map_err(|error| CliError::Failed(error.to_string()))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.send(client().get(url)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.send(client().post(self.url(path)).json(body)).await
    }

    pub async fn send(&self, request: RequestBuilder) -> Result<Value, CliError> {
        let port = self.port;
        let no_stack = |_| CliError::NoStack(port);
        let response = request.send().await.map_err(no_stack)?;
        let status = response.status();
        let body: Value = response.json().await.map_err(no_stack)?;
        if status.is_success() {
            return Ok(body);
        }
        let problem = ["detail", "message", "title"].iter().find_map(|field| body[field].as_str());
        Err(CliError::Failed(format!("the stack answered {status}: {}", problem.unwrap_or("no reason given"))))
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Prints the answer as JSON if the caller asked for JSON, otherwise as `text` has it.
    pub fn print(&self, answer: &Value, text: impl FnOnce(&Value)) {
        if self.json { println!("{answer}") } else { text(answer) }
    }
}

pub fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap_or_default()
}

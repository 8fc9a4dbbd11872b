//! What `cargo run` prints when the stack is ready. The documentation shows it.

/// Returns the lines that people and programs wait for: the URL, the API key, and the pages of the
/// stack.
pub fn ready(url: &str, key: &str) -> String {
    format!(
        "\
ready {url}
key {key}

  start page      {url}/
  console         {url}/console (the key is {key})
  what was sent   {url}/_local/sent
  logs            {url}/_local/logs
  overview        {url}/_local
"
    )
}

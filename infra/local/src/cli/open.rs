//! `open`: the start page in a browser.

use serde_json::json;

use super::CliError;
use super::remote::Remote;

pub async fn run(remote: &Remote) -> Result<(), CliError> {
    remote.about().await?;
    let url = remote.url("/");
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let opened = tokio::process::Command::new(program).arg(&url).status().await;
    let is_open = opened.is_ok_and(|status| status.success());
    remote.print(&json!({"url": url, "opened": is_open}), |_| {
        println!("{url}");
        if !is_open {
            eprintln!("umavez: `{program}` opened no browser; open the address by hand");
        }
    });
    Ok(())
}

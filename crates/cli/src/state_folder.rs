//! The folder of the host in which the command keeps state between its runs.

use anyhow::{Context as _, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the folder, and makes it: `$XDG_STATE_HOME/papilio` if that is set, else
/// `/var/lib/papilio` for root, and `~/.local/state/papilio` for others. `what` names the state.
///
/// # Errors
/// There is no such folder, and it cannot be made.
pub(crate) fn state_folder(what: &str) -> anyhow::Result<PathBuf> {
    let path = if let Some(state) = std::env::var_os("XDG_STATE_HOME").filter(|value| !value.is_empty()) {
        Path::new(&state).join("papilio")
    } else if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib/papilio")
    } else if let Some(home) = std::env::var_os("HOME").filter(|value| !value.is_empty()) {
        Path::new(&home).join(".local/state/papilio")
    } else {
        bail!("no directory for {what}: set XDG_STATE_HOME");
    };
    fs::create_dir_all(&path).with_context(|| format!("{}: cannot create", path.display()))?;
    Ok(path)
}

//! Cargo as a child of `cargo xtask`.
//!
//! Owns [`nested_cargo`].

use std::process::Command;

/// Returns cargo without the variables of this package. Build scripts are run again where these
/// differ from those of a cargo that a shell starts: the one of ring is, and with it everything
/// that uses TLS would be built anew.
pub fn nested_cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let own = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name.to_str().is_some_and(|name| own.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(&name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_this_package_are_removed() {
        // Cargo sets it for tests as for `cargo xtask`.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let command = nested_cargo();
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        assert!(removed.iter().any(|(name, _)| *name == "CARGO_MANIFEST_DIR"), "{removed:?}");
    }
}

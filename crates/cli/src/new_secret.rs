//! Secrets that are given for the first time.
//!
//! Owns [`new_secret`].

use papilio_keys::Secret;
use papilio_layers::{KeySource, LayerError};

/// Reads a new secret for `place`, from a terminal twice. `option` names a file in place of the
/// terminal.
///
/// # Errors
/// It cannot be read, or is empty; two passphrases that differ.
pub fn new_secret(source: &KeySource, place: &str, option: &str) -> anyhow::Result<Secret> {
    let secret = match source.read_secret(place) {
        Err(LayerError::NoKey(_)) => {
            anyhow::bail!("{place}: a key is needed: give {option} FILE, or run this in a terminal");
        }
        read => read?,
    };
    if *source == KeySource::Terminal {
        let again = source.read_secret(&format!("{place} (again)"))?;
        anyhow::ensure!(*secret == *again, "{place}: the two passphrases differ");
    }
    anyhow::ensure!(!secret.is_empty(), "{place}: the passphrase is empty");
    Ok(secret)
}

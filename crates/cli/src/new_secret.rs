//! Secrets that are given for the first time.
//!
//! Owns [`new_secret`].

use papilio_keys::Secret;
use papilio_layers::KeySource;

/// Reads a new secret for `place`, from a terminal twice.
///
/// # Errors
/// It cannot be read, or is empty; two passphrases that differ.
pub fn new_secret(source: &KeySource, place: &str) -> anyhow::Result<Secret> {
    let secret = source.read_secret(place)?;
    if *source == KeySource::Terminal {
        let again = source.read_secret(&format!("{place} (again)"))?;
        anyhow::ensure!(*secret == *again, "{place}: the two passphrases differ");
    }
    anyhow::ensure!(!secret.is_empty(), "{place}: the passphrase is empty");
    Ok(secret)
}

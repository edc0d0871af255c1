//! A key in the description of a repository.

use papilio_keys::WrappedKey;
use serde::{Deserialize, Serialize};

/// A wrapping of the repository's key, for one secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// The name that the user gave it.
    pub label: Option<String>,
    /// The key.
    pub key: WrappedKey,
}

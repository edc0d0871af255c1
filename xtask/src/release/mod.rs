//! `cargo xtask sbom` and `cargo xtask notices`: two files that go with a release.
//!
//! Owns the list of crates that a release is built of. Both files follow from Cargo.lock and from
//! the packages in cargo's cache alone, so that two machines write the same bytes.

mod notices;
mod sbom;

use crate::metadata::Metadata;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// The crates of the workspace whose programs and libraries are in a release.
const SHIPPED: &[&str] =
    &["papilio-bench", "papilio-capi", "papilio-cli", "papilio-cli-store", "papilio-fio", "papilio-python"];

/// Writes the software bill of materials: CycloneDX, as JSON.
///
/// # Errors
/// Cargo fails, `SOURCE_DATE_EPOCH` is no number, or the file cannot be written.
pub fn write_sbom(root: &Path, file: &Path) -> Result<()> {
    let metadata = Metadata::load(root)?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock")?;
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok();
    let text = sbom::text(&metadata, SHIPPED, &lock, epoch.as_deref())?;
    fs::write(file, text).with_context(|| file.display().to_string())
}

/// Writes the licence texts of all packages of other people.
///
/// # Errors
/// Cargo fails, or a file cannot be read or written.
pub fn write_notices(root: &Path, file: &Path) -> Result<()> {
    let text = notices::text(&Metadata::load(root)?, SHIPPED)?;
    fs::write(file, text).with_context(|| file.display().to_string())
}

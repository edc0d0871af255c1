//! The secrets of an encrypted device: making, adding, removing and changing them.
//!
//! None of these functions touches data. The device may be in use meanwhile.

use super::keys::KeyRing;
use crate::database::StoreUrl;
use crate::remote::runtime;
use papilio_device::{OpenErrorKind, StoreKey};
use papilio_keys::{Derivation, Secret};

fn run<R>(work: impl Future<Output = Result<R, OpenErrorKind>>) -> Result<R, OpenErrorKind> {
    runtime().map_err(OpenErrorKind::Io)?.block_on(work)
}

fn refuse(reason: &str) -> OpenErrorKind {
    OpenErrorKind::Remote(reason.to_owned())
}

async fn ring(url: &StoreUrl) -> Result<KeyRing, OpenErrorKind> {
    let found = url.survey().await?;
    if !found.is_device && !found.has_keys {
        return Err(OpenErrorKind::NotFound);
    }
    KeyRing::read(url.raw(), url.path()).await?.ok_or_else(|| refuse("it is not encrypted"))
}

fn must_be_writable(url: &StoreUrl) -> Result<(), OpenErrorKind> {
    if url.names_checkpoint() { Err(OpenErrorKind::ReadOnlyMedium) } else { Ok(()) }
}

/// Prepares a place for an encrypted device, which [`StoreDevice::create`](crate::StoreDevice)
/// makes afterwards. `secret` opens it.
///
/// # Errors
/// A device that is there; a store that does not answer.
pub fn encrypt_store(url: &StoreUrl, secret: &Secret, cost: Derivation) -> Result<(), OpenErrorKind> {
    must_be_writable(url)?;
    run(async {
        if url.survey().await?.is_device {
            return Err(refuse("there is a device already, which stays as it is: encrypted or not"));
        }
        let (mut ring, _) = KeyRing::make(secret, cost)?;
        ring.write(url.raw(), url.path()).await
    })
}

/// Returns the secrets of an encrypted device. No secret is needed.
///
/// # Errors
/// No such device, or one that is not encrypted; a store that does not answer.
pub fn store_keys(url: &StoreUrl) -> Result<Vec<StoreKey>, OpenErrorKind> {
    run(async { Ok(ring(url).await?.slots()) })
}

/// Adds a secret to an encrypted device. Returns its slot.
///
/// # Errors
/// As [`store_keys`]; the URL's secret is wrong; 32 secrets.
pub fn add_store_key(url: &StoreUrl, secret: &Secret, cost: Derivation) -> Result<u32, OpenErrorKind> {
    must_be_writable(url)?;
    run(async {
        let mut ring = ring(url).await?;
        let key = url.key_of(&ring)?;
        let slot = ring.add(&key, secret, cost)?;
        ring.write(url.raw(), url.path()).await?;
        Ok(slot)
    })
}

/// Removes a secret from an encrypted device. The URL's secret must open another slot, so that the
/// device stays readable.
///
/// # Errors
/// As [`store_keys`]; no such slot; the URL's secret is wrong, or opens no other slot.
pub fn remove_store_key(url: &StoreUrl, slot: u32) -> Result<(), OpenErrorKind> {
    must_be_writable(url)?;
    run(async {
        let mut ring = ring(url).await?;
        ring.remove(slot)?;
        if ring.slots().is_empty() {
            return Err(refuse("the last key cannot be removed"));
        }
        // The rest must open.
        url.key_of(&ring)?;
        ring.write(url.raw(), url.path()).await
    })
}

/// Replaces a secret of an encrypted device: the one that the URL's secret is, or that of a slot.
/// Returns the slot.
///
/// # Errors
/// As [`store_keys`]; no such slot; the URL's secret is wrong.
pub fn change_store_key(
    url: &StoreUrl,
    slot: Option<u32>,
    secret: &Secret,
    cost: Derivation,
) -> Result<u32, OpenErrorKind> {
    must_be_writable(url)?;
    run(async {
        let mut ring = ring(url).await?;
        let (key, opened) = url.key_and_slot_of(&ring)?;
        let slot = slot.unwrap_or(opened);
        ring.replace(slot, &key, secret, cost)?;
        ring.write(url.raw(), url.path()).await?;
        Ok(slot)
    })
}

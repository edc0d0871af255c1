//! `Keys`: the keys of this process, so that a command that opens a volume twice asks once.
//!
//! Locks: one for keys of what is no volume, one for secrets, one for volume keys, in this order.
//! The first two are held while a terminal asks, so that two threads do not ask at once.

use crate::error::{LayerError, Result};
use crate::luks::{LuksHeader, VolumeKey};
use crate::options::{KeySource, LayerOptions, Secret};
use papilio_device::Device;
use std::sync::{Mutex, PoisonError};
use zeroize::Zeroizing;

/// How often a terminal asks for a passphrase.
const ATTEMPTS: usize = 3;

/// Opens a key of 32 bytes with a secret; `None` if the secret is wrong.
pub(crate) type OpenKey<'a> = &'a mut dyn FnMut(&[u8]) -> Option<UnlockedKey>;
/// A key that a secret opened.
pub type UnlockedKey = Zeroizing<[u8; 32]>;

/// Why the key of something that is no volume stays locked.
#[derive(Debug)]
pub enum KeyFault {
    /// There is no key, and no way to ask for a passphrase.
    Missing,
    /// The secret opens nothing: a "passphrase", a "key file" or a "key command".
    Wrong(&'static str),
    /// The secret cannot be read.
    Unreadable(Box<LayerError>),
}

/// The keys that were opened.
#[derive(Default)]
pub(crate) struct Keys {
    secret: Mutex<Option<Secret>>,
    /// By the volume's UUID and the number of the slot that was asked for.
    volumes: Mutex<Vec<(String, VolumeKey)>>,
    /// Keys of what is no volume, by a name of the caller's.
    others: Mutex<Vec<(String, UnlockedKey)>>,
    /// Why the command that prints the key failed, if it ran early.
    failed: Mutex<Option<LayerError>>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Keys")
    }
}

impl Keys {
    /// Forgets all secrets and keys; their memory is wiped.
    pub(crate) fn forget(&self) {
        *self.secret.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.others.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Keeps a secret that the caller has read.
    pub(crate) fn keep_secret(&self, bytes: Zeroizing<Vec<u8>>, kind: &'static str) {
        let mut secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        *secret = Some(Secret { bytes, kind });
    }

    /// Runs the command that prints the key, if there is one, and keeps its output.
    pub(crate) fn run_command(&self, source: &KeySource) {
        let mut secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        if let (KeySource::Command(_), None) = (source, &*secret) {
            match source.read("the device") {
                Ok(read) => *secret = Some(read),
                Err(error) => *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error),
            }
        }
    }

    fn read(&self, source: &KeySource, name: &str) -> Result<Secret> {
        match self.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => source.read(name),
        }
    }

    /// Returns the key of something that is no volume: one that is kept under `id`, or one that the
    /// user's secret opens. `name` is for the terminal.
    pub(crate) fn unlock_other(
        &self,
        id: &str,
        name: &str,
        source: &KeySource,
        open: OpenKey<'_>,
    ) -> std::result::Result<UnlockedKey, KeyFault> {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, key)) = others.iter().find(|(known, _)| known == id) {
            return Ok(key.clone());
        }
        let mut secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fault = None;
        if let Some(known) = &*secret {
            if let Some(key) = open(&known.bytes) {
                others.push((id.to_owned(), key.clone()));
                return Ok(key);
            }
            fault = Some(KeyFault::Wrong(known.kind));
        }
        let attempts = match (source, &fault) {
            (KeySource::Terminal, _) => ATTEMPTS,
            (_, None) => 1,
            (_, Some(_)) => 0,
        };
        for _ in 0..attempts {
            let read = self.read(source, name).map_err(|error| match error {
                LayerError::NoKey(_) => fault.take().unwrap_or(KeyFault::Missing),
                error => KeyFault::Unreadable(Box::new(error)),
            })?;
            let opened = open(&read.bytes);
            fault = Some(KeyFault::Wrong(read.kind));
            *secret = Some(read);
            if let Some(key) = opened {
                others.push((id.to_owned(), key.clone()));
                return Ok(key);
            }
        }
        Err(fault.unwrap_or(KeyFault::Missing))
    }

    /// Returns the last secret that was read.
    pub(crate) fn secret(&self) -> Option<Zeroizing<Vec<u8>>> {
        let secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        secret.as_ref().map(|secret| secret.bytes.clone())
    }

    /// Returns the key of a volume: one that is known, or one that the user's secret opens.
    pub(crate) fn unlock(
        &self,
        header: &LuksHeader,
        device: &dyn Device,
        options: &LayerOptions,
    ) -> Result<VolumeKey> {
        let find = |volumes: &[(String, VolumeKey)]| {
            volumes
                .iter()
                .filter(|(uuid, _)| *uuid == header.uuid)
                .map(|(_, key)| key)
                // A copy of a volume may have another key under the same UUID.
                .find(|key| header.is_key(key))
                .cloned()
        };
        if let Some(key) = find(&self.volumes.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(key);
        }
        let mut secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        let attempts = if options.key == KeySource::Terminal { ATTEMPTS } else { 1 };
        let mut fault = LayerError::NoKey(device.name().to_owned());
        if let Some(known) = &*secret {
            match header.unlock(device, &known.bytes, options.key_slot, known.kind) {
                Ok(key) => return Ok(self.keep(header, key)),
                Err(error) => fault = error,
            }
            if options.key != KeySource::Terminal {
                return Err(fault);
            }
        }
        for _ in 0..attempts {
            let read = self.read(&options.key, device.name())?;
            let opened = header.unlock(device, &read.bytes, options.key_slot, read.kind);
            *secret = Some(read);
            match opened {
                Ok(key) => return Ok(self.keep(header, key)),
                Err(error @ LayerError::WrongKey { .. }) => fault = error,
                Err(error) => return Err(error),
            }
        }
        Err(fault)
    }

    fn keep(&self, header: &LuksHeader, key: VolumeKey) -> VolumeKey {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.push((header.uuid.clone(), key.clone()));
        key
    }
}

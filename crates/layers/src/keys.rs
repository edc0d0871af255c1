//! `Keys`: the keys of this process, so that a command that opens a volume twice asks once.
//!
//! Locks: one leaf for secrets, one for volume keys. The first is held while a terminal asks, so
//! that two threads do not ask at once.

use crate::error::{LayerError, Result};
use crate::luks::{LuksHeader, VolumeKey};
use crate::options::{KeySource, LayerOptions, Secret};
use papilio_device::Device;
use std::sync::{Mutex, PoisonError};
use zeroize::Zeroizing;

/// How often a terminal asks for a passphrase.
const ATTEMPTS: usize = 3;

/// The keys that were opened.
#[derive(Default)]
pub(crate) struct Keys {
    secret: Mutex<Option<Secret>>,
    /// By the volume's UUID and the number of the slot that was asked for.
    volumes: Mutex<Vec<(String, VolumeKey)>>,
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
            let read = options.key.read(device.name())?;
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

//! The object stores that `papilio_device` asks.
//!
//! Owns [`install`]: which URL is opened by which kind of device.

use crate::{
    Bucket, Derivation, LogWatch, RemoteDevice, Secret, StoreDevice, StoreUrl, add_store_key,
    change_store_key, clone_store, create_checkpoint, delete_checkpoint, encrypt_store, list_checkpoints,
    remove_store_key, store_info, store_keys,
};
use papilio_device::{
    Access, Device, ObjectStore, ObjectStores, OpenErrorKind, RemoteOptions, StoreCheckpoint, StoreCleaned,
    StoreInfo, StoreKey, StoreWatch, is_store_url,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Lets this process open images at URLs. Later calls have no effect.
pub fn install() {
    papilio_device::install_object_stores(&Stores);
}

#[derive(Debug)]
struct Stores;

impl ObjectStores for Stores {
    fn open(
        &self,
        url: &str,
        access: Access,
        options: &RemoteOptions,
    ) -> Result<Arc<dyn Device>, OpenErrorKind> {
        if is_store_url(Path::new(url)) {
            let url = StoreUrl::parse(url, options)?;
            return Ok(Arc::new(StoreDevice::open(&url, access, options)?));
        }
        if access == Access::ReadWrite {
            return Err(OpenErrorKind::RemoteReadOnly);
        }
        Ok(Arc::new(RemoteDevice::open(url, options)?))
    }

    fn objects(&self, url: &str, options: &RemoteOptions) -> Result<Arc<dyn ObjectStore>, OpenErrorKind> {
        Ok(Arc::new(Bucket::open(url, options)?))
    }

    fn create(
        &self,
        url: &str,
        size: u64,
        options: &RemoteOptions,
    ) -> Result<Arc<dyn Device>, OpenErrorKind> {
        Ok(Arc::new(StoreDevice::create(&StoreUrl::parse(url, options)?, size, options)?))
    }

    fn watch(&self, url: &str, options: &RemoteOptions) -> Result<Box<dyn StoreWatch>, OpenErrorKind> {
        Ok(Box::new(LogWatch::new(StoreUrl::parse(url, options)?)?))
    }

    fn grow(&self, url: &str, size: u64, options: &RemoteOptions) -> Result<u64, OpenErrorKind> {
        StoreDevice::grow(&StoreUrl::parse(url, options)?, size, options)
    }

    fn create_checkpoint(
        &self,
        url: &str,
        name: Option<&str>,
        lifetime: Option<Duration>,
        options: &RemoteOptions,
    ) -> Result<StoreCheckpoint, OpenErrorKind> {
        create_checkpoint(&StoreUrl::parse(url, options)?, name, lifetime)
    }

    fn checkpoints(&self, url: &str, options: &RemoteOptions) -> Result<Vec<StoreCheckpoint>, OpenErrorKind> {
        list_checkpoints(&StoreUrl::parse(url, options)?)
    }

    fn delete_checkpoint(
        &self,
        url: &str,
        checkpoint: &str,
        options: &RemoteOptions,
    ) -> Result<(), OpenErrorKind> {
        delete_checkpoint(&StoreUrl::parse(url, options)?, checkpoint)
    }

    fn clone_device(&self, url: &str, to: &str, options: &RemoteOptions) -> Result<(), OpenErrorKind> {
        clone_store(&StoreUrl::parse(url, options)?, &StoreUrl::parse(to, options)?)
    }

    fn info(&self, url: &str, options: &RemoteOptions) -> Result<StoreInfo, OpenErrorKind> {
        store_info(&StoreUrl::parse(url, options)?, options)
    }

    fn clean(&self, url: &str, options: &RemoteOptions) -> Result<StoreCleaned, OpenErrorKind> {
        StoreDevice::clean(&StoreUrl::parse(url, options)?, options)
    }

    fn encrypt(&self, url: &str, secret: &[u8], options: &RemoteOptions) -> Result<(), OpenErrorKind> {
        encrypt_store(&StoreUrl::parse(url, options)?, &copied(secret), Derivation::default())
    }

    fn keys(&self, url: &str, options: &RemoteOptions) -> Result<Vec<StoreKey>, OpenErrorKind> {
        store_keys(&StoreUrl::parse(url, options)?)
    }

    fn add_key(&self, url: &str, secret: &[u8], options: &RemoteOptions) -> Result<u32, OpenErrorKind> {
        add_store_key(&StoreUrl::parse(url, options)?, &copied(secret), Derivation::default())
    }

    fn remove_key(&self, url: &str, slot: u32, options: &RemoteOptions) -> Result<(), OpenErrorKind> {
        remove_store_key(&StoreUrl::parse(url, options)?, slot)
    }

    fn change_key(
        &self,
        url: &str,
        slot: Option<u32>,
        secret: &[u8],
        options: &RemoteOptions,
    ) -> Result<u32, OpenErrorKind> {
        change_store_key(&StoreUrl::parse(url, options)?, slot, &copied(secret), Derivation::default())
    }
}

fn copied(secret: &[u8]) -> Secret {
    Secret::new(secret.to_vec())
}

//! Stores in memory, for tests.

use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use papilio_store::{RemoteCache, RemoteOptions};
use std::sync::OnceLock;
use tokio::runtime::Runtime;

pub(crate) fn options() -> RemoteOptions {
    RemoteOptions { cache: RemoteCache::Memory, retries: 0, ..RemoteOptions::default() }
}

/// Returns the runtime of the tests' own requests.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    })
}

/// Returns the objects of a device, in order.
pub(crate) fn objects(memory: &InMemory, prefix: &str) -> Vec<Path> {
    let prefix = Path::from(prefix);
    let list = memory.list(Some(&prefix)).map_ok(|object| object.location).try_collect();
    let mut found: Vec<Path> = runtime().block_on(list).unwrap();
    found.sort();
    found
}

/// Returns the objects of a device's segments, the oldest first.
pub(crate) fn segments(memory: &InMemory, device: &str) -> Vec<Path> {
    objects(memory, &format!("{device}/segments"))
}

/// Deletes all objects of a device.
pub(crate) fn delete_device(memory: &InMemory, device: &str) {
    for path in objects(memory, device) {
        runtime().block_on(memory.delete(&path)).unwrap();
    }
}

//! Backups of snapshots: repositories of send streams in folders and object stores.
//!
//! [`ObjectStore`] is the place of a repository: a [`FolderStore`], a [`MemoryStore`], or one of
//! the stores that a program installed ([`open_store`]). [`Repository`] opens it, with its keys.
//! [`create`] writes a backup of a [`SnapshotSource`]: `writer` cuts the stream into objects, and a
//! [`Manifest`] makes the backup visible. [`restore`] receives the chain of a backup.
//! [`stream_chain`] reads single files of it. [`prune`] deletes what [`Retention`] does not keep,
//! and [`verify`] reads everything.
//!
//! docs/backup.md describes the format of a repository.
//!
//! **Invariants**
//! - A backup is visible once its manifest is stored, which happens after all its objects are.
//! - An object that a visible backup uses is never deleted or replaced.
//! - A backup's manifest is deleted before that of its base, and objects after the manifests.
//! - Nothing that was read from a repository is used before its checksum, or its authentication in
//!   an encrypted repository, was verified.
//!
//! **Locks:** those of the workers of a writer, and of the store in memory. Both are leaves.

#![forbid(unsafe_code)]

mod access;
mod backups;
mod create;
mod description;
#[cfg(target_os = "linux")]
mod directory_target;
mod error;
mod folder;
mod holder;
mod key_entry;
mod keys;
mod lock;
mod manifest;
mod memory;
mod merge;
mod outline;
mod prune;
mod reader;
mod repository;
mod restore;
mod retention;
mod seal;
mod shared;
mod store;
mod target;
mod verify;
mod watched;
mod writer;

#[cfg(target_os = "linux")]
pub use access::extract;
pub use access::stream_chain;
pub use backups::{Backup, Backups};
pub use create::{CreateOptions, Created, ImageSnapshot, Snapshot, SnapshotSource, create};
#[cfg(target_os = "linux")]
pub use directory_target::DirectoryTarget;
pub use error::{BackupError, Result};
pub use folder::FolderStore;
pub use holder::LockHolder;
pub use keys::{KeyInfo, list_keys};
pub use lock::RepositoryLock;
pub use manifest::{BaseName, Manifest, StoredObject};
pub use memory::MemoryStore;
#[doc(no_inline)]
pub use papilio::device::ObjectStore;
#[doc(no_inline)]
pub use papilio_keys::{Derivation, Secret};
pub use prune::{Kept, PruneOptions, PrunePlan, Pruned, plan_prune, prune};
pub use repository::{Encryption, Repository};
pub use restore::{RestoreOptions, Restored, restore};
pub use retention::Retention;
pub use store::open_store;
pub use target::{ImageTarget, RestoreTarget};
pub use verify::{Verified, VerifyFault, VerifyOptions, verify};
pub use watched::StoreWatch;

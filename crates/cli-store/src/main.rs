//! `papilio-store`: the `papilio` command with object stores.
//!
//! `papilio` runs it in its own place when an argument names a URL: see other_program.rs in
//! crates/cli. It has all commands, and may be installed under the name `papilio`, too.

#![forbid(unsafe_code)]

use papilio_backup::ObjectStore;
use papilio_cli::{BackupStores, install_backup_stores, run};
use papilio_store::{Bucket, RemoteOptions};
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

/// A repository of backups below a prefix of a bucket.
#[derive(Debug)]
struct BackupBucket(Bucket);

impl ObjectStore for BackupBucket {
    fn place(&self) -> String {
        self.0.name().to_owned()
    }

    fn get(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        self.0.get(name, most)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.put(name, bytes)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.create(name, bytes)
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        self.0.list(prefix)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.0.delete(name)
    }
}

struct Buckets;

impl BackupStores for Buckets {
    fn open(&self, url: &str, options: &RemoteOptions) -> Result<Arc<dyn ObjectStore>, String> {
        let bucket = Bucket::open(url, options).map_err(|error| error.to_string())?;
        Ok(Arc::new(BackupBucket(bucket)))
    }
}

fn main() -> ExitCode {
    papilio_store::install();
    install_backup_stores(&Buckets);
    run(std::env::args_os()).into()
}

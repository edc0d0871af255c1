//! The committer: a thread that commits what waits long enough, and cleans up deleted subvolumes.
//!
//! Owns [`Committer`]. Invariant: the thread holds the transactions only while it works, so that it never
//! keeps a file system open; it ends with the [`Committer`]. Kernel counterparts: `transaction_kthread`,
//! `cleaner_kthread` (`fs/btrfs/disk-io.c`).

use crate::subvolume::clean_step;
use crate::transaction::Transactions;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What the thread is told.
enum Wake {
    /// A subvolume waits to be cleaned up.
    Clean,
}

/// The thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct Committer {
    wake: Sender<Wake>,
}

impl Committer {
    /// Starts the thread.
    pub(crate) fn start(transactions: &Arc<Transactions>, interval: Duration) -> Self {
        let (wake, told) = channel();
        let transactions = Arc::downgrade(transactions);
        let spawned = std::thread::Builder::new().name("papilio-commit".to_owned()).spawn(move || {
            loop {
                let told = told.recv_timeout(interval);
                let Some(transactions) = Weak::upgrade(&transactions) else { return };
                let result = match told {
                    Ok(Wake::Clean) => clean_all(&transactions),
                    Err(RecvTimeoutError::Timeout) => transactions.commit(),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if let Err(error) = result {
                    // Latched: who changes something next is told.
                    tracing::error!("in the background: {error}");
                    return;
                }
            }
        });
        if let Err(error) = spawned {
            tracing::warn!("nothing is committed in the background: {error}");
        }
        Self { wake }
    }

    /// Asks for deleted subvolumes to be cleaned up.
    pub(crate) fn clean(&self) {
        // The thread may have ended after a failure, which whoever changes something is told of.
        let _ = self.wake.send(Wake::Clean);
    }
}

fn clean_all(transactions: &Arc<Transactions>) -> crate::Result<()> {
    while clean_step(transactions)? {}
    Ok(())
}

//! The thread of a mount that follows a writer (`follow`).
//!
//! Owns [`Follower`]. Twice in the time of the option it looks for a new flush, by one request. If
//! there is one, the server shows the new state ([`Server::follow`]), and the kernel drops what it
//! has cached. Names have no such notice. The kernel asks for them again after a quarter of the
//! time ([`MountOptions::attr_timeout`](crate::MountOptions)).

use crate::assistant::{Assistant, Stale};
use crate::mount_point::MountError;
use crate::server::Server;
use papilio::device::{RemoteOptions, StoreWatch, is_store_url, object_stores};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The way to end the thread: dropping it.
#[derive(Debug)]
pub(crate) struct Follower {
    _end: Sender<()>,
}

impl Follower {
    /// Starts the thread, which looks at the device of `source`.
    ///
    /// # Errors
    /// A source that is no device in a store, or a checkpoint; the thread cannot be started.
    pub(crate) fn start(
        server: Arc<Server>,
        assistant: Assistant,
        source: &Path,
        period: Duration,
    ) -> Result<(Self, JoinHandle<()>), MountError> {
        let refuse = |reason: String| MountError::Follow { path: source.to_path_buf(), reason };
        let url = source.to_str().filter(|_| is_store_url(source));
        let url = url.ok_or_else(|| refuse("only devices at URLs with slatedb+ have a writer".to_owned()))?;
        let watch = object_stores().and_then(|stores| stores.watch(url, &RemoteOptions::default()));
        let watch = watch.map_err(|error| refuse(error.to_string()))?;
        let (end, ended) = channel();
        let follow = move || follow(&server, &assistant, watch, period / 2, &ended);
        let thread = std::thread::Builder::new().name("papilio-follow".to_owned()).spawn(follow);
        Ok((Self { _end: end }, thread.map_err(MountError::Thread)?))
    }
}

fn follow(
    server: &Server,
    assistant: &Assistant,
    mut watch: Box<dyn StoreWatch>,
    pause: Duration,
    ended: &Receiver<()>,
) {
    // A change that could not be shown yet.
    let mut is_pending = false;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        match watch.has_changed() {
            Ok(changed) => is_pending |= changed,
            Err(error) => tracing::warn!("looking for changes of the writer: {error}"),
        }
        if !is_pending {
            continue;
        }
        match server.follow() {
            Ok(stale) => {
                is_pending = false;
                assistant.forget_later(stale.into_iter().map(|node| Stale::AllPages(node, 0)).collect());
            }
            Err(error) => tracing::warn!("the mount keeps its state: {error}"),
        }
    }
}

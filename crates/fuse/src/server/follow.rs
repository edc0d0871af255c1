//! Following the writer of a device in a store (`follow`).
//!
//! Owns [`Server::follow`]. Blocks below an open file system must not change. So a mount that
//! follows opens the file system anew when the writer has flushed, and serves the new one from then
//! on. The earlier one keeps its state of the device until the last request with it has ended. Each
//! state is that of one flush, which Btrfs could be mounted from after a crash.
//!
//! **Invariants**
//! - A state is served as a whole: no request sees parts of two.
//! - A file system that is open for writing is never replaced.
//!
//! **Locks**: that of [`super::switching`], held while the file system is opened.

use super::state::Server;
use crate::transport::NodeId;
use papilio::FileSystem;

impl Server {
    /// Opens the file system anew, and serves it. Returns the nodes of which the kernel may have
    /// data, which is then stale.
    ///
    /// # Errors
    /// The file system cannot be opened; the mount goes on with the one that it has.
    pub(crate) fn follow(&self) -> papilio::Result<Vec<NodeId>> {
        let _alone = self.switching.alone();
        if !self.mount.opened_read_only() {
            return Ok(Vec::new());
        }
        let fs = FileSystem::open_with(&self.mount.source, self.switching.options())?;
        self.room.look(&fs);
        self.served.follow(fs);
        self.nodes.renew(&self.served);
        let mut stale = self.nodes.select(|_| true);
        stale.push(NodeId::ROOT);
        Ok(stale)
    }
}

//! Operations on the whole file system that exclude one another.
//!
//! Owns [`ExclusiveOp`], [`Operation`], [`Running`] and [`BalanceControl`].
//!
//! Invariants:
//! - One operation that changes devices or block groups, or verifies them, runs at a time.
//! - No extent moves while a snapshot is sent: a send reads the extents that its trees name.
//! - No file of a read-only subvolume is deduplicated during a send, for the same reason.
//!
//! Lock: a leaf. Kernel counterpart: `btrfs_exclop_start` (`fs/btrfs/fs.c`).

use crate::errors::{Error, Result};
use papilio_locks::Mutex;

/// An operation on the whole file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Adding a device.
    AddDevice,
    /// A balance that runs or is paused.
    Balance,
    /// A defragmentation that keeps extents shared.
    Defragment,
    /// Emptying and removing a device.
    RemoveDevice,
    /// Copying a device onto another.
    ReplaceDevice,
    /// Changing the size of a device's file system.
    Resize,
    /// A scrub.
    Scrub,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::AddDevice => "the addition of a device",
            Self::Balance => "a balance",
            Self::Defragment => "a defragmentation",
            Self::RemoveDevice => "the removal of a device",
            Self::ReplaceDevice => "the replacement of a device",
            Self::Resize => "a resize",
            Self::Scrub => "a scrub",
        }
    }

    /// Whether it moves extents.
    fn moves(self) -> bool {
        matches!(self, Self::Balance | Self::Defragment | Self::RemoveDevice | Self::Resize)
    }
}

/// How a balance, or the replacement of a device, goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceControl {
    /// With the next part.
    Continue,
    /// It stops, and can be resumed, here or by a mount of the kernel.
    Pause,
    /// It ends.
    Cancel,
}

/// True goes on, false cancels.
impl From<bool> for BalanceControl {
    fn from(goes_on: bool) -> Self {
        if goes_on { Self::Continue } else { Self::Cancel }
    }
}

#[derive(Debug, Default)]
struct ExclusiveState {
    operation: Option<Operation>,
    sends: usize,
    /// Deduplications of files in read-only subvolumes.
    dedupes: usize,
}

/// The operation that runs, and the number of sends.
#[derive(Debug, Default)]
pub struct ExclusiveOp(Mutex<ExclusiveState>);

/// Work that excludes other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Operation,
    Send,
    Dedupe,
}

/// An operation, a send or a deduplication that runs until this is dropped.
#[derive(Debug)]
pub struct Running<'a> {
    of: &'a ExclusiveOp,
    work: Work,
}

impl ExclusiveOp {
    /// Begins an operation.
    ///
    /// # Errors
    /// [`Error::Busy`] while another one runs, or a send if this one moves extents.
    pub fn begin(&self, operation: Operation) -> Result<Running<'_>> {
        let mut state = self.0.lock();
        if let Some(other) = state.operation {
            return Err(Error::Busy { running: other.name() });
        }
        if operation.moves() && state.sends > 0 {
            return Err(Error::Busy { running: "a send" });
        }
        state.operation = Some(operation);
        Ok(Running { of: self, work: Work::Operation })
    }

    /// Begins a send.
    ///
    /// # Errors
    /// [`Error::Busy`] while an operation moves extents, or a file of a read-only subvolume is
    /// deduplicated.
    pub fn begin_send(&self) -> Result<Running<'_>> {
        let mut state = self.0.lock();
        if let Some(mover) = state.operation.filter(|operation| operation.moves()) {
            return Err(Error::Busy { running: mover.name() });
        }
        if state.dedupes > 0 {
            return Err(Error::Busy { running: "a deduplication" });
        }
        state.sends += 1;
        Ok(Running { of: self, work: Work::Send })
    }

    /// Begins to share data with a file of a read-only subvolume, as `btrfs_extent_same` does.
    ///
    /// # Errors
    /// [`Error::Busy`] during a send.
    pub fn begin_dedupe(&self) -> Result<Running<'_>> {
        let mut state = self.0.lock();
        if state.sends > 0 {
            return Err(Error::Busy { running: "a send" });
        }
        state.dedupes += 1;
        Ok(Running { of: self, work: Work::Dedupe })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.of.0.lock();
        match self.work {
            Work::Send => state.sends -= 1,
            Work::Dedupe => state.dedupes -= 1,
            Work::Operation => state.operation = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_exclude_one_another() {
        let exclusive = ExclusiveOp::default();
        let running = exclusive.begin(Operation::Scrub).unwrap();
        let refused = exclusive.begin(Operation::Balance).unwrap_err();
        assert_eq!(refused.to_string(), "a scrub is running on the file system");
        let sends = [exclusive.begin_send().unwrap(), exclusive.begin_send().unwrap()];
        drop(running);
        assert!(matches!(exclusive.begin(Operation::Resize), Err(Error::Busy { running: "a send" })));
        drop(exclusive.begin(Operation::AddDevice).unwrap());
        drop(sends);
        let running = exclusive.begin(Operation::Balance).unwrap();
        assert!(exclusive.begin_send().is_err());
        drop(running);
        drop(exclusive.begin_send().unwrap());
        let dedupes = [exclusive.begin_dedupe().unwrap(), exclusive.begin_dedupe().unwrap()];
        assert!(matches!(exclusive.begin_send(), Err(Error::Busy { running: "a deduplication" })));
        drop(dedupes);
        let send = exclusive.begin_send().unwrap();
        assert!(matches!(exclusive.begin_dedupe(), Err(Error::Busy { running: "a send" })));
        drop(send);
        drop(exclusive.begin_dedupe().unwrap());
    }
}

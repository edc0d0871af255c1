//! Device replacement: its state and progress.
//!
//! Owns [`DevReplaceItem`]. Sources: `struct btrfs_dev_replace_item`
//! (`include/uapi/linux/btrfs_tree.h`), `btrfs_init_dev_replace` (`fs/btrfs/dev-replace.c`).

use crate::error::Corrupt;
use crate::key::Key;
use crate::objectid;
use crate::parse::disk_struct;
use crate::units::DeviceId;

disk_struct! {
    /// The last or current replacement, under key (DEV_REPLACE, DEV_REPLACE, 0) in the device tree.
    /// The target is device number 0.
    pub struct DevReplaceItem as DevReplaceItemDisk = 72 {
        /// The device being replaced.
        pub source: DeviceId,
        /// Start of the range being copied, as a byte offset on the source device.
        pub cursor_left: u64,
        /// End of that range.
        pub cursor_right: u64,
        /// 1 if the source may be read only where no other copy is good, else 0.
        pub avoid_source: u64,
        /// The number of a [`DevReplaceState`].
        pub state: u64,
        /// Seconds since 1970.
        pub time_started: u64,
        /// Seconds since 1970; 0 while the replacement runs.
        pub time_stopped: u64,
        /// Number of failed writes to the target.
        pub write_errors: u64,
        /// Number of reads that no copy could satisfy.
        pub uncorrectable_read_errors: u64,
    }
}

/// The state of a replacement (`BTRFS_IOCTL_DEV_REPLACE_STATE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DevReplaceState {
    NeverStarted = 0,
    Started = 1,
    Finished = 2,
    Canceled = 3,
    Suspended = 4,
}

impl TryFrom<u64> for DevReplaceState {
    type Error = Corrupt;

    fn try_from(state: u64) -> Result<Self, Corrupt> {
        Ok(match state {
            0 => Self::NeverStarted,
            1 => Self::Started,
            2 => Self::Finished,
            3 => Self::Canceled,
            4 => Self::Suspended,
            state => return Err(Corrupt::field("device replacement", "state", state, "not below 5")),
        })
    }
}

impl DevReplaceItem {
    /// Decodes the state.
    ///
    /// # Errors
    /// An unknown number.
    pub fn state(&self) -> Result<DevReplaceState, Corrupt> {
        DevReplaceState::try_from(self.state)
    }

    /// Returns whether the replacement is unfinished. If so, the target may hold writes that the
    /// source lacks, and belongs to the file system.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state(), Ok(DevReplaceState::Started | DevReplaceState::Suspended))
    }

    /// Checks the fields that a mount relies on, given the item's key.
    ///
    /// # Errors
    /// The first field that the format forbids.
    pub fn validate(&self, key: &Key) -> Result<(), Corrupt> {
        if (key.objectid, key.offset) != (objectid::DEV_REPLACE, 0) {
            let value = key.objectid | key.offset;
            return Err(Corrupt::field("device replacement", "key", value, "object id and offset must be 0"));
        }
        self.state().map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::assert_fault;
    use crate::key::ItemType;

    #[test]
    fn items_round_trip() {
        crate::parse::assert_round_trip::<DevReplaceItem>();
    }

    #[test]
    fn faults_are_detected() {
        let key = Key::new(0, ItemType::DEV_REPLACE, 0);
        let mut item = DevReplaceItem::parse(&[0; 72]).unwrap();
        for (state, under_way) in [(0, false), (1, true), (2, false), (3, false), (4, true)] {
            item.state = state;
            item.validate(&key).unwrap();
            assert_eq!(item.is_under_way(), under_way);
        }
        assert_fault(item.validate(&Key { offset: 1, ..key }), "must be 0");
        assert_fault(item.validate(&Key { objectid: 1, ..key }), "must be 0");
        item.state = 5;
        assert_fault(item.validate(&key), "not below 5");
    }
}

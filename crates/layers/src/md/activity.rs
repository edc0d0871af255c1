//! `Activity`: the marks that an array is being written.
//!
//! A writer raises the event count of all members and takes the mark of a clean array away, before
//! it writes data. When the array is closed, it raises the count again and sets the mark. A copy
//! of a member from before is out of date by its count.
//!
//! A write-intent bitmap has a count of its own. While the array is active that stays behind, so
//! that the kernel distrusts the bitmap after a crash. At the end both are equal.
//!
//! Kernel counterpart: `md_write_start`, `super_1_sync` and `super_90_sync` (drivers/md/md.c).

use super::assemble::Member;
use super::superblock::{LENGTH, checksum_0, checksum_1};
use crate::bytes::{le32, le64};
use papilio_device::PhysicalAddress;
use std::io;
use std::sync::{Mutex, PoisonError};

/// The magic number of a bitmap, "bitm".
const BITMAP_MAGIC: u32 = 0x6d74_6962;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Clean,
    Active,
    /// A write failed: the array stays marked as active.
    Failed,
}

#[derive(Debug, Default)]
pub(super) struct Activity(Mutex<State>);

impl Activity {
    /// Marks the array as active, unless it is.
    pub(super) fn begin(&self, members: &[Option<Member>]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Clean {
            mark(members, false)?;
            *state = State::Active;
        }
        Ok(())
    }

    /// Notes that a write failed.
    pub(super) fn fail(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = State::Failed;
    }

    /// Marks an active array as clean if no write failed.
    pub(super) fn end(&self, members: &[Option<Member>]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Active {
            *state = State::Failed;
            members.iter().flatten().try_for_each(|member| member.device.flush())?;
            mark(members, true)?;
            *state = State::Clean;
        }
        Ok(())
    }
}

/// Writes the superblocks of all members, and makes them durable.
fn mark(members: &[Option<Member>], is_clean: bool) -> io::Result<()> {
    for member in members.iter().flatten() {
        let place = PhysicalAddress(member.superblock.offset);
        let mut bytes = vec![0; LENGTH];
        member.device.read_at(&mut bytes, place)?;
        let events = match member.superblock.version {
            "0.90" => mark_0(&mut bytes, is_clean),
            _ => mark_1(&mut bytes, is_clean)?,
        };
        member.device.write_at(&bytes, place)?;
        if let Some(bitmap) = member.superblock.bitmap.filter(|_| is_clean) {
            let mut header = [0; 512];
            let place = PhysicalAddress(bitmap);
            member.device.read_at(&mut header, place)?;
            if le32(&header, 0) == BITMAP_MAGIC {
                header[24..32].copy_from_slice(&events.to_le_bytes());
                header[32..40].copy_from_slice(&events.to_le_bytes());
                member.device.write_at(&header, place)?;
            }
        }
    }
    members.iter().flatten().try_for_each(|member| member.device.flush())
}

fn mark_1(bytes: &mut [u8], is_clean: bool) -> io::Result<u64> {
    let events = le64(bytes, 200).wrapping_add(1);
    let resync = if is_clean { u64::MAX } else { 0 };
    bytes[200..208].copy_from_slice(&events.to_le_bytes());
    bytes[208..216].copy_from_slice(&resync.to_le_bytes());
    let sum =
        checksum_1(bytes).ok_or_else(|| io::Error::other("the superblock was changed by another program"))?;
    bytes[216..220].copy_from_slice(&sum.to_le_bytes());
    Ok(events)
}

fn mark_0(bytes: &mut [u8], is_clean: bool) -> u64 {
    let events = (u64::from(le32(bytes, 39 * 4)) | u64::from(le32(bytes, 40 * 4)) << 32).wrapping_add(1);
    let state = if is_clean { le32(bytes, 33 * 4) | 1 } else { le32(bytes, 33 * 4) & !1 };
    let mut set = |word: usize, value: u32| bytes[word * 4..][..4].copy_from_slice(&value.to_le_bytes());
    set(33, state);
    set(39, events as u32);
    set(40, (events >> 32) as u32);
    if is_clean {
        set(41, events as u32);
        set(42, (events >> 32) as u32);
    }
    set(43, if is_clean { u32::MAX } else { 0 });
    let sum = checksum_0(bytes);
    bytes[38 * 4..][..4].copy_from_slice(&sum.to_le_bytes());
    events
}

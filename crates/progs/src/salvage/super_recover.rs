//! Writing superblock copies from good ones.
//!
//! Owns [`plan`], [`SuperRecovery`] and [`SuperRecovery::write`].
//!
//! **Invariants**
//! - Only copies are written that the kernel would write: those before the end of the device.
//! - Each device's copies are made from one of its own, the newest good one.

use papilio_device::Device;
use papilio_engine::errors::{Error, Result};
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{Generation, LogicalAddress, Superblock};
use std::fmt;
use std::sync::Arc;

/// One copy of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyState {
    /// The path of the device.
    pub device: String,
    /// The copy, 0 to 2.
    pub copy: usize,
    /// Its generation, or what is wrong with it.
    pub state: Result<Generation, String>,
}

impl fmt::Display for CopyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: superblock copy {} at {}: ", self.device, self.copy, superblock_offset(self.copy))?;
        match &self.state {
            Ok(generation) => write!(f, "good, generation {generation}"),
            Err(fault) => f.write_str(fault),
        }
    }
}

/// A plan to overwrite superblock copies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SuperRecovery {
    /// All copies.
    pub copies: Vec<CopyState>,
    /// Indexes of the copies that will be written.
    pub bad: Vec<usize>,
    /// Device, copy, and the superblock to write.
    writes: Vec<(usize, usize, Superblock)>,
}

/// How superblocks are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockChange {
    /// Bad and outdated copies are written from the newest good one of the device.
    Recover,
    /// All copies are written from this one.
    Select(usize),
    /// The log of fsyncs is forgotten.
    ZeroLog,
}

/// Plans a change of superblocks.
///
/// # Errors
/// A device without a good copy, or without the copy that is to be used.
pub fn plan(devices: &[Arc<dyn Device>], change: SuperblockChange) -> Result<SuperRecovery> {
    let mut plan = SuperRecovery { copies: Vec::new(), bad: Vec::new(), writes: Vec::new() };
    for (number, device) in devices.iter().enumerate() {
        let first = plan.copies.len();
        let mut good: Vec<(usize, Superblock)> = Vec::new();
        for copy in 0..SUPERBLOCK_MIRRORS {
            let Some(read) = read(&**device, copy) else { continue };
            let state = read.as_ref().map(|found| found.raw.generation).map_err(String::clone);
            plan.copies.push(CopyState { device: device.name().to_owned(), copy, state });
            good.extend(read.ok().map(|found| (copy, found)));
        }
        let source = source(&**device, &good, change)?;
        for (index, state) in plan.copies.iter().enumerate().skip(first) {
            let limit = source.raw.dev_item.total_bytes;
            let place = superblock_offset(state.copy);
            // As the kernel: a copy that reaches the end of the device is not written.
            if place.0 + SUPERBLOCK_SIZE as u64 >= limit.max(1 << 20).min(device.size()) && state.copy > 0 {
                continue;
            }
            let known = good.iter().find(|(copy, _)| *copy == state.copy).map(|(_, found)| found);
            if known.is_none_or(|known| !same(known, &source)) {
                plan.bad.push(index);
                plan.writes.push((number, state.copy, source.clone()));
            }
        }
    }
    Ok(plan)
}

/// Returns the superblock that all copies of a device get.
fn source(device: &dyn Device, good: &[(usize, Superblock)], change: SuperblockChange) -> Result<Superblock> {
    let newest = good
        .iter()
        .map(|(_, found)| found)
        .reduce(|best, other| if other.raw.generation > best.raw.generation { other } else { best });
    let chosen = match change {
        SuperblockChange::Select(wanted) => {
            good.iter().find(|(copy, _)| *copy == wanted).map(|(_, found)| found)
        }
        _ => newest,
    };
    let Some(chosen) = chosen else {
        let device = device.name();
        return Err(Error::Invalid(match change {
            SuperblockChange::Select(copy) => format!("{device}: superblock copy {copy} is not good"),
            _ => format!("{device}: no superblock copy is good; --scan reads what the devices still hold"),
        }));
    };
    let mut chosen = chosen.clone();
    if change == SuperblockChange::ZeroLog {
        (chosen.raw.log_root, chosen.raw.log_root_level) = (LogicalAddress(0), 0);
    }
    Ok(chosen)
}

/// Returns whether two copies differ only in what is each copy's own.
fn same(one: &Superblock, other: &Superblock) -> bool {
    let place = superblock_offset(0);
    one.to_bytes(place) == other.to_bytes(place)
}

fn read(device: &dyn Device, copy: usize) -> Option<Result<Superblock, String>> {
    let place = superblock_offset(copy);
    if place.0 + SUPERBLOCK_SIZE as u64 > device.size() {
        return None;
    }
    let mut bytes = [0; SUPERBLOCK_SIZE];
    if let Err(error) = device.read_at(&mut bytes, place) {
        return Some(Err(error.to_string()));
    }
    Some(Superblock::parse(&bytes, place).map_err(|reason| reason.to_string()))
}

impl SuperRecovery {
    /// Writes the copies, the first one of each device last, and flushes.
    ///
    /// # Errors
    /// [`Error::SuperblockWrite`].
    #[doc(hidden)]
    pub fn write(&self, devices: &[Arc<dyn Device>]) -> Result<()> {
        let mut writes: Vec<_> = self.writes.iter().collect();
        writes.sort_by_key(|(_, copy, _)| std::cmp::Reverse(*copy));
        for (number, copy, superblock) in writes {
            let device = &devices[*number];
            let place = superblock_offset(*copy);
            let written = device.write_at(&superblock.to_bytes(place), place).and_then(|()| device.flush());
            written.map_err(|source| {
                let device = device.name().to_owned();
                Error::SuperblockWrite { device, copy: *copy, source }
            })?;
        }
        Ok(())
    }

    /// Returns the newest good superblock of each device, before the change.
    #[doc(hidden)]
    pub fn sources(&self) -> impl Iterator<Item = (usize, &Superblock)> {
        self.writes.iter().map(|(device, _, superblock)| (*device, superblock))
    }
}

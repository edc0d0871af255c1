//! `LvmDevice`: an open logical volume.
//!
//! Linear and striped segments are read and written, mirrors are only read: a write would have to
//! keep the mirror's log. Hidden volumes that are parts of others are devices of their own.
//!
//! Kernel counterparts: drivers/md/dm-linear.c, dm-stripe.c, dm-raid1.c, dm-raid.c.

use super::group::{Kind, Leg, LogicalVolume, VolumeGroup};
use super::label::FORMAT;
use crate::bytes::{le32, le64};
use crate::error::{LayerError, Result};
use papilio_device::{Access, Device, PhysicalAddress, check_read, check_write};
use std::io;
use std::sync::Arc;

/// The deepest nesting of volumes.
const DEEPEST: usize = 8;
/// The most parts of a volume.
const MOST_PARTS: usize = 10_000;
/// The magic number of the metadata of a raid leg.
const LEG_MAGIC: u32 = 0x6452_6d44;

#[derive(Debug)]
struct Piece {
    start: u64,
    length: u64,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Striped { stripe: u64, legs: Vec<(Arc<dyn Device>, u64)> },
    Mirror(Vec<(Arc<dyn Device>, u64)>),
}

/// A logical volume.
#[derive(Debug)]
pub struct LvmDevice {
    name: String,
    size: u64,
    access: Access,
    pieces: Vec<Piece>,
}

/// The physical volumes that are present, by UUID.
type Present = Vec<(String, Arc<dyn Device>)>;

/// Opens a logical volume of a group. Returns it, and why it can only be read, if it can.
///
/// # Errors
/// No such volume; a physical volume that is missing; a type that is not supported.
pub fn open_volume(
    group: &VolumeGroup,
    volume: &str,
    present: &Present,
    name: String,
) -> Result<(LvmDevice, Option<String>)> {
    let mut opener = Opener { group, present, read_only: None, opened: 0 };
    let device = opener.open(volume, name, 0)?;
    Ok((device, opener.read_only))
}

struct Opener<'a> {
    group: &'a VolumeGroup,
    present: &'a Present,
    read_only: Option<String>,
    /// Volumes that were opened, parts included.
    opened: usize,
}

impl Opener<'_> {
    fn label(&self, volume: &str) -> String {
        format!("{}/{volume}", self.group.name)
    }

    fn open(&mut self, volume: &str, name: String, depth: usize) -> Result<LvmDevice> {
        let label = self.label(volume);
        let group = self.group;
        let found = group.volumes.iter().find(|own| own.name == volume);
        let found: &LogicalVolume = found
            .ok_or_else(|| LayerError::NotFound(format!("{} has no volume {volume:?}", group.label())))?;
        self.opened += 1;
        if depth > DEEPEST || self.opened > MOST_PARTS {
            return Err(LayerError::Circle { device: name, layer: format!("volume {label}") });
        }
        let mut pieces = Vec::new();
        for segment in &found.segments {
            let target = match &segment.kind {
                Kind::Striped { stripe, legs } => {
                    let length = segment.length / legs.len() as u64;
                    let legs = legs.iter().map(|leg| self.leg(leg, length, &label, depth));
                    Target::Striped { stripe: *stripe, legs: legs.collect::<Result<_>>()? }
                }
                Kind::Mirror { legs } => {
                    self.read_only = Some("it is a mirror".to_owned());
                    Target::Mirror(self.mirror(legs, segment.length, &label, depth)?)
                }
                Kind::Raid1 { legs } => {
                    self.read_only = Some("it is a mirror (raid1)".to_owned());
                    let good = self.good_legs(legs, &label, depth)?;
                    Target::Mirror(self.mirror(&good, segment.length, &label, depth)?)
                }
                Kind::Other(kind) => {
                    let feature = format!("a segment of the type {kind:?}");
                    return Err(LayerError::unsupported(&format!("volume {label}"), FORMAT, feature));
                }
            };
            pieces.push(Piece { start: segment.start, length: segment.length, target });
        }
        if !found.is_writable {
            self.read_only = Some("its metadata says so".to_owned());
        }
        let legs = pieces.iter().flat_map(|piece| match &piece.target {
            Target::Striped { legs, .. } | Target::Mirror(legs) => legs,
        });
        let is_writable = |(device, _): &(Arc<dyn Device>, u64)| device.access() == Access::ReadWrite;
        let can_write = self.read_only.is_none() && legs.clone().all(is_writable);
        let access = if can_write { Access::ReadWrite } else { Access::ReadOnly };
        Ok(LvmDevice { name, size: found.size, access, pieces })
    }

    /// Opens the legs that are present; one is enough.
    fn mirror(
        &mut self,
        legs: &[Leg],
        length: u64,
        label: &str,
        depth: usize,
    ) -> Result<Vec<(Arc<dyn Device>, u64)>> {
        let (mut opened, mut fault) = (Vec::new(), None);
        for leg in legs {
            match self.leg(leg, length, label, depth) {
                Ok(leg) => opened.push(leg),
                Err(error) => fault = Some(error),
            }
        }
        match fault {
            Some(error) if opened.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!("volume {label}: a mirror is left out: {error}");
                Ok(opened)
            }
            None => Ok(opened),
        }
    }

    /// Returns the legs that have the newest content.
    fn good_legs(&mut self, legs: &[(String, Leg)], label: &str, depth: usize) -> Result<Vec<Leg>> {
        let mut known = Vec::new();
        for (place, (meta, leg)) in legs.iter().enumerate() {
            let Ok(device) = self.open(meta, meta.clone(), depth + 1) else { continue };
            let mut bytes = [0; 512];
            if device.read_at(&mut bytes, PhysicalAddress(0)).is_ok() && le32(&bytes, 0) == LEG_MAGIC {
                known.push((place, leg, le64(&bytes, 16), le64(&bytes, 24), le64(&bytes, 32)));
            }
        }
        let newest = known.iter().max_by_key(|(_, _, events, ..)| *events).copied();
        let Some((.., events, failed, _)) = newest else {
            let reason = format!("volume {label}: no leg has metadata");
            return Err(LayerError::damaged(&self.group.label(), FORMAT, reason));
        };
        let is_good = |(place, _, own, _, recovered): &&(usize, &Leg, u64, u64, u64)| {
            let has_failed =
                u32::try_from(*place).ok().and_then(|place| failed.checked_shr(place)).unwrap_or(0) & 1;
            *own == events && *recovered == u64::MAX && has_failed == 0
        };
        Ok(known.iter().filter(is_good).map(|(_, leg, ..)| (*leg).clone()).collect())
    }

    fn leg(&mut self, leg: &Leg, length: u64, label: &str, depth: usize) -> Result<(Arc<dyn Device>, u64)> {
        let outside = || {
            let reason = format!("volume {label} reaches past the end of {}", leg.name);
            LayerError::damaged(&self.group.label(), FORMAT, reason)
        };
        let end = leg.offset.checked_add(length).ok_or_else(outside)?;
        let Some(physical) = self.group.physical.iter().find(|physical| physical.name == leg.name) else {
            if !self.group.volumes.iter().any(|volume| volume.name == leg.name) {
                return Err(outside());
            }
            let below = self.open(&leg.name, self.label(&leg.name), depth + 1)?;
            let fault = LayerError::damaged(
                &self.group.label(),
                FORMAT,
                format!("volume {label} reaches past the end of {}", leg.name),
            );
            return if end <= below.size { Ok((Arc::new(below), leg.offset)) } else { Err(fault) };
        };
        let found = self.present.iter().find(|(uuid, _)| *uuid == physical.uuid);
        let Some((_, device)) = found else {
            return Err(LayerError::MembersMissing {
                array: format!("volume {label}"),
                present: self.present.len(),
                wanted: self.group.physical.len(),
                left_out: format!(": physical volume {} ({}) is missing", physical.name, physical.uuid),
            });
        };
        let start = physical.start.checked_add(leg.offset).filter(|_| end <= physical.length);
        let start = start.filter(|start| start.checked_add(length).is_some_and(|end| end <= device.size()));
        Ok((Arc::clone(device), start.ok_or_else(outside)?))
    }
}

impl LvmDevice {
    /// Calls `run` with the pieces of a range: the legs with the place of each, and the bytes.
    fn each(
        &self,
        offset: u64,
        length: usize,
        mut run: impl FnMut(&[(Arc<dyn Device>, u64)], u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let number = self.pieces.partition_point(|piece| piece.start <= at).saturating_sub(1);
            let piece = &self.pieces[number];
            let inside = at - piece.start;
            let (legs, add, rest) = match &piece.target {
                Target::Mirror(legs) => (&legs[..], inside, piece.length - inside),
                Target::Striped { stripe, legs } => {
                    let (row, in_stripe) = (inside / stripe, inside % stripe);
                    let count = legs.len() as u64;
                    let leg = (row % count) as usize;
                    (&legs[leg..=leg], row / count * stripe + in_stripe, stripe - in_stripe)
                }
            };
            let count = (length - done).min(usize::try_from(rest).unwrap_or(usize::MAX));
            run(legs, add, done..done + count)?;
            done += count;
        }
        Ok(())
    }
}

impl Device for LvmDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        self.access
    }

    fn alignment(&self) -> usize {
        let legs = self.pieces.iter().flat_map(|piece| match &piece.target {
            Target::Striped { legs, .. } | Target::Mirror(legs) => legs,
        });
        legs.map(|(device, _)| device.alignment()).max().unwrap_or(1)
    }

    fn waits(&self) -> bool {
        // Requests are split by the thread that waits for them.
        false
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size, offset, buffer.len())?;
        self.each(offset.get(), buffer.len(), |legs, add, range| {
            let mut fault = None;
            for (device, start) in legs {
                match device.read_at(&mut buffer[range.clone()], PhysicalAddress(start + add)) {
                    Ok(()) => return Ok(()),
                    Err(error) => fault = Some(error),
                }
            }
            Err(fault.unwrap_or_else(|| io::Error::other("no mirror")))
        })
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access, self.size, offset, buffer.len() as u64)?;
        self.each(offset.get(), buffer.len(), |legs, add, range| {
            legs.iter().try_for_each(|(device, start)| {
                device.write_at(&buffer[range.clone()], PhysicalAddress(start + add))
            })
        })
    }

    fn flush(&self) -> io::Result<()> {
        let legs = self.pieces.iter().flat_map(|piece| match &piece.target {
            Target::Striped { legs, .. } | Target::Mirror(legs) => legs,
        });
        let mut flushed: Vec<*const ()> = Vec::new();
        for (device, _) in legs {
            let identity = Arc::as_ptr(device).cast();
            if !flushed.contains(&identity) {
                device.flush()?;
                flushed.push(identity);
            }
        }
        Ok(())
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access, self.size, offset, length)?;
        self.each(offset.get(), usize::try_from(length).unwrap_or(usize::MAX), |legs, add, range| {
            legs.iter().try_for_each(|(device, start)| {
                device.discard(PhysicalAddress(start + add), range.len() as u64)
            })
        })
    }
}

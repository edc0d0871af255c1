//! `MdDevice`: an open array.
//!
//! **Invariants**
//! - An array that is degraded, dirty or unusual is never written: see `assemble`.
//! - The first write marks the array as active on all members, and the last holder marks it as
//!   clean if no write failed. A crash in between makes the kernel compare copies and parity.
//! - Data and parity of a row are changed under the row's lock.
//!
//! Locks: a row's lock is held while its members are read and written; `activity` is a leaf.
//!
//! Kernel counterpart: drivers/md/md.c, raid0.c, raid1.c, raid5.c, raid10.c.

use super::activity::Activity;
use super::assemble::{Assembled, Member};
use super::geometry::{Geometry, ParityLayout, Place, Placement, Row};
use super::parity;
use super::superblock::Reshape;
use papilio_device::{Access, Device, PhysicalAddress, check_read, check_write};
use std::io;
use std::sync::{Mutex, PoisonError};

/// Locks for rows: two rows share one if their numbers differ by a multiple of this.
const ROW_LOCKS: usize = 64;

/// An array of md.
#[derive(Debug)]
pub struct MdDevice {
    name: String,
    geometry: Geometry,
    /// The shape of the bytes on one side of a border, in an array whose reshape is not finished.
    new_shape: Option<(Geometry, Reshape)>,
    members: Vec<Option<Member>>,
    access: Access,
    activity: Activity,
    rows: Vec<Mutex<()>>,
}

impl MdDevice {
    /// Opens an assembled array. It is read-only if the array or one of its members is.
    pub fn new(array: Assembled, name: String) -> Self {
        let is_writable = |member: &Member| member.device.access() == Access::ReadWrite;
        let can_write = array.read_only.is_none() && array.members.iter().flatten().all(is_writable);
        Self {
            name,
            geometry: array.geometry,
            new_shape: array.new_geometry.zip(array.superblock.reshape),
            members: array.members,
            access: if can_write { Access::ReadWrite } else { Access::ReadOnly },
            activity: Activity::default(),
            rows: (0..ROW_LOCKS).map(|_| Mutex::new(())).collect(),
        }
    }

    fn member(&self, at: usize) -> io::Result<&Member> {
        let missing = || io::Error::other(format!("{}: member {at} is missing", self.name));
        self.members.get(at).and_then(Option::as_ref).ok_or_else(missing)
    }

    fn read_place(&self, buffer: &mut [u8], place: Place, is_new: bool) -> io::Result<()> {
        let member = self.member(place.member)?;
        let data = match member.superblock.reshape {
            Some(reshape) if is_new => reshape.data_offset,
            _ => member.superblock.data_offset,
        };
        let start = data + place.offset;
        let end = start + buffer.len() as u64;
        let is_bad = |(bad, length): &(u64, u64)| *bad < end && bad.saturating_add(*length) > start;
        if member.superblock.bad.iter().any(is_bad) {
            let text = format!("{}: bad blocks in the range from {start} on", member.device.name());
            return Err(io::Error::other(text));
        }
        member.device.read_at(buffer, PhysicalAddress(start))
    }

    fn write_place(&self, buffer: &[u8], place: Place) -> io::Result<()> {
        let member = self.member(place.member)?;
        member.device.write_at(buffer, PhysicalAddress(member.superblock.data_offset + place.offset))
    }

    /// Returns the places with copies of a byte, and the bytes that follow in one piece.
    fn copies(&self, offset: u64) -> (Vec<Place>, u64) {
        match self.geometry.placement {
            Placement::Mirror => {
                let places = (0..self.members.len()).map(|member| Place { member, offset }).collect();
                (places, self.geometry.size - offset)
            }
            _ => self.geometry.copies(offset),
        }
    }

    /// Reads a piece from the first copy that can be read.
    fn read_copy(&self, buffer: &mut [u8], copies: &[Place]) -> io::Result<()> {
        let mut fault = None;
        for copy in copies {
            match self.read_place(buffer, *copy, false) {
                Ok(()) => return Ok(()),
                Err(error) => fault = Some(error),
            }
        }
        Err(fault.unwrap_or_else(|| io::Error::other("no copy")))
    }

    /// Reads the blocks of a row at one offset of all members. Those that cannot be read are
    /// missing.
    fn read_row(&self, members: usize, offset: u64, length: usize, is_new: bool) -> Vec<Option<Vec<u8>>> {
        let read = |member: usize| {
            let mut block = vec![0; length];
            self.read_place(&mut block, Place { member, offset }, is_new).ok().map(|()| block)
        };
        (0..members).map(read).collect()
    }

    /// Rebuilds the block of one member from the others of its row.
    fn rebuild(&self, buffer: &mut [u8], row: Row, place: Place, is_new: bool) -> io::Result<()> {
        let blocks = self.read_row(row.members(), place.offset, buffer.len(), is_new);
        let lost: Vec<usize> = (0..blocks.len())
            .filter(|member| row.is_data(*member) && (blocks[*member].is_none() || *member == place.member))
            .collect();
        let take = |at: usize| blocks[at].clone();
        let (p, q) = (take(row.p), row.q.and_then(take));
        // The sums less the part of all data that is there: the rest is the part of lost data.
        let rest = |mut sum: Vec<u8>, is_q: bool| {
            for (member, block) in blocks.iter().enumerate() {
                let Some(block) = block.as_ref().filter(|_| row.is_data(member) && !lost.contains(&member))
                else {
                    continue;
                };
                match is_q {
                    true => parity::add_multiple(&mut sum, block, row.exponent(member)),
                    false => parity::add(&mut sum, block),
                }
            }
            sum
        };
        let found = match (&lost[..], p, q) {
            ([_], Some(p), _) => rest(p, false),
            ([one], None, Some(q)) => {
                let mut found = rest(q, true);
                parity::from_q(&mut found, row.exponent(*one));
                found
            }
            ([a, b], Some(p), Some(q)) => {
                let (mut p, mut q) = (rest(p, false), rest(q, true));
                parity::two(&mut p, &mut q, row.exponent(*a), row.exponent(*b));
                if *a == place.member { p } else { q }
            }
            _ => {
                let text = format!("{}: too few members can be read at {}", self.name, place.offset);
                return Err(io::Error::other(text));
            }
        };
        buffer.copy_from_slice(&found);
        Ok(())
    }

    /// Returns the shape of a byte, whether it is that of a reshape, and the bytes that follow in
    /// it.
    fn shape_at(&self, offset: u64) -> (&Geometry, bool, u64) {
        let Some((geometry, reshape)) = &self.new_shape else { return (&self.geometry, false, u64::MAX) };
        let is_before = offset < reshape.position;
        let rest = if is_before { reshape.position - offset } else { u64::MAX };
        match is_before != reshape.is_backwards {
            true => (geometry, true, rest),
            false => (&self.geometry, false, rest),
        }
    }

    fn read_parity(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (geometry, is_new, rest) = self.shape_at(offset);
        let Placement::Parity(layout) = &geometry.placement else {
            return Err(io::Error::other(format!("{}: no parity at {offset}", self.name)));
        };
        let (row, place) = geometry.parity(layout, offset);
        let rest = rest.min(geometry.chunk - offset % geometry.chunk);
        let length = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..length];
        if self.read_place(buffer, place, is_new).is_err() {
            self.rebuild(buffer, row, place, is_new)?;
        }
        Ok(length)
    }

    /// Changes a piece of one chunk and the parity of its row.
    fn write_parity(&self, layout: &ParityLayout, buffer: &[u8], offset: u64) -> io::Result<usize> {
        let (row, place) = self.geometry.parity(layout, offset);
        let chunk = self.geometry.chunk;
        let length = buffer.len().min((chunk - offset % chunk) as usize);
        let buffer = &buffer[..length];
        let lock = &self.rows[(place.offset / chunk) as usize % ROW_LOCKS];
        let _row = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut change = vec![0; length];
        self.read_place(&mut change, place, false)?;
        parity::add(&mut change, buffer);
        let at = |member| Place { member, offset: place.offset };
        let mut p = vec![0; length];
        self.read_place(&mut p, at(row.p), false)?;
        parity::add(&mut p, &change);
        let q = match row.q {
            None => None,
            Some(member) => {
                let mut q = vec![0; length];
                self.read_place(&mut q, at(member), false)?;
                parity::add_multiple(&mut q, &change, row.exponent(place.member));
                Some((member, q))
            }
        };
        self.write_place(buffer, place)?;
        self.write_place(&p, at(row.p))?;
        if let Some((member, q)) = q {
            self.write_place(&q, at(member))?;
        }
        Ok(length)
    }

    fn write_pieces(&self, mut buffer: &[u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            let length = match &self.geometry.placement {
                Placement::Parity(layout) => self.write_parity(layout, buffer, offset)?,
                _ => {
                    let (copies, rest) = self.copies(offset);
                    let length = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
                    for copy in copies {
                        self.write_place(&buffer[..length], copy)?;
                    }
                    length
                }
            };
            buffer = &buffer[length..];
            offset += length as u64;
        }
        Ok(())
    }
}

impl Device for MdDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.geometry.size
    }

    fn access(&self) -> Access {
        self.access
    }

    fn alignment(&self) -> usize {
        self.members.iter().flatten().map(|member| member.device.alignment()).max().unwrap_or(1)
    }

    fn waits(&self) -> bool {
        // Requests are split by the thread that waits for them.
        false
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.geometry.size, offset, buffer.len())?;
        let (mut buffer, mut offset) = (buffer, offset.get());
        while !buffer.is_empty() {
            let length = match &self.geometry.placement {
                Placement::Parity(_) => self.read_parity(buffer, offset)?,
                _ => {
                    let (copies, rest) = self.copies(offset);
                    let length = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
                    self.read_copy(&mut buffer[..length], &copies)?;
                    length
                }
            };
            buffer = &mut buffer[length..];
            offset += length as u64;
        }
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access, self.geometry.size, offset, buffer.len() as u64)?;
        if buffer.is_empty() {
            return Ok(());
        }
        self.activity.begin(&self.members)?;
        let written = self.write_pieces(buffer, offset.get());
        if written.is_err() {
            self.activity.fail();
        }
        written
    }

    fn flush(&self) -> io::Result<()> {
        let flushed = self.members.iter().flatten().try_for_each(|member| member.device.flush());
        if flushed.is_err() {
            self.activity.fail();
        }
        flushed
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access, self.geometry.size, offset, length)?;
        // Members may return different bytes for what was discarded.
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

impl Drop for MdDevice {
    fn drop(&mut self) {
        if let Err(error) = self.activity.end(&self.members) {
            let name = &self.name;
            tracing::warn!("{name}: cannot mark the array as clean, the kernel will resync it: {error}");
        }
    }
}

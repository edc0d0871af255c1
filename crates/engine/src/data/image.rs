//! The whole sectors that a write consists of.
//!
//! Owns [`Image`]. Locks: none.

use crate::data::data_context::DataContext;
use crate::data::file_edit::FileEdit;
use crate::errors::Result;
use std::borrow::Cow;

/// Writes with partly filled sectors up to this size are copied together, so that the device gets
/// one request.
const GATHERED: usize = 64 << 10;

/// Whole sectors of a file in up to three parts: aligned bytes stay in the caller's buffer.
pub(crate) struct Image<'a> {
    /// The file offset of the first byte.
    start: u64,
    end: u64,
    parts: Vec<Cow<'a, [u8]>>,
}

impl<'a> Image<'a> {
    /// Returns the sectors that `data` is in once it is written at `offset`. The rest of the first
    /// and of the last sector is read from the file.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub(crate) fn over(
        context: &DataContext<'_>,
        file: &FileEdit<'_>,
        offset: u64,
        data: &'a [u8],
    ) -> Result<Self> {
        let end = offset + data.len() as u64;
        let (start, last) = (context.round_down(offset), context.round_up(end));
        let sector = context.sector() as usize;
        let (head, tail) = ((offset - start) as usize, (last - end) as usize);
        let size = file.item.size;
        let mut image = Self { start, end: last, parts: Vec::with_capacity(3) };
        if head == 0 && tail == 0 {
            image.parts.push(Cow::Borrowed(data));
            return Ok(image);
        }
        if data.len() <= GATHERED {
            let mut bytes = vec![0; (last - start) as usize];
            if head > 0 {
                context.read_as(file, size, start, &mut bytes[..sector])?;
            }
            if tail > 0 && end < size && (head == 0 || bytes.len() > sector) {
                let at = bytes.len() - sector;
                context.read_as(file, size, last - sector as u64, &mut bytes[at..])?;
            }
            bytes[head..][..data.len()].copy_from_slice(data);
            image.parts.push(Cow::Owned(bytes));
            return Ok(image);
        }
        let (first, rest) = data.split_at(if head == 0 { 0 } else { sector - head });
        let (middle, rest) = rest.split_at(rest.len() / sector * sector);
        if head > 0 {
            let mut bytes = vec![0; sector];
            context.read_as(file, size, start, &mut bytes)?;
            bytes[head..].copy_from_slice(first);
            image.parts.push(Cow::Owned(bytes));
        }
        image.parts.push(Cow::Borrowed(middle));
        if tail > 0 {
            let mut bytes = vec![0; sector];
            if end < size {
                context.read_as(file, size, last - sector as u64, &mut bytes)?;
            }
            bytes[..rest.len()].copy_from_slice(rest);
            image.parts.push(Cow::Owned(bytes));
        }
        Ok(image)
    }

    /// Returns an image of `bytes`, whole sectors, that starts at file offset `start`.
    pub(crate) fn of_sectors(start: u64, bytes: Vec<u8>) -> Self {
        Self { start, end: start + bytes.len() as u64, parts: vec![Cow::Owned(bytes)] }
    }

    /// As [`Image::of_sectors`], of several buffers in a row.
    pub(crate) fn of_pages(start: u64, pages: &[&'a [u8]]) -> Self {
        let length: u64 = pages.iter().map(|page| page.len() as u64).sum();
        Self { start, end: start + length, parts: pages.iter().map(|page| Cow::Borrowed(*page)).collect() }
    }

    /// Returns the file offset of the first byte.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Returns the file offset after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the bytes between the file offsets `from` and `to`, as one or more slices.
    pub(super) fn slices(&self, from: u64, to: u64) -> impl Iterator<Item = &[u8]> {
        let mut at = self.start;
        self.parts.iter().filter_map(move |part| {
            let start = at;
            at += part.len() as u64;
            let (from, to) = (from.max(start), to.min(at));
            (from < to).then(|| &part[(from - start) as usize..(to - start) as usize])
        })
    }

    /// Returns the bytes between the file offsets `from` and `to` as one slice. Copies them to
    /// `scratch` where they are in several parts.
    pub(super) fn contiguous<'s>(&'s self, from: u64, to: u64, scratch: &'s mut Vec<u8>) -> &'s [u8] {
        let mut slices = self.slices(from, to);
        let first = slices.next().unwrap_or(&[]);
        if first.len() as u64 == to - from {
            return first;
        }
        scratch.clear();
        scratch.extend_from_slice(first);
        slices.for_each(|slice| scratch.extend_from_slice(slice));
        scratch
    }
}

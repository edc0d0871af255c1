//! A file's bytes, with holes: [`Content`].
//!
//! **Invariant:** bytes behind the end are zero, so a file that grows again shows zeros there.
//!
//! Clones share pages, so a model per sync costs only pointers.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes per page.
const PAGE: u64 = 4096;

type Page = [u8; PAGE as usize];

/// The bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes `data` at `offset`; empty data changes nothing.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % PAGE) as usize;
            let (now, later) = rest.split_at(rest.len().min(PAGE as usize - within));
            let page = self.pages.entry(at / PAGE).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[within..within + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            rest = later;
        }
        if !data.is_empty() {
            self.size = self.size.max(at);
        }
    }

    /// Reads from `offset` into `buffer`; returns the number of bytes read.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let wanted = (self.size.saturating_sub(offset)).min(buffer.len() as u64) as usize;
        let mut done = 0;
        while done < wanted {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let step = (wanted - done).min(PAGE as usize - within);
            let target = &mut buffer[done..done + step];
            match self.pages.get(&(at / PAGE)) {
                Some(page) => target.copy_from_slice(&page[within..within + step]),
                None => target.fill(0),
            }
            done += step;
        }
        wanted
    }

    /// Returns up to `length` bytes from `offset` on.
    pub fn bytes(&self, offset: u64, length: u64) -> Vec<u8> {
        let length = length.min(self.size.saturating_sub(offset));
        let mut bytes = vec![0; length as usize];
        self.read(&mut bytes, offset);
        bytes
    }

    /// Truncates or extends the file.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size);
        }
        self.size = size;
    }

    /// Zeroes the bytes from `start` to `end`; the size stays.
    pub fn zero(&mut self, start: u64, end: u64) {
        let end = end.min(self.size);
        if start >= end {
            return;
        }
        let pages: Vec<u64> =
            self.pages.range(start / PAGE..=(end - 1) / PAGE).map(|(page, _)| *page).collect();
        for index in pages {
            let first = index * PAGE;
            let (from, to) = (start.max(first) - first, end.min(first + PAGE) - first);
            if (from, to) == (0, PAGE) {
                self.pages.remove(&index);
            } else if let Some(page) = self.pages.get_mut(&index) {
                Arc::make_mut(page)[from as usize..to as usize].fill(0);
            }
        }
    }

    /// Extends the file to at least `size` bytes.
    pub fn grow_to(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Returns the ranges that may hold nonzero bytes, up to the end of the file.
    pub fn stretches(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let size = self.size;
        self.pages
            .keys()
            .map(move |page| (page * PAGE, ((page + 1) * PAGE).min(size)))
            .filter(|(start, end)| start < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_matches_a_vector() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut content, mut plain) = (Content::default(), Vec::<u8>::new());
        for _ in 0..2000 {
            let offset = random.usize(..40_000);
            match random.u8(..4) {
                0 => {
                    let data = vec![random.u8(..); random.usize(..9000)];
                    content.write(offset as u64, &data);
                    if !data.is_empty() {
                        plain.resize(plain.len().max(offset + data.len()), 0);
                        plain[offset..offset + data.len()].copy_from_slice(&data);
                    }
                }
                1 => {
                    content.set_size(offset as u64);
                    plain.resize(offset, 0);
                }
                2 => {
                    let end = (offset + random.usize(..20_000)).min(plain.len());
                    content.zero(offset as u64, end as u64);
                    if offset < end {
                        plain[offset..end].fill(0);
                    }
                }
                _ => {
                    let length = random.usize(..20_000);
                    let end = (offset + length).min(plain.len());
                    let expected = plain.get(offset..end).unwrap_or_default();
                    assert_eq!(content.bytes(offset as u64, length as u64), expected);
                }
            }
            assert_eq!(content.size(), plain.len() as u64);
        }
        assert_eq!(content.bytes(0, u64::MAX), plain);
        let inside = |at: u64| content.stretches().any(|(start, end)| (start..end).contains(&at));
        assert!((0..plain.len()).all(|at| plain[at] == 0 || inside(at as u64)));
    }
}

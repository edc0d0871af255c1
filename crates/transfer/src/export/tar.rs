//! The writer of a copy to a tar archive.
//!
//! Owns [`TarSink`]. The archive is in POSIX pax format: times have nanoseconds, and names and
//! numbers any length. Extended attributes are `SCHILY.xattr.*`, ACLs `SCHILY.acl.*`, and files
//! with holes in GNU's sparse format 1.0. GNU tar, bsdtar and star read all of these.
//!
//! **Invariants**
//! - A member has the size in its header. Zeros replace what cannot be read, so that the members
//!   that follow stay readable.

use super::event::{Attributes, Event, InodeId, Special};
use super::host_attributes::is_acl;
use super::problem::{ExportError, ExportObserver, ExportProblem};
use super::sink::Sink;
use crate::image_path::ImagePath;
use ::tar::{EntryType, Header};
use papilio_engine::items::xattr::Xattr;
use papilio_format::items::inode::Timespec;
use std::collections::HashMap;
use std::io::Write;

/// The unit of a tar archive, in bytes.
const BLOCK: u64 = 512;
/// The size in bytes of a header's name field. Longer names are in pax records.
const NAME_FIELD: usize = 100;
/// The largest user or group number that a header's octal digits hold.
const NUMBER_FIELD: u64 = 0o7_777_777;
/// The largest size that a header's octal digits hold, in bytes.
const SIZE_FIELD: u64 = 0o77_777_777_777;

/// A file whose bytes are being written.
struct ArchivedFile {
    path: Vec<u8>,
    size: u64,
    /// The ranges that the archive holds, as (start, end), in order.
    segments: Vec<(u64, u64)>,
    segment: usize,
    /// The offset in the file of the next byte in the archive.
    at: u64,
    archived: u64,
}

/// A sink that writes members of an archive.
pub struct TarSink<'a, W: Write> {
    observer: &'a dyn ExportObserver,
    archive: W,
    /// The archive's name, for messages.
    archive_name: String,
    sources: Vec<ImagePath>,
    source: usize,
    /// The paths of the open directories, the innermost last.
    directories: Vec<Vec<u8>>,
    current: Option<ArchivedFile>,
    links: HashMap<InodeId, Vec<u8>>,
}

/// The content of a header.
struct NewMember<'a> {
    path: &'a [u8],
    kind: EntryType,
    size: u64,
    attributes: Option<&'a Attributes>,
    link: Option<&'a [u8]>,
    device: Option<(u32, u32)>,
    records: PaxRecords,
}

impl<'a> NewMember<'a> {
    fn new(path: &'a [u8], kind: EntryType, attributes: Option<&'a Attributes>) -> Self {
        let records = PaxRecords::default();
        Self { path, kind, size: 0, attributes, link: None, device: None, records }
    }
}

/// Pax records, for values that do not fit into a header.
#[derive(Default)]
struct PaxRecords(Vec<u8>);

impl PaxRecords {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        // The length counts its own digits.
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while rest + length.to_string().len() != length {
            length += 1;
        }
        self.0.extend(length.to_string().as_bytes());
        self.0.push(b' ');
        self.0.extend(key);
        self.0.push(b'=');
        self.0.extend(value);
        self.0.push(b'\n');
    }

    fn time(&mut self, key: &str, time: Timespec) {
        self.add(key.as_bytes(), decimal(time).as_bytes());
    }
}

/// Formats a time as seconds with a fraction, as in pax records.
fn decimal(time: Timespec) -> String {
    let nanoseconds = time.nanoseconds.min(999_999_999);
    match (time.seconds, nanoseconds) {
        (seconds, 0) => seconds.to_string(),
        (seconds, nanoseconds) if seconds >= 0 => format!("{seconds}.{nanoseconds:09}"),
        // The nanoseconds count forward from the second below.
        (seconds, nanoseconds) => {
            format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanoseconds)
        }
    }
}

impl<'a, W: Write> TarSink<'a, W> {
    /// Creates a sink that writes to `archive`. The members of a source start with its last
    /// component, or with `.` if it has none.
    pub fn new(
        observer: &'a dyn ExportObserver,
        archive: W,
        archive_name: String,
        sources: Vec<ImagePath>,
    ) -> Self {
        Self {
            observer,
            archive,
            archive_name,
            sources,
            source: 0,
            directories: Vec::new(),
            current: None,
            links: HashMap::new(),
        }
    }

    /// Writes the end of the archive.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn finish(mut self) -> Result<(), ExportError> {
        let end = [0; 2 * BLOCK as usize];
        self.write(&end)?;
        self.archive.flush().map_err(|error| self.archive_error(error))
    }

    fn archive_error(&self, error: std::io::Error) -> ExportError {
        ExportError::Archive { name: self.archive_name.clone(), error }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.archive.write_all(bytes).map_err(|error| self.archive_error(error))
    }

    fn zeros(&mut self, mut length: u64) -> Result<(), ExportError> {
        let zeros = [0; 1 << 14];
        while length > 0 {
            let part = usize::try_from(length).map_or(zeros.len(), |left| left.min(zeros.len()));
            self.write(&zeros[..part])?;
            length -= part as u64;
        }
        Ok(())
    }

    /// Pads the last block.
    fn pad(&mut self, written: u64) -> Result<(), ExportError> {
        self.zeros(written.next_multiple_of(BLOCK) - written)
    }

    fn member(&self, name: &[u8]) -> Vec<u8> {
        let name = match (name, self.directories.is_empty()) {
            (b"", true) => self.sources[self.source].base_name().unwrap_or(b"."),
            (name, _) => name,
        };
        match self.directories.last() {
            Some(directory) => [&directory[..], name].join(&b'/'),
            None => name.to_vec(),
        }
    }

    fn announce(&self, path: &[u8]) -> Result<(), ExportError> {
        match self.observer.wants_names() {
            true => self.observer.member(path).map_err(ExportError::Stopped),
            false => Ok(()),
        }
    }

    /// Writes a member's header, after the pax records that it needs.
    fn header(&mut self, member: NewMember<'_>) -> Result<(), ExportError> {
        let NewMember { path, kind, size, attributes, link, device, mut records } = member;
        self.announce(path)?;
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        if path.len() > NAME_FIELD || !path.is_ascii() {
            records.add(b"path", path);
        }
        put(&mut header.as_old_mut().name, path);
        if let Some(link) = link {
            if link.len() > NAME_FIELD || !link.is_ascii() {
                records.add(b"linkpath", link);
            }
            put(&mut header.as_old_mut().linkname, link);
        }
        header.set_size(size.min(SIZE_FIELD));
        if size > SIZE_FIELD {
            records.add(b"size", size.to_string().as_bytes());
        }
        if let Some((major, minor)) = device {
            let set = header.set_device_major(major).and_then(|()| header.set_device_minor(minor));
            set.map_err(|error| self.archive_error(error))?;
        }
        match attributes {
            Some(attributes) => self.attributes(path, &mut header, attributes, &mut records),
            None => {
                header.set_mode(0o644);
                header.set_uid(0);
                header.set_gid(0);
                header.set_mtime(0);
            }
        }
        if !records.0.is_empty() {
            self.records(path, &records.0)?;
        }
        header.set_cksum();
        self.write(header.as_bytes())
    }

    fn attributes(
        &self,
        path: &[u8],
        header: &mut Header,
        attributes: &Attributes,
        records: &mut PaxRecords,
    ) {
        header.set_mode(attributes.permissions);
        for (key, number) in [("uid", attributes.uid), ("gid", attributes.gid)] {
            if u64::from(number) > NUMBER_FIELD {
                records.add(key.as_bytes(), number.to_string().as_bytes());
            }
        }
        header.set_uid(u64::from(attributes.uid).min(NUMBER_FIELD));
        header.set_gid(u64::from(attributes.gid).min(NUMBER_FIELD));
        header.set_mtime(u64::try_from(attributes.mtime.seconds).unwrap_or(0).min(SIZE_FIELD));
        records.time("mtime", attributes.mtime);
        records.time("atime", attributes.atime);
        for xattr in &attributes.xattrs {
            if !is_acl(&xattr.name) {
                records.add(&xattr_key(&xattr.name), &xattr.value);
                continue;
            }
            let key = match xattr.name.ends_with(b"_default") {
                true => &b"SCHILY.acl.default"[..],
                false => b"SCHILY.acl.access",
            };
            match acl_text(xattr) {
                Some(text) => records.add(key, text.as_bytes()),
                None => {
                    let path = String::from_utf8_lossy(path).into_owned();
                    self.observer.problem(ExportProblem::InvalidAcl { path });
                }
            }
        }
    }

    /// Writes a pax header with `records` for the next member.
    fn records(&mut self, path: &[u8], records: &[u8]) -> Result<(), ExportError> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        put(&mut header.as_old_mut().name, &[b"PaxHeaders/", last].concat());
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(records.len() as u64);
        header.set_cksum();
        self.write(header.as_bytes())?;
        self.write(records)?;
        self.pad(records.len() as u64)
    }

    fn begin_file(
        &mut self,
        name: &[u8],
        attributes: &Attributes,
        size: u64,
        id: Option<InodeId>,
        segments: Option<Vec<(u64, u64)>>,
    ) -> Result<(), ExportError> {
        let path = self.member(name);
        let mut records = PaxRecords::default();
        let mut map = Vec::new();
        let segments = match segments {
            None => vec![(0, size)],
            Some(segments) => {
                let segments = whole_blocks(&segments, size);
                map = sparse_map(&segments, size);
                records.add(b"GNU.sparse.major", b"1");
                records.add(b"GNU.sparse.minor", b"0");
                records.add(b"GNU.sparse.name", &path);
                records.add(b"GNU.sparse.realsize", size.to_string().as_bytes());
                segments
            }
        };
        let data: u64 = segments.iter().map(|(start, end)| end - start).sum();
        let archived = data + map.len() as u64;
        let member = NewMember::new(&path, EntryType::Regular, Some(attributes));
        self.header(NewMember { size: archived, records, ..member })?;
        self.write(&map)?;
        if let Some(id) = id {
            self.links.insert(id, path.clone());
        }
        self.current = Some(ArchivedFile { path, size, segments, segment: 0, at: 0, archived });
        Ok(())
    }

    /// Writes zeros for the ranges that the archive holds before `offset` in the file.
    fn advance(&mut self, current: &mut ArchivedFile, offset: u64) -> Result<(), ExportError> {
        while let Some(&(start, end)) = current.segments.get(current.segment) {
            current.at = current.at.max(start);
            if current.at >= offset {
                return Ok(());
            }
            let until = offset.min(end);
            self.zeros(until - current.at)?;
            current.at = until;
            if until < end {
                return Ok(());
            }
            current.segment += 1;
        }
        Ok(())
    }

    fn end_file(&mut self, missing: u64) -> Result<(), ExportError> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        if missing > 0 {
            self.observer.problem(ExportProblem::Incomplete {
                path: String::from_utf8_lossy(&current.path).into_owned(),
                copied: current.size.saturating_sub(missing),
                size: current.size,
                error: None,
            });
        }
        self.advance(&mut current, u64::MAX)?;
        self.pad(current.archived)
    }
}

impl<W: Write> Sink for TarSink<'_, W> {
    fn begin(&mut self, source: usize) -> Result<(), ExportError> {
        self.source = source;
        self.directories.clear();
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExportError> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        self.advance(&mut current, offset)?;
        self.write(bytes)?;
        current.at = offset + bytes.len() as u64;
        if current.segments.get(current.segment).is_some_and(|(_, end)| *end <= current.at) {
            current.segment += 1;
        }
        self.current = Some(current);
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), ExportError> {
        match event {
            Event::EnterDirectory { name, attributes } => {
                let mut path = self.member(&name);
                self.directories.push(path.clone());
                path.push(b'/');
                self.header(NewMember::new(&path, EntryType::Directory, Some(&attributes)))
            }
            Event::LeaveDirectory => {
                self.directories.pop();
                Ok(())
            }
            Event::File { name, attributes, size, id, segments, .. } => {
                self.begin_file(&name, &attributes, size, id, segments)
            }
            Event::EndFile { missing } => self.end_file(missing),
            Event::Link { name, id, .. } => {
                let path = self.member(&name);
                let Some(first) = self.links.get(&id).cloned() else {
                    let path = String::from_utf8_lossy(&path).into_owned();
                    self.observer.problem(ExportProblem::NotLinked { path });
                    return Ok(());
                };
                let member = NewMember::new(&path, EntryType::Link, None);
                self.header(NewMember { link: Some(&first), ..member })
            }
            Event::Symlink { name, attributes, target, id } => {
                let path = self.member(&name);
                self.links.extend(id.map(|id| (id, path.clone())));
                let member = NewMember::new(&path, EntryType::Symlink, Some(&attributes));
                self.header(NewMember { link: Some(&target), ..member })
            }
            Event::Special { name, attributes, special, id } => {
                let path = self.member(&name);
                let (kind, device) = match special {
                    Special::Fifo => (EntryType::Fifo, None),
                    Special::Block { major, minor } => (EntryType::Block, Some((major, minor))),
                    Special::Character { major, minor } => (EntryType::Char, Some((major, minor))),
                    Special::Socket => {
                        let path = String::from_utf8_lossy(&path).into_owned();
                        self.observer.problem(ExportProblem::Socket { path });
                        return Ok(());
                    }
                };
                self.links.extend(id.map(|id| (id, path.clone())));
                self.header(NewMember { device, ..NewMember::new(&path, kind, Some(&attributes)) })
            }
            Event::Begin { .. } | Event::Data { .. } | Event::Missing(_) | Event::Problem(_) => Ok(()),
        }
    }
}

fn put(field: &mut [u8], value: &[u8]) {
    let length = value.len().min(field.len());
    field[..length].copy_from_slice(&value[..length]);
}

/// Returns the key of an attribute's record. `=` must be escaped, since it ends the key.
fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for &byte in name {
        match byte {
            b'=' => key.extend(b"%3D"),
            b'%' => key.extend(b"%25"),
            byte => key.push(byte),
        }
    }
    key
}

/// Widens segments to whole blocks and returns them as (start, end). Readers expect each to start
/// at a block.
fn whole_blocks(segments: &[(u64, u64)], size: u64) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(segments.len());
    for &(offset, length) in segments {
        let start = offset - offset % BLOCK;
        let end = (offset + length).checked_next_multiple_of(BLOCK).map_or(size, |end| end.min(size));
        match out.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

/// Returns the map that precedes the data of a file with holes, in whole blocks.
fn sparse_map(segments: &[(u64, u64)], size: u64) -> Vec<u8> {
    let ends_in_hole = segments.last().is_none_or(|(_, end)| *end < size);
    let mut map = format!("{}\n", segments.len() + usize::from(ends_in_hole));
    for (start, end) in segments {
        map.push_str(&format!("{start}\n{}\n", end - start));
    }
    if ends_in_hole {
        map.push_str(&format!("{size}\n0\n"));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
    map
}

/// Returns an ACL in its long text form, with numeric ids, or `None` if the bytes are no valid ACL.
/// `include/uapi/linux/posix_acl_xattr.h` defines the binary form, version 2.
fn acl_text(xattr: &Xattr) -> Option<String> {
    let entries = xattr.value.strip_prefix(&2_u32.to_le_bytes())?;
    if entries.len() % 8 != 0 {
        return None;
    }
    let mut text = String::new();
    for entry in entries.chunks_exact(8) {
        let number = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let subject = match number(0) {
            0x01 => "user:".into(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".into(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".into(),
            0x20 => "other:".into(),
            _ => return None,
        };
        let bits = number(2);
        let letter = |bit: u16, letter: char| if bits & bit != 0 { letter } else { '-' };
        let (r, w, x) = (letter(4, 'r'), letter(2, 'w'), letter(1, 'x'));
        text.push_str(&format!("{subject}:{r}{w}{x}\n"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_a_record_includes_its_own_digits() {
        let mut records = PaxRecords::default();
        records.add(b"a", b"1234"); // 8 characters and one digit.
        records.add(b"a", b"12345"); // 9 characters, so that the length has two digits.
        assert_eq!(records.0, b"9 a=1234\n11 a=12345\n");
        for length in 80..120 {
            let mut records = PaxRecords::default();
            records.add(b"key", &vec![b'x'; length]);
            let text = String::from_utf8(records.0.clone()).unwrap();
            assert_eq!(text.split(' ').next().unwrap(), records.0.len().to_string());
        }
    }

    #[test]
    fn times_before_1970_are_negative() {
        let time = |seconds, nanoseconds| decimal(Timespec { seconds, nanoseconds });
        assert_eq!(time(5, 0), "5");
        assert_eq!(time(5, 6), "5.000000006");
        assert_eq!(time(-1, 500_000_000), "-0.500000000");
        assert_eq!(time(-2, 1), "-1.999999999");
        assert_eq!(time(i64::MIN, 1), "-9223372036854775807.999999999");
    }

    #[test]
    fn sparse_maps_have_whole_blocks() {
        assert_eq!(whole_blocks(&[(4096, 4096), (8192, 10)], 9000), [(4096, 8704)]);
        assert_eq!(whole_blocks(&[(0, 10)], 5000), [(0, 512)]);
        assert_eq!(whole_blocks(&[(4096, 904)], 5000), [(4096, 5000)]);
        let map = sparse_map(&[(4096, 5000)], 5000);
        assert!(map.starts_with(b"1\n4096\n904\n\0") && map.len() == 512);
        assert!(sparse_map(&[], 5000).starts_with(b"1\n5000\n0\n\0"));
    }

    #[test]
    fn acls_become_text() {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, bits, id) in [(1_u16, 7_u16, u32::MAX), (2, 5, 1000), (0x20, 0, u32::MAX)] {
            value.extend(tag.to_le_bytes());
            value.extend(bits.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        let xattr = |value: &[u8]| Xattr { name: b"a".to_vec(), value: value.to_vec() };
        let text = acl_text(&xattr(&value)).unwrap();
        assert_eq!(text, "user::rwx\nuser:1000:r-x\nother::---\n");
        assert_eq!(acl_text(&xattr(&value[..11])), None);
        assert_eq!(acl_text(&xattr(b"")), None);
    }
}

//! Reading the members of a tar archive in order.
//!
//! Owns [`Members`], which combines the headers of each member: pax records, long names of GNU,
//! maps of sparse files.
//!
//! **Invariants**
//! - Memory stays within fixed limits for any archive.
//! - After an error of the archive itself, the caller reads no further member.
//!
//! Formats: POSIX.1-2001 `pax`, ustar, GNU tar's manual ("Sparse Formats").

use super::super::acl_text;
use super::super::event::{ImportedNode, MemberAttributes};
use super::header::{BLOCK, Header, sparse_block, text};
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::xattr::Xattr;
use papilio_format::items::inode::Timespec;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Limit in bytes of the pax records of one member, and of a long name.
const RECORDS_MAX: u64 = 16 << 20;
/// Limit of the data segments of a sparse file.
const SEGMENTS_MAX: usize = 4 << 20;
const XATTR_KEY: &[u8] = b"SCHILY.xattr.";

/// The kind of a member.
#[derive(Debug)]
pub(in crate::import) enum MemberKind {
    Directory,
    /// A regular file.
    File {
        size: u64,
        /// The data segments of a sparse file, as (offset, length).
        map: Option<Vec<(u64, u64)>>,
    },
    Node(ImportedNode),
    /// A hard link to the member at this path.
    Link(Vec<u8>),
}

/// A member without its data, which the caller reads next.
#[derive(Debug)]
pub(in crate::import) struct Member {
    /// Without `.` and without slashes at either end; empty for the top.
    pub(in crate::import) path: Vec<u8>,
    pub(in crate::import) kind: MemberKind,
    pub(super) attributes: MemberAttributes,
    /// Bytes of data in the archive.
    pub(super) archived: u64,
}

/// Pax records, as (key, value). The last record of a key wins.
#[derive(Clone, Debug, Default)]
struct Records(Vec<(Vec<u8>, Vec<u8>)>);

/// The extension headers before a member's own header.
#[derive(Default)]
struct Extensions {
    records: Records,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

/// A reader of an archive.
pub(in crate::import) struct Members<'r> {
    name: PathBuf,
    archive: Box<dyn Read + 'r>,
    /// Bytes read so far, for errors.
    at: u64,
    /// Bytes of the current member's data not read yet.
    left: u64,
    /// Bytes of the padding after the current member's data.
    padding: u64,
    globals: Records,
    failed: bool,
}

impl<'r> Members<'r> {
    /// Creates a reader of an uncompressed archive. `name` names it in errors.
    pub(in crate::import) fn new(name: &Path, archive: Box<dyn Read + 'r>) -> Self {
        Self {
            name: name.to_path_buf(),
            archive,
            at: 0,
            left: 0,
            padding: 0,
            globals: Records::default(),
            failed: false,
        }
    }

    /// Returns whether the archive itself is invalid or cannot be read.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Skips the rest of the current member and returns the next one.
    ///
    /// # Errors
    /// An archive that cannot be read or is invalid.
    pub(in crate::import) fn next(&mut self) -> Result<Option<Member>> {
        self.skip_data()?;
        let mut extensions = Extensions::default();
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let size = self.unsigned(header.size(), "size")?;
            match header.kind() {
                b'x' | b'X' => {
                    let records = self.records(size)?;
                    extensions.records.0.extend(records.0);
                }
                b'g' => {
                    let records = self.records(size)?;
                    self.globals.0.extend(records.0);
                }
                b'L' => extensions.long_name = Some(self.long_name(size)?),
                b'K' => extensions.long_link = Some(self.long_name(size)?),
                // A volume label, or the rest of a file from another volume.
                b'V' | b'M' => {
                    self.expect_data(size);
                    self.skip_data()?;
                }
                _ => return self.member(&header, size, extensions).map(Some),
            }
        }
    }

    /// Fills `buffer` with the current member's data.
    ///
    /// # Errors
    /// A member with less data; an archive that ends early or cannot be read.
    pub(super) fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        if buffer.len() as u64 > self.left {
            return Err(self.invalid_archive("sparse map exceeds the member's data"));
        }
        self.left -= buffer.len() as u64;
        self.fill(buffer)
    }

    fn invalid_archive(&mut self, what: &str) -> Error {
        self.failed = true;
        Error::Invalid(format!("{}: byte {}: {what}", self.name.display(), self.at))
    }

    fn unsigned(&mut self, value: Option<i64>, what: &str) -> Result<u64> {
        let value = value.and_then(|value| u64::try_from(value).ok());
        value.ok_or_else(|| self.invalid_archive(&format!("{what} is not a number")))
    }

    fn id(&mut self, value: Option<i64>, what: &str) -> Result<u32> {
        let value = value.and_then(|value| u32::try_from(value).ok());
        value.ok_or_else(|| self.invalid_archive(&format!("{what} is invalid")))
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        match self.archive.read_exact(buffer) {
            Ok(()) => {
                self.at += buffer.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.invalid_archive("archive ends in the middle of a member"))
            }
            Err(source) => Err(self.host(source)),
        }
    }

    fn host(&mut self, source: std::io::Error) -> Error {
        self.failed = true;
        Error::Host { path: self.name.clone(), source }
    }

    fn expect_data(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    fn skip_data(&mut self) -> Result<()> {
        let mut left = std::mem::take(&mut self.left).saturating_add(std::mem::take(&mut self.padding));
        let mut buffer = [0; 16 << 10];
        while left > 0 {
            let step = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            self.fill(&mut buffer[..step])?;
            left -= step as u64;
        }
        Ok(())
    }

    /// Reads the next header. Returns `None` at the end, with or without the end mark.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header([0; BLOCK]);
        let mut filled = 0;
        while filled < BLOCK {
            match self.archive.read(&mut header.0[filled..]) {
                Ok(0) if filled == 0 && self.at > 0 => return Ok(None),
                Ok(0) => return Err(self.invalid_archive("not a tar archive, or a truncated one")),
                Ok(length) => filled += length,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.host(source)),
            }
        }
        self.at += BLOCK as u64;
        if header.is_end() {
            return self.header_of_next();
        }
        if !header.is_valid() {
            self.at -= BLOCK as u64;
            return Err(self.invalid_archive("not a tar header: checksum mismatch"));
        }
        Ok(Some(header))
    }

    /// Returns the first header of an archive that follows in the stream, behind the zeros at the
    /// end of this one. Bytes that are no header end the stream, as rubbish behind an archive.
    fn header_of_next(&mut self) -> Result<Option<Header>> {
        let mut block = Header([0; BLOCK]);
        loop {
            let mut filled = 0;
            while filled < BLOCK {
                match self.archive.read(&mut block.0[filled..]) {
                    Ok(0) => return Ok(None),
                    Ok(length) => filled += length,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(source) => return Err(self.host(source)),
                }
            }
            self.at += BLOCK as u64;
            if !block.is_end() {
                // Global records are those of one archive.
                self.globals = Records::default();
                return Ok(block.is_valid().then_some(block));
            }
        }
    }

    /// Returns the place of the current member's data in the archive, and its length.
    pub(in crate::import) fn place(&self) -> (u64, u64) {
        (self.at, self.left)
    }

    /// Reads the whole data of an extension header.
    fn whole(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > RECORDS_MAX {
            return Err(self.invalid_archive("extended header exceeds 16 MiB"));
        }
        let mut data = vec![0; size as usize];
        self.expect_data(size);
        self.read_exact(&mut data)?;
        self.skip_data()?;
        Ok(data)
    }

    fn long_name(&mut self, size: u64) -> Result<Vec<u8>> {
        Ok(text(&self.whole(size)?).to_vec())
    }

    fn records(&mut self, size: u64) -> Result<Records> {
        let data = self.whole(size)?;
        Records::parse(&data).ok_or_else(|| self.invalid_archive("invalid pax records"))
    }

    fn member(&mut self, header: &Header, size: u64, mut extensions: Extensions) -> Result<Member> {
        let records = Records([&self.globals.0[..], &std::mem::take(&mut extensions.records.0)].concat());
        let number = |key: &[u8]| match records.get(key) {
            None => Ok(None),
            Some(value) => decimal(value).map(Some).ok_or(()),
        };
        let Ok(archived) = number(b"size") else { return Err(self.invalid_archive("size is not a number")) };
        let archived = archived.unwrap_or(size);
        let path = records
            .get(b"GNU.sparse.name")
            .or_else(|| records.get(b"path"))
            .map(<[u8]>::to_vec)
            .or(extensions.long_name)
            .unwrap_or_else(|| header.path());
        let link = records
            .get(b"linkpath")
            .map(<[u8]>::to_vec)
            .or(extensions.long_link)
            .unwrap_or_else(|| header.link().to_vec());
        let attributes = self.attributes(header, &records)?;
        // In the oldest format a directory is a file whose name ends with a slash.
        let slash = path.ends_with(b"/");
        let path = self.normalized(&path)?;
        let kind = match header.kind() {
            b'0' | 0 if slash => MemberKind::Directory,
            b'5' | b'D' => MemberKind::Directory,
            b'1' => MemberKind::Link(self.normalized(&link)?),
            b'2' => MemberKind::Node(ImportedNode::Symlink(link)),
            b'6' => MemberKind::Node(ImportedNode::Fifo),
            b'3' | b'4' => {
                let (major, minor) = header.device().unwrap_or((-1, -1));
                let major = self.id(Some(major), "device number")?;
                let minor = self.id(Some(minor), "device number")?;
                MemberKind::Node(match header.kind() {
                    b'3' => ImportedNode::Character { major, minor },
                    _ => ImportedNode::Block { major, minor },
                })
            }
            // Regular files. POSIX treats unknown types as such.
            _ => {
                self.expect_data(archived);
                let kind = self.file(header, &records, archived)?;
                return Ok(Member { path, kind, attributes, archived });
            }
        };
        // A link may have its target's size, but never has data.
        let archived = if matches!(kind, MemberKind::Directory) { archived } else { 0 };
        self.expect_data(archived);
        Ok(Member { path, kind, attributes, archived })
    }

    fn file(&mut self, header: &Header, records: &Records, archived: u64) -> Result<MemberKind> {
        if header.kind() == b'S' && header.is_gnu() {
            return self.old_sparse(header);
        }
        let number = |key: &[u8]| records.get(key).and_then(decimal);
        let real_size = number(b"GNU.sparse.realsize").or_else(|| number(b"GNU.sparse.size"));
        let map = match records.get(b"GNU.sparse.major") {
            Some(b"1") => Some(self.map_in_data()?),
            Some(b"0") | None => match records.get(b"GNU.sparse.map") {
                Some(map) => {
                    let numbers: Option<Vec<u64>> = map.split(|&byte| byte == b',').map(decimal).collect();
                    let numbers = numbers.ok_or_else(|| self.invalid_archive("invalid sparse map"))?;
                    Some(numbers.chunks(2).map(|pair| (pair[0], pair.get(1).copied().unwrap_or(0))).collect())
                }
                None => records.offsets_and_lengths(),
            },
            Some(_) => return Err(self.invalid_archive("unknown sparse format")),
        };
        let Some(map) = map else { return Ok(MemberKind::File { size: archived, map: None }) };
        let Some(size) = real_size else { return Err(self.invalid_archive("sparse file without a size")) };
        self.checked_map(map, size)
    }

    fn checked_map(&mut self, map: Vec<(u64, u64)>, size: u64) -> Result<MemberKind> {
        let mut end = 0;
        for &(offset, length) in &map {
            if offset < end || offset.checked_add(length).is_none_or(|segment_end| segment_end > size) {
                return Err(self.invalid_archive("invalid sparse map"));
            }
            end = offset + length;
        }
        Ok(MemberKind::File { size, map: Some(map) })
    }

    /// Reads the map of the old GNU format, in the header and in blocks between it and the data.
    fn old_sparse(&mut self, header: &Header) -> Result<MemberKind> {
        let invalid = "invalid sparse map";
        let size = self.unsigned(header.real_size(), "size")?;
        let (mut entries, mut more) = header.sparse().ok_or_else(|| self.invalid_archive(invalid))?;
        while more {
            let mut block = [0; BLOCK];
            self.fill(&mut block)?;
            let (further, go_on) = sparse_block(&block).ok_or_else(|| self.invalid_archive(invalid))?;
            entries.extend(further);
            more = go_on;
            if entries.len() > SEGMENTS_MAX {
                return Err(self.invalid_archive("sparse file has too many segments"));
            }
        }
        let map: Option<Vec<(u64, u64)>> = entries
            .into_iter()
            .map(|(offset, length)| Some((u64::try_from(offset).ok()?, u64::try_from(length).ok()?)))
            .collect();
        let map = map.ok_or_else(|| self.invalid_archive(invalid))?;
        self.checked_map(map, size)
    }

    /// Reads the map of version 1.0, at the start of the data: one number per line, padded to
    /// blocks.
    fn map_in_data(&mut self) -> Result<Vec<(u64, u64)>> {
        let invalid = "invalid sparse map";
        let mut numbers: Vec<u64> = Vec::new();
        let mut current: Option<u64> = None;
        let mut wanted = None;
        loop {
            let mut block = [0; BLOCK];
            self.read_exact(&mut block)?;
            for byte in block {
                match byte {
                    b'0'..=b'9' => {
                        let digit = u64::from(byte - b'0');
                        let next =
                            current.unwrap_or(0).checked_mul(10).and_then(|value| value.checked_add(digit));
                        current = Some(next.ok_or_else(|| self.invalid_archive(invalid))?);
                    }
                    b'\n' => {
                        let number = current.take().ok_or_else(|| self.invalid_archive(invalid))?;
                        match wanted {
                            None if number > SEGMENTS_MAX as u64 => {
                                return Err(self.invalid_archive("sparse file has too many segments"));
                            }
                            None => wanted = Some(2 * number as usize),
                            Some(_) => numbers.push(number),
                        }
                        if wanted == Some(numbers.len()) {
                            return Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect());
                        }
                    }
                    _ => return Err(self.invalid_archive(invalid)),
                }
            }
        }
    }

    fn attributes(&mut self, header: &Header, records: &Records) -> Result<MemberAttributes> {
        let number = |key: &[u8], field: Option<i64>| match records.get(key) {
            Some(value) => decimal(value).and_then(|value| i64::try_from(value).ok()),
            None => field,
        };
        let uid = self.id(number(b"uid", header.uid()), "user id")?;
        let gid = self.id(number(b"gid", header.gid()), "group id")?;
        let mode = header.mode().ok_or_else(|| self.invalid_archive("mode is not a number"))?;
        let mtime = match records.get(b"mtime") {
            Some(value) => time(value),
            None => header.mtime().map(|seconds| Timespec { seconds, nanoseconds: 0 }),
        };
        let mtime = mtime.ok_or_else(|| self.invalid_archive("invalid modification time"))?;
        let atime = records.get(b"atime").and_then(time).unwrap_or(mtime);
        let mut xattrs: Vec<Xattr> = Vec::new();
        for (key, value) in &records.0 {
            let (name, value) = match &key[..] {
                b"SCHILY.acl.access" => (b"system.posix_acl_access".to_vec(), acl_text::parse(value)),
                b"SCHILY.acl.default" => (b"system.posix_acl_default".to_vec(), acl_text::parse(value)),
                key => match key.strip_prefix(XATTR_KEY) {
                    Some(name) => (xattr_name(name), Ok(value.clone())),
                    None => continue,
                },
            };
            let value = value.map_err(|what| self.invalid_archive(&what))?;
            xattrs.retain(|known| known.name != name);
            xattrs.push(Xattr { name, value });
        }
        let mode = (mode & 0o7777) as u32;
        Ok(MemberAttributes { mode, uid, gid, atime: Some(atime), mtime: Some(mtime), xattrs })
    }

    /// Normalizes a path: without `.` and extra slashes. Refuses `..`.
    fn normalized(&mut self, path: &[u8]) -> Result<Vec<u8>> {
        let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && part != b".");
        let parts: Vec<&[u8]> = parts.collect();
        if parts.contains(&&b".."[..]) {
            return Err(self.invalid_archive("path contains .."));
        }
        Ok(parts.join(&b'/'))
    }
}

impl Records {
    /// Parses records of the form `LENGTH KEY=VALUE\n`. The length is that of the whole record.
    fn parse(mut data: &[u8]) -> Option<Self> {
        let mut records = Vec::new();
        while !data.is_empty() && data[0] != 0 {
            let blank = data.iter().position(|&byte| byte == b' ')?;
            let length = usize::try_from(decimal(&data[..blank])?).ok()?;
            let record = data.get(blank + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|&byte| byte == b'=')?;
            records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
            data = &data[length..];
        }
        Some(Self(records))
    }

    /// Returns the last value of a key. An empty value removes earlier ones.
    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let value = self.0.iter().rev().find(|(known, _)| known == key).map(|(_, value)| &value[..]);
        value.filter(|value| !value.is_empty())
    }

    /// Returns the map of version 0.0, which repeats two keys.
    fn offsets_and_lengths(&self) -> Option<Vec<(u64, u64)>> {
        let all = |key: &[u8]| -> Option<Vec<u64>> {
            self.0.iter().filter(|(known, _)| known == key).map(|(_, value)| decimal(value)).collect()
        };
        let (offsets, lengths) = (all(b"GNU.sparse.offset")?, all(b"GNU.sparse.numbytes")?);
        (!offsets.is_empty() && offsets.len() == lengths.len())
            .then(|| offsets.into_iter().zip(lengths).collect())
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, &digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Parses seconds since 1970, which may be negative and have a fraction.
fn time(text: &[u8]) -> Option<Timespec> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |&byte| byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    let mut nanoseconds = 0;
    for place in 0..9 {
        let digit = fraction.get(place).copied().unwrap_or(b'0');
        nanoseconds = nanoseconds * 10 + u32::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    Some(match (negative, nanoseconds) {
        (false, _) => Timespec { seconds, nanoseconds },
        (true, 0) => Timespec { seconds: -seconds, nanoseconds },
        (true, _) => Timespec { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

/// Decodes the name of an attribute: GNU tar and star write `=` and `%` as `%3D` and `%25`.
fn xattr_name(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, after)) = rest.split_first() {
        let (decoded, after) = match after {
            [b'3', b'D', after @ ..] if byte == b'%' => (b'=', after),
            [b'2', b'5', after @ ..] if byte == b'%' => (b'%', after),
            after => (byte, after),
        };
        out.push(decoded);
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_hold_any_bytes() {
        let records = Records::parse(b"9 a=1234\n15 k=\nb=\0 new\n\n5 a=\n").unwrap();
        assert_eq!(records.get(b"k"), Some(&b"\nb=\0 new\n"[..]));
        assert_eq!(records.get(b"a"), None, "an empty value removes it");
        for wrong in
            [&b"9 a=123\n"[..], b"x a=1\n", b"6 ab1\n", b"99999999999999999999 a=1\n", b"0 a=1\n", b"1 "]
        {
            assert!(Records::parse(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn times_have_fractions_and_signs() {
        let parsed = |text: &str| time(text.as_bytes()).map(|time| (time.seconds, time.nanoseconds));
        assert_eq!(parsed("5"), Some((5, 0)));
        assert_eq!(parsed("5.000000006"), Some((5, 6)));
        assert_eq!(parsed("5.5"), Some((5, 500_000_000)));
        assert_eq!(parsed("-0.5"), Some((-1, 500_000_000)));
        assert_eq!(parsed("-2"), Some((-2, 0)));
        assert_eq!(parsed("5.x"), None);
        assert_eq!(parsed(""), None);
        assert_eq!(xattr_name(b"user.a%3Db%25%3"), b"user.a=b%%3");
    }
}

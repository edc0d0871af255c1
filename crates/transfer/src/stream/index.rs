//! An index of a chain, by which one file is read without reading the rest.
//!
//! Owns [`StreamIndex`]. The index lies beside the last stream of the chain. Its format, with all
//! numbers in little endian:
//!
//! ```text
//! magic (16), version (4), length of the head (4), head, checksum of the head (4)
//! one record for each path: length (4), checksum (4), bytes
//! the offset of each record (8), in the order of paths
//! number of records (8), offset of those offsets (8), checksum of both (4), magic (16)
//! ```
//!
//! The head has the streams with their lengths and a checksum of their first and last bytes, the
//! sources of clones that the chain lacks, and the subvolume's identity and name. Checksums are
//! those of the streams. A record has its path, the inode, and where the data of a file lies.
//!
//! **Invariants**
//! - An index whose streams have other lengths or bytes at their ends is not used.
//! - Each record that is used is verified, and so is each command that holds data.

use super::archive::copy_content;
use super::budget::Budget;
use super::bytes::{ByteReader, ByteWriter};
use super::chain::StreamChain;
use super::data::DataReader;
use super::fault::StreamError;
use super::input::StreamInput;
use super::node::{NodeKind, Origin, StreamContent, StreamNode, StreamPiece, Times};
use super::walk::{SentEntry, Walk};
use papilio_engine::errors::{Error, PathError};
use papilio_format::Uuid;
use papilio_format::checksum::crc32c_raw;
use papilio_format::items::inode::Timespec;
use papilio_format::send_stream::Protocol;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 16] = b"papilio streams\n";
const VERSION: u32 = 1;
/// Bytes of the end: two numbers, a checksum and the magic.
const FOOTER: u64 = 36;
/// The most bytes of a record: 16 million extents.
const LONGEST_RECORD: u32 = 1 << 29;
/// The most bytes of the head.
const LONGEST_HEAD: u32 = 1 << 24;
/// Bytes at each end of a stream that the head has a checksum of.
const ENDS: u64 = 64 << 10;

/// The streams whose index cannot be used, and the reason if there is an index.
type UnusedIndex = (Vec<StreamInput>, Option<&'static str>);

/// An open index.
#[derive(Debug)]
pub struct StreamIndex {
    file: File,
    name: String,
    inputs: Vec<StreamInput>,
    absent: Vec<Uuid>,
    subvolume: Vec<u8>,
    records: u64,
    /// Where the offsets of the records start, in bytes.
    table: u64,
}

impl StreamIndex {
    /// Returns the path of the index of a chain that ends with this stream.
    pub fn path_beside(stream: &Path) -> PathBuf {
        let mut name = stream.as_os_str().to_owned();
        name.push(".index");
        name.into()
    }

    /// Writes the index of the subvolume with index `part` to `path`, by a temporary file. Returns
    /// the number of paths.
    ///
    /// # Errors
    /// The chain lacks the subvolume's parent; the host refuses.
    pub fn create(chain: &StreamChain, part: usize, path: &Path) -> Result<u64, StreamError> {
        let shown = path.display().to_string();
        let at = |source| StreamError::host(&shown, source);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let temporary = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(at)?;
        let mut writer = IndexWriter { out: BufWriter::with_capacity(1 << 20, temporary), at: 0 };
        let records = writer.write(chain, part).map_err(|error| match error {
            WriteError::Host(source) => at(source),
            WriteError::Stream(error) => error,
        })?;
        let temporary = writer.out.into_inner().map_err(|error| at(error.into_error()))?;
        temporary.as_file().sync_all().map_err(at)?;
        temporary.persist(path).map_err(|error| at(error.error))?;
        Ok(records)
    }

    /// Opens the index at `path`, if it exists and is that of these streams. Else, returns the
    /// streams, and the reason if there is an index.
    ///
    /// # Errors
    /// The host cannot read the index or a stream.
    pub fn open(path: &Path, inputs: Vec<StreamInput>) -> Result<Result<Self, UnusedIndex>, StreamError> {
        let name = path.display().to_string();
        let at = |source| StreamError::host(&name, source);
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Err((inputs, None))),
            Err(error) => return Err(at(error)),
        };
        let length = file.metadata().map_err(at)?.len();
        let Some(head) = read_head(&file, length).map_err(at)? else {
            return Ok(Err((inputs, Some("it is not an index, or damaged"))));
        };
        let mut fits = head.streams.len() == inputs.len();
        for (known, input) in head.streams.iter().zip(&inputs) {
            fits = fits && *known == (input.length(), ends_checksum(input)?);
        }
        if !fits {
            return Ok(Err((inputs, Some("it is the index of other streams"))));
        }
        let Head { absent, subvolume, records, table, .. } = head;
        Ok(Ok(Self { file, name, inputs, absent, subvolume, records, table }))
    }

    /// Returns the name of the subvolume that it lists.
    pub fn subvolume(&self) -> &[u8] {
        &self.subvolume
    }

    /// Returns the streams.
    pub fn into_inputs(self) -> Vec<StreamInput> {
        self.inputs
    }

    /// Calls `each` for the entry at a path and all below it, each directory before its entries.
    ///
    /// # Errors
    /// The path names nothing; the index is damaged; those of `each`.
    pub fn for_each_entry<E: From<StreamError>>(
        &self,
        path: &[u8],
        mut each: impl FnMut(SentEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let first = self.find(path)?;
        for number in first..self.records {
            let (found, node) = self.record(number)?;
            let below = path.is_empty()
                || found.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
            if !below {
                break;
            }
            each(SentEntry::new(found, &node))?;
        }
        Ok(())
    }

    /// Writes the content of a file to `out`, and returns its size in bytes.
    ///
    /// # Errors
    /// As [`StreamChain::copy_file`]; the index is damaged.
    pub fn copy_file(&self, path: &[u8], out: &mut dyn Write) -> Result<u64, StreamError> {
        let (_, node) = self.record(self.find(path)?)?;
        let NodeKind::File(content) = &node.kind else {
            let kind = if node.is_directory() { PathError::IsADirectory } else { PathError::NotAFile };
            return Err(Error::path(path, kind).into());
        };
        copy_content(&mut DataReader::new(&self.inputs, &self.absent), content, path, out)
    }

    /// Returns the number of the record of a path.
    fn find(&self, path: &[u8]) -> Result<u64, StreamError> {
        let (mut low, mut high) = (0, self.records);
        while low < high {
            let middle = low + (high - low) / 2;
            let (found, _) = self.record(middle)?;
            match names(&found).cmp(names(path)) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(Error::path(&[b"/", path].concat(), PathError::NotFound).into())
    }

    fn damaged(&self) -> StreamError {
        StreamError::Invalid(format!("{}: the index is damaged: make it anew", self.name))
    }

    fn record(&self, number: u64) -> Result<(Vec<u8>, StreamNode), StreamError> {
        let fill = |buffer: &mut [u8], at: u64| {
            self.file.read_exact_at(buffer, at).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => self.damaged(),
                _ => StreamError::host(&self.name, error),
            })
        };
        let mut offset = [0; 8];
        fill(&mut offset, self.table + 8 * number)?;
        let offset = u64::from_le_bytes(offset);
        let mut head = [0; 8];
        fill(&mut head, offset)?;
        let mut head = ByteReader::new(&head);
        let (length, checksum) = (head.u32().unwrap_or(0), head.u32().unwrap_or(0));
        let within = offset.checked_add(8 + u64::from(length)).is_some_and(|end| end <= self.table);
        if length > LONGEST_RECORD || !within {
            return Err(self.damaged());
        }
        let mut bytes = vec![0; length as usize];
        fill(&mut bytes, offset + 8)?;
        if crc32c_raw(0, &bytes) != checksum {
            return Err(self.damaged());
        }
        parse_record(&bytes, self.inputs.len() as u32).ok_or_else(|| self.damaged())
    }
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// Returns a checksum of the first and the last bytes of a stream.
fn ends_checksum(input: &StreamInput) -> Result<u32, StreamError> {
    use std::io::Read;
    let (mut bytes, length) = (Vec::new(), input.length());
    let read = |start: u64, end: u64, bytes: &mut Vec<u8>| {
        let read = input.range(start, end).read_to_end(bytes);
        read.map(drop).map_err(|source| StreamError::host(input.name(), source))
    };
    read(0, length.min(ENDS), &mut bytes)?;
    read(length.saturating_sub(ENDS), length, &mut bytes)?;
    Ok(crc32c_raw(0, &bytes))
}

/// The head and the end of an index.
struct Head {
    streams: Vec<(u64, u32)>,
    absent: Vec<Uuid>,
    subvolume: Vec<u8>,
    records: u64,
    table: u64,
}

/// Returns `None` if the file is no index, or damaged.
fn read_head(file: &File, length: u64) -> io::Result<Option<Head>> {
    if length < 28 + FOOTER {
        return Ok(None);
    }
    let mut start = [0; 24];
    file.read_exact_at(&mut start, 0)?;
    let mut reader = ByteReader::new(&start[16..]);
    let (version, head_length) = (reader.u32(), reader.u32().unwrap_or(u32::MAX));
    if &start[..16] != MAGIC || version != Some(VERSION) || head_length > LONGEST_HEAD {
        return Ok(None);
    }
    if 28 + u64::from(head_length) + FOOTER > length {
        return Ok(None);
    }
    let mut head = vec![0; head_length as usize + 4];
    file.read_exact_at(&mut head, 24)?;
    let (head, checksum) = head.split_at(head_length as usize);
    let mut end = [0; FOOTER as usize];
    file.read_exact_at(&mut end, length - FOOTER)?;
    let good = crc32c_raw(0, head).to_le_bytes() == *checksum
        && crc32c_raw(0, &end[..16]).to_le_bytes() == end[16..20]
        && &end[20..] == MAGIC;
    let mut end = ByteReader::new(&end);
    let (Some(records), Some(table), true) = (end.u64(), end.u64(), good) else { return Ok(None) };
    let whole = records.checked_mul(8).and_then(|bytes| bytes.checked_add(table)) == Some(length - FOOTER);
    Ok(parse_head(head, records, table).filter(|_| whole))
}

fn parse_head(bytes: &[u8], records: u64, table: u64) -> Option<Head> {
    let mut reader = ByteReader::new(bytes);
    let streams = (0..reader.u32()?).map(|_| Some((reader.u64()?, reader.u32()?))).collect::<Option<_>>()?;
    let absent = (0..reader.u32()?).map(|_| reader.uuid()).collect::<Option<_>>()?;
    Some(Head { streams, absent, subvolume: reader.bytes()?.to_vec(), records, table })
}

enum WriteError {
    Host(io::Error),
    Stream(StreamError),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

impl From<StreamError> for WriteError {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

struct IndexWriter {
    out: BufWriter<tempfile::NamedTempFile>,
    /// Bytes written.
    at: u64,
}

impl IndexWriter {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn write(&mut self, chain: &StreamChain, part: usize) -> Result<u64, WriteError> {
        let tree = chain.tree(part)?;
        let mut head = ByteWriter::default();
        head.u32(chain.inputs().len() as u32);
        for input in chain.inputs() {
            head.u64(input.length());
            head.u32(ends_checksum(input)?);
        }
        head.u32(chain.absent.len() as u32);
        chain.absent.iter().for_each(|uuid| head.raw(uuid.as_bytes()));
        head.bytes(&chain.parts()[part].name);
        let head = head.into_bytes();
        self.put(MAGIC)?;
        self.put(&VERSION.to_le_bytes())?;
        self.put(&(head.len() as u32).to_le_bytes())?;
        self.put(&head)?;
        self.put(&crc32c_raw(0, &head).to_le_bytes())?;
        let mut offsets = Vec::new();
        let mut walk = Walk::whole(tree);
        while let Some((path, number)) = walk.step()? {
            let record = write_record(&path, tree.node(number));
            if record.len() > LONGEST_RECORD as usize {
                let text = format!("/{}: too many extents for an index", String::from_utf8_lossy(&path));
                return Err(StreamError::Invalid(text).into());
            }
            offsets.push(self.at);
            self.put(&(record.len() as u32).to_le_bytes())?;
            self.put(&crc32c_raw(0, &record).to_le_bytes())?;
            self.put(&record)?;
        }
        let mut end = ByteWriter::default();
        end.u64(offsets.len() as u64);
        end.u64(self.at);
        let end = end.into_bytes();
        for offset in &offsets {
            self.put(&offset.to_le_bytes())?;
        }
        self.put(&end)?;
        self.put(&crc32c_raw(0, &end).to_le_bytes())?;
        self.put(MAGIC)?;
        Ok(offsets.len() as u64)
    }
}

fn write_record(path: &[u8], node: &StreamNode) -> Vec<u8> {
    let mut out = ByteWriter::default();
    out.bytes(path);
    out.u64(node.inode);
    [node.links, node.mode, node.uid, node.gid].iter().for_each(|number| out.u32(*number));
    out.u32(u32::from(node.times.is_some()));
    if let Some(times) = node.times {
        let otime = times.otime.unwrap_or_default();
        for time in [times.atime, times.mtime, times.ctime, otime] {
            out.u64(time.seconds as u64);
            out.u32(time.nanoseconds);
        }
        out.u32(u32::from(times.otime.is_some()));
    }
    out.u32(node.xattrs.len() as u32);
    for (name, value) in &node.xattrs {
        out.bytes(name);
        out.bytes(value);
    }
    match &node.kind {
        NodeKind::Directory { .. } => out.u32(0),
        NodeKind::File(content) => {
            out.u32(1);
            out.u64(content.size);
            out.u32(content.extents.len() as u32);
            for (at, piece) in &content.extents {
                out.u64(*at);
                out.u64(piece.length);
                let (tag, number, place, skip) = match piece.origin {
                    Origin::Written { stream, at, protocol, skip } => (protocol as u32, stream, at, skip),
                    Origin::Absent(source) => (100, source, 0, 0),
                    Origin::Unsent => (101, 0, 0, 0),
                };
                out.u32(tag);
                out.u32(number);
                out.u64(place);
                out.u64(skip);
            }
        }
        NodeKind::Symlink(target) => {
            out.u32(2);
            out.bytes(target);
        }
        NodeKind::Fifo => out.u32(3),
        NodeKind::Socket => out.u32(4),
        NodeKind::Character { major, minor } => {
            [5, *major, *minor].iter().for_each(|number| out.u32(*number))
        }
        NodeKind::Block { major, minor } => [6, *major, *minor].iter().for_each(|number| out.u32(*number)),
    }
    out.into_bytes()
}

fn parse_record(bytes: &[u8], streams: u32) -> Option<(Vec<u8>, StreamNode)> {
    let mut reader = ByteReader::new(bytes);
    let path = reader.bytes()?.to_vec();
    let inode = reader.u64()?;
    let [links, mode, uid, gid] = [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
    let mut times = None;
    if reader.u32()? != 0 {
        let mut time = || Some(Timespec { seconds: reader.u64()? as i64, nanoseconds: reader.u32()? });
        let [atime, mtime, ctime, otime] = [time()?, time()?, time()?, time()?];
        let otime = (reader.u32()? != 0).then_some(otime);
        times = Some(Times { atime, mtime, ctime, otime });
    }
    let mut xattrs = BTreeMap::new();
    for _ in 0..reader.u32()? {
        xattrs.insert(reader.bytes()?.into(), reader.bytes()?.into());
    }
    let kind = match reader.u32()? {
        0 => NodeKind::Directory { entries: BTreeMap::new(), parent: 0 },
        1 => NodeKind::File(parse_content(&mut reader, streams)?),
        2 => NodeKind::Symlink(reader.bytes()?.into()),
        3 => NodeKind::Fifo,
        4 => NodeKind::Socket,
        5 => NodeKind::Character { major: reader.u32()?, minor: reader.u32()? },
        6 => NodeKind::Block { major: reader.u32()?, minor: reader.u32()? },
        _ => return None,
    };
    let mut node = StreamNode::new(kind, inode, mode, &Budget::new(u64::MAX));
    (node.links, node.uid, node.gid, node.times, node.xattrs) = (links, uid, gid, times, xattrs);
    Some((path, node))
}

fn parse_content(reader: &mut ByteReader<'_>, streams: u32) -> Option<StreamContent> {
    let mut content = StreamContent { size: reader.u64()?, extents: BTreeMap::new() };
    let mut end = 0;
    for _ in 0..reader.u32()? {
        let (at, length) = (reader.u64()?, reader.u64()?);
        let (tag, number, place, skip) = (reader.u32()?, reader.u32()?, reader.u64()?, reader.u64()?);
        let written = |protocol| Origin::Written { stream: number, at: place, protocol, skip };
        let origin = match tag {
            1 if number < streams => written(Protocol::V1),
            2 if number < streams => written(Protocol::V2),
            100 => Origin::Absent(number),
            101 => Origin::Unsent,
            _ => return None,
        };
        // In order, apart, and within the file.
        if at < end || length == 0 || at.checked_add(length)? > content.size {
            return None;
        }
        end = at + length;
        content.extents.insert(at, StreamPiece { length, origin });
    }
    Some(content)
}

//! Objects that become a stream again.
//!
//! Owns [`Pieces`], which reads at any place, and [`PartReader`], which reads from the start.

use crate::error::{BackupError, Result};
use crate::manifest::{MOST_DATA, Manifest, StoredObject};
use crate::shared::Shared;
use papilio::format::send_stream::{COMMAND_HEADER_SIZE, CommandHeader, STREAM_HEADER_SIZE};
use papilio::stream::StreamSource;
use papilio::{SendCommand, SendProtocol};
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// Objects that are kept after they were read.
const KEPT: usize = 4;

/// Reads one object with a part of a stream.
pub fn read_part(shared: &Shared, object: &StoredObject) -> Result<Vec<u8>> {
    let place = object.place();
    let content = shared.open_named(&place, MOST_DATA)?;
    match content.len() as u64 == u64::from(object.1) {
        true => Ok(content),
        false => {
            let (have, need) = (content.len(), object.1);
            Err(BackupError::damaged(&place, format!("{have} bytes of content in place of {need}")))
        }
    }
}

/// A stream that lies in objects.
#[derive(Debug)]
pub struct Pieces {
    shared: Arc<Shared>,
    /// Where each object starts in the stream.
    starts: Vec<u64>,
    objects: Vec<StoredObject>,
    length: u64,
    /// The objects that were read last, the newest one last.
    kept: Mutex<Vec<(usize, Arc<Vec<u8>>)>>,
}

impl Pieces {
    /// Names the objects of a manifest's stream.
    pub fn new(shared: &Arc<Shared>, manifest: &Manifest) -> Self {
        let mut at = 0;
        let starts = manifest.stream.iter().map(|object| {
            at += u64::from(object.1);
            at - u64::from(object.1)
        });
        Self {
            shared: Arc::clone(shared),
            starts: starts.collect(),
            objects: manifest.stream.clone(),
            length: manifest.stream_bytes,
            kept: Mutex::default(),
        }
    }

    fn object(&self, index: usize) -> Result<Arc<Vec<u8>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(known, _)| *known == index) {
            let found = kept.remove(at);
            let content = Arc::clone(&found.1);
            kept.push(found);
            return Ok(content);
        }
        let content = Arc::new(read_part(&self.shared, &self.objects[index])?);
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((index, Arc::clone(&content)));
        Ok(content)
    }
}

impl StreamSource for Pieces {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (mut at, mut done) = (offset, 0);
        while done < buffer.len() {
            let index = self.starts.partition_point(|start| *start <= at) - 1;
            let content = self.object(index).map_err(BackupError::into_io)?;
            let skip = (at - self.starts[index]) as usize;
            let count = (content.len() - skip).min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&content[skip..skip + count]);
            done += count;
            at += count as u64;
        }
        Ok(())
    }
}

/// The contents of objects, one behind another.
#[derive(Debug)]
pub struct PartReader<'a> {
    shared: &'a Shared,
    objects: std::slice::Iter<'a, StoredObject>,
    content: Vec<u8>,
    at: usize,
}

impl<'a> PartReader<'a> {
    /// Reads these objects.
    pub fn new(shared: &'a Shared, objects: &'a [StoredObject]) -> Self {
        Self { shared, objects: objects.iter(), content: Vec::new(), at: 0 }
    }

    /// Replaces the name of the subvolume in the first command of a stream.
    ///
    /// # Errors
    /// The objects cannot be read, or are no stream.
    pub fn rename(&mut self, name: &[u8]) -> Result<()> {
        let wrong = |error: papilio::SendStreamError| BackupError::Invalid(format!("send stream: {error}"));
        let host = |source| BackupError::Store { object: "send stream".into(), source };
        let mut header = [0; STREAM_HEADER_SIZE];
        self.read_exact(&mut header).map_err(host)?;
        let protocol = SendProtocol::parse(&header).map_err(wrong)?;
        let mut first = [0; COMMAND_HEADER_SIZE];
        self.read_exact(&mut first).map_err(host)?;
        let first = CommandHeader::parse(&first, protocol, header.len() as u64).map_err(wrong)?;
        let mut attributes = vec![0; first.length];
        self.read_exact(&mut attributes).map_err(host)?;
        let mut command =
            SendCommand::parse(protocol, &first, &attributes, header.len() as u64).map_err(wrong)?;
        match &mut command {
            SendCommand::Subvol { path, .. } | SendCommand::Snapshot { path, .. } => *path = name.to_vec(),
            _ => return Err(BackupError::Invalid("send stream: it does not begin with a subvolume".into())),
        }
        let mut bytes = header.to_vec();
        command.append_to(protocol, &mut bytes).map_err(wrong)?;
        bytes.extend_from_slice(&self.content[self.at..]);
        (self.content, self.at) = (bytes, 0);
        Ok(())
    }
}

impl Read for PartReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.content.len() {
            let Some(object) = self.objects.next() else { return Ok(0) };
            self.content = read_part(self.shared, object).map_err(BackupError::into_io)?;
            self.at = 0;
        }
        let count = buffer.len().min(self.content.len() - self.at);
        buffer[..count].copy_from_slice(&self.content[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

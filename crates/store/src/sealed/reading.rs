//! Reads of encrypted objects: which chunks a range needs, and their content as a stream.

use super::chunks::{CHUNK, Name, STORED, Sealing, content_length};
use super::fault::SealFault;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetRange, GetResult, GetResultPayload, Result};
use slatedb::bytes::{Buf, Bytes, BytesMut};
use std::ops::Range;
use std::sync::Arc;

/// Returns the range of the stored object that has a range of the content.
pub(super) fn stored_range(content: &GetRange) -> GetRange {
    match content {
        GetRange::Bounded(range) => {
            GetRange::Bounded(range.start / CHUNK * STORED..range.end.div_ceil(CHUNK) * STORED)
        }
        GetRange::Offset(offset) => GetRange::Offset(offset / CHUNK * STORED),
        // The last chunk may be short, and the first one is wanted from its begin on.
        GetRange::Suffix(length) => GetRange::Suffix((length / CHUNK + 2).saturating_mul(STORED)),
    }
}

/// Chunks that are being read.
struct Reading {
    sealing: Arc<Sealing>,
    name: Name,
    path: Path,
    input: BoxStream<'static, Result<Bytes>>,
    buffer: BytesMut,
    /// Bytes before the first chunk that are still to come.
    skip: u64,
    next: u64,
    /// The chunk after the last one that is wanted.
    end: u64,
    /// Bytes of the stored object.
    stored: u64,
    /// The content that is wanted.
    content: Range<u64>,
}

impl Reading {
    /// Returns the content of the next chunks.
    async fn advance(mut self) -> Result<Option<(Bytes, Self)>> {
        if self.next >= self.end {
            return Ok(None);
        }
        let mut found: Vec<u8> = Vec::new();
        loop {
            let skipped = self.skip.min(self.buffer.len() as u64);
            self.buffer.advance(skipped as usize);
            self.skip -= skipped;
            while self.next < self.end && self.open_next(&mut found)? {}
            if !found.is_empty() || self.next >= self.end {
                return Ok(Some((found.into(), self)));
            }
            match self.input.next().await {
                Some(piece) => self.buffer.extend_from_slice(&piece?),
                None => return Err(SealFault::chunk(&self.path, self.next).into()),
            }
        }
    }

    /// Opens the next chunk, if all of it has arrived.
    fn open_next(&mut self, found: &mut Vec<u8>) -> Result<bool> {
        let start = self.next * STORED;
        let length = (self.stored - start).min(STORED);
        if self.skip > 0 || (self.buffer.len() as u64) < length {
            return Ok(false);
        }
        let chunk = self.buffer.split_to(length as usize);
        let is_last = start + length == self.stored;
        let content = self.sealing.open(&self.name, self.next, is_last, &chunk);
        let content = content.ok_or_else(|| SealFault::chunk(&self.path, self.next))?;
        let at = self.next * CHUNK;
        let from = self.content.start.clamp(at, at + content.len() as u64) - at;
        let to = self.content.end.clamp(at, at + content.len() as u64) - at;
        found.extend_from_slice(&content[from as usize..to as usize]);
        self.next += 1;
        Ok(true)
    }
}

/// Turns the answer to a request for a [`stored_range`] into that to the request for content.
pub(super) fn open_answer(
    sealing: Arc<Sealing>,
    name: Name,
    path: &Path,
    wanted: Option<&GetRange>,
    answer: GetResult,
) -> Result<GetResult> {
    let stored = answer.meta.size;
    let length = content_length(stored).ok_or_else(|| SealFault::length(path, stored))?;
    let content = match wanted {
        None => 0..length,
        Some(range) => range.as_range(length).map_err(|error| SealFault::new(path, error.to_string()))?,
    };
    let first = content.start / CHUNK;
    let skip = (first * STORED).checked_sub(answer.range.start);
    let skip =
        skip.ok_or_else(|| SealFault::new(path, "the store sent another range than it was asked for"))?;
    let meta = object_store::ObjectMeta { size: length, ..answer.meta.clone() };
    let (attributes, extensions) = (answer.attributes.clone(), answer.extensions.clone());
    let reading = Reading {
        sealing,
        name,
        path: path.clone(),
        input: answer.into_stream(),
        buffer: BytesMut::new(),
        skip,
        next: first,
        end: content.end.div_ceil(CHUNK).max(first + 1),
        stored,
        content: content.clone(),
    };
    let stream = futures_util::stream::try_unfold(reading, Reading::advance).boxed();
    Ok(GetResult { payload: GetResultPayload::Stream(stream), meta, range: content, attributes, extensions })
}

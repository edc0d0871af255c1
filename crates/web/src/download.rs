//! GET and HEAD of files: whole, in ranges, conditionally.
//!
//! **Invariant**: a body has the bytes of one open file and the length that was announced. A file
//! that is replaced meanwhile stays open; one that shrinks, or a sector that fails its checksum,
//! ends the connection.

use crate::conditions::{Validators, Verdict, evaluate};
use crate::head::Head;
use crate::ranges::Ranges;
use crate::reply::{Content, Refusal, Reply};
use crate::text::{disposition, media_type};
use papilio::{File, Inode};
use std::io::{self, Write};

/// Bytes that are read at once.
const STEP: u64 = 256 << 10;

/// Returns the answer with the content of a file.
pub(crate) fn file(
    head: &Head,
    inode: &Inode,
    name: &[u8],
    is_download: bool,
) -> Result<Reply<'static>, Refusal> {
    let file = inode.open()?;
    let metadata = file.metadata()?;
    let validators = Validators::of(&metadata);
    let described = |reply: Reply<'static>| {
        reply
            .header("ETag", validators.etag.clone())
            .header("Last-Modified", validators.last_modified.clone())
    };
    match evaluate(head, Some(&validators))? {
        Verdict::GoOn => {}
        Verdict::NotModified => return Ok(described(Reply::new(304))),
        Verdict::Failed => return Err(Refusal::new(412, "the file is not the one that was expected")),
    }
    let size = metadata.size();
    let kind = media_type(name);
    let shown = disposition(if is_download { "attachment" } else { "inline" }, name);
    let described = |reply| {
        described(reply).header("Content-Disposition", shown.clone()).header("Accept-Ranges", "bytes")
    };
    let wanted = head.one("range")?.filter(|_| validators.continues(head));
    match wanted.map_or(Ranges::Whole, |value| Ranges::parse(value, size)) {
        Ranges::Whole => {
            let write = move |out: &mut dyn Write| copy(&file, 0, size, out);
            Ok(described(Reply::foreign(200, kind, Content::Sized(size, Box::new(write)))))
        }
        Ranges::Unsatisfiable => {
            let reply = Reply::text(416, "the file has no such bytes\n");
            Ok(described(reply).header("Content-Range", format!("bytes */{size}")))
        }
        Ranges::Parts(parts) => match parts[..] {
            [(start, end)] => {
                let write = move |out: &mut dyn Write| copy(&file, start, end, out);
                let reply = Reply::foreign(206, kind, Content::Sized(end - start, Box::new(write)));
                Ok(described(reply).header("Content-Range", format!("bytes {start}-{}/{size}", end - 1)))
            }
            _ => Ok(described(several(file, parts, size, kind))),
        },
    }
}

/// Returns several ranges as one body of parts (`multipart/byteranges`, RFC 9110, 14.6).
fn several(file: File, parts: Vec<(u64, u64)>, size: u64, kind: &'static str) -> Reply<'static> {
    // The length before each part ends it, whatever the part contains.
    let boundary = format!("papilio-{:x}-{:x}", file.inode().number().0, size);
    let titles: Vec<String> = parts
        .iter()
        .map(|(start, end)| {
            format!(
                "\r\n--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: bytes {start}-{}/{size}\r\n\r\n",
                end - 1
            )
        })
        .collect();
    let last = format!("\r\n--{boundary}--\r\n");
    let data: u64 = parts.iter().map(|(start, end)| end - start).sum();
    let length = data + titles.iter().chain([&last]).map(|title| title.len() as u64).sum::<u64>();
    let write = move |out: &mut dyn Write| {
        for (title, (start, end)) in titles.iter().zip(&parts) {
            out.write_all(title.as_bytes())?;
            copy(&file, *start, *end, out)?;
        }
        out.write_all(last.as_bytes())
    };
    let kind = format!("multipart/byteranges; boundary={boundary}");
    Reply::foreign(206, &kind, Content::Sized(length, Box::new(write)))
}

/// Writes the bytes of a file from `start` to `end`.
fn copy(file: &File, start: u64, end: u64, out: &mut dyn Write) -> io::Result<()> {
    let mut buffer = vec![0; STEP.min(end - start) as usize];
    let mut at = start;
    while at < end {
        let wanted = (end - at).min(STEP) as usize;
        let read = file.read_at(&mut buffer[..wanted], at).map_err(|error| {
            tracing::warn!("a download ends early: {error}");
            io::Error::other(error)
        })?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.write_all(&buffer[..read])?;
        at += read as u64;
    }
    Ok(())
}

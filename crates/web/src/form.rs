//! `Multipart`: the forms of pages, `multipart/form-data`, read piece by piece.
//!
//! **Invariants**
//! - The reader keeps at most a piece of a part in memory.
//! - A form without its last boundary is an error, so that a broken upload stores nothing.
//!
//! Source: RFC 7578, RFC 2046, 5.1.

use crate::head::Head;
use std::io::{self, Read};

/// The most bytes of the headers of a part.
const HEADERS_MOST: usize = 8 << 10;
/// The longest boundary (RFC 2046).
const BOUNDARY_MOST: usize = 70;
const STEP: usize = 64 << 10;

/// A form that is being read.
pub(crate) struct Multipart<'b> {
    body: &'b mut dyn Read,
    buffer: Vec<u8>,
    /// The line break and the boundary before each part.
    delimiter: Vec<u8>,
    /// Whether the data of the current part is at its end.
    is_at_end: bool,
}

/// The headers of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) file_name: Option<Vec<u8>>,
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the form is malformed")
}

/// Returns the boundary of a form.
fn boundary(head: &Head) -> Option<&str> {
    let value = head.get("content-type")?;
    let (kind, parameters) = value.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let found = parameters.split(';').find_map(|one| one.trim().strip_prefix("boundary="))?;
    let found = found.strip_prefix('"').and_then(|found| found.strip_suffix('"')).unwrap_or(found);
    let is_right =
        (1..=BOUNDARY_MOST).contains(&found.len()) && found.bytes().all(|byte| (b' '..0x7f).contains(&byte));
    is_right.then_some(found)
}

impl<'b> Multipart<'b> {
    /// Begins to read a form; `None` if the request has none.
    pub(crate) fn new(head: &Head, body: &'b mut dyn Read) -> Option<Self> {
        let delimiter = [b"\r\n--", boundary(head)?.as_bytes()].concat();
        // The first boundary needs no line break before it.
        Some(Self { body, buffer: b"\r\n".to_vec(), delimiter, is_at_end: false })
    }

    fn fill(&mut self) -> io::Result<()> {
        let length = self.buffer.len();
        self.buffer.resize(length + STEP, 0);
        let read = self.body.read(&mut self.buffer[length..]);
        self.buffer.truncate(length + *read.as_ref().unwrap_or(&0));
        match read? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Skips the rest of the part, and returns the headers of the next one; `None` behind the last.
    ///
    /// # Errors
    /// The form is malformed, or its body ends early.
    pub(crate) fn next_part(&mut self) -> io::Result<Option<Part>> {
        let mut rest = [0; 4096];
        while self.read(&mut rest)? > 0 {}
        while self.buffer.len() < self.delimiter.len() + 2 {
            self.fill()?;
        }
        self.buffer.drain(..self.delimiter.len());
        if self.buffer.starts_with(b"--") {
            return Ok(None);
        }
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at;
            }
            if self.buffer.len() > HEADERS_MOST {
                return Err(malformed());
            }
            self.fill()?;
        };
        if end > HEADERS_MOST || !self.buffer.starts_with(b"\r\n") {
            return Err(malformed());
        }
        let part = parse_headers(&self.buffer[2..end.max(2)]).ok_or_else(malformed)?;
        self.buffer.drain(..end + 2);
        // The line break behind the headers may be the one of the boundary of an empty part.
        while self.delimiter.starts_with(&self.buffer) && self.buffer.len() < self.delimiter.len() {
            self.fill()?;
        }
        if !self.buffer.starts_with(&self.delimiter) {
            self.buffer.drain(..2);
        }
        self.is_at_end = false;
        Ok(Some(part))
    }
}

impl Read for Multipart<'_> {
    /// Reads the data of the current part.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() || self.is_at_end {
            return Ok(0);
        }
        loop {
            let end = find(&self.buffer, &self.delimiter);
            // Without a boundary, one may begin in the last bytes.
            let sure = end.unwrap_or((self.buffer.len() + 1).saturating_sub(self.delimiter.len()));
            if sure > 0 {
                let count = sure.min(out.len());
                out[..count].copy_from_slice(&self.buffer[..count]);
                self.buffer.drain(..count);
                return Ok(count);
            }
            if end.is_some() {
                self.is_at_end = true;
                return Ok(0);
            }
            self.fill()?;
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut from = 0;
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(wanted) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

fn parse_headers(bytes: &[u8]) -> Option<Part> {
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        if !line[..at].eq_ignore_ascii_case(b"content-disposition") {
            continue;
        }
        let name = parameter(&line[at + 1..], b"name")?;
        let file_name = parameter(&line[at + 1..], b"filename");
        return Some(Part { name: String::from_utf8(name).ok()?, file_name });
    }
    None
}

/// Returns a quoted parameter. Browsers escape quotes and line breaks in it by percent signs
/// (the HTML standard, "multipart/form-data encoding algorithm").
fn parameter(value: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let wanted = [b"; ", name, b"=\""].concat();
    let start = find(value, &wanted)? + wanted.len();
    let length = value[start..].iter().position(|byte| *byte == b'"')?;
    let mut decoded = Vec::with_capacity(length);
    let mut rest = &value[start..start + length];
    while let Some((byte, after)) = rest.split_first() {
        let escapes: [(&[u8], u8); 3] = [(b"%22", b'"'), (b"%0D", b'\r'), (b"%0A", b'\n')];
        match escapes.iter().find(|(escape, _)| rest.starts_with(escape)) {
            Some((escape, meant)) => {
                decoded.push(*meant);
                rest = &rest[escape.len()..];
            }
            None => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Slow<'s>(&'s [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(out.len());
            out[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn head(boundary: &str) -> Head {
        let text = format!(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary={boundary}\r\n\r\n"
        );
        Head::parse(text.as_bytes()).unwrap().unwrap().0
    }

    fn parts(body: &[u8], step: usize) -> io::Result<Vec<(Part, Vec<u8>)>> {
        let (head, mut body) = (head("XX"), Slow(body, step));
        let mut form = Multipart::new(&head, &mut body).unwrap();
        let mut parts = Vec::new();
        while let Some(part) = form.next_part()? {
            let mut data = Vec::new();
            form.read_to_end(&mut data)?;
            parts.push((part, data));
        }
        Ok(parts)
    }

    #[test]
    fn parts_are_read_however_they_arrive() {
        let body = b"preamble\r\n--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a%22b.txt\"\r\n\
            Content-Type: text/plain\r\n\r\none\r\n--X\r\n\r\n--XX\r\ncontent-disposition: form-data; name=\"file\"; \
            filename=\"\"\r\n\r\n\r\n--XX\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nv\r\n--XX--\r\n";
        for step in [1, 2, 3, 7, 1000] {
            let found = parts(body, step).unwrap();
            assert_eq!(found.len(), 3, "{step}");
            assert_eq!(found[0].0.file_name.as_deref(), Some(&b"a\"b.txt"[..]));
            assert_eq!(found[0].1, b"one\r\n--X\r\n");
            assert_eq!((found[1].0.file_name.as_deref(), &found[1].1[..]), (Some(&b""[..]), &b""[..]));
            assert_eq!((found[2].0.name.as_str(), &found[2].1[..]), ("name", &b"v"[..]));
        }
        let direct = b"--XX\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n--XX--";
        assert_eq!(parts(direct, 5).unwrap()[0].1, b"");
    }

    #[test]
    fn broken_forms_are_errors() {
        for bad in [
            &b""[..],
            b"--XX",
            b"--XX\r\n",
            b"--XXcontent-disposition: form-data; name=\"n\"\r\n\r\nx\r\n--XX--",
            b"--XX\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\nno end",
            b"--XX\r\nContent-Disposition: form-data\r\n\r\nx\r\n--XX--",
            b"--XX\r\nNothing\r\n\r\nx\r\n--XX--",
        ] {
            assert!(parts(bad, 9).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        let long = [b"--XX\r\n".to_vec(), vec![b'a'; 20 << 10]].concat();
        assert!(parts(&long, 4096).is_err());
        for bad in ["", "\"\"", &"b".repeat(71), "\"ü\""] {
            let (head, mut body) = (head(bad), Slow(b"", 1));
            assert!(Multipart::new(&head, &mut body).is_none(), "{bad}");
        }
    }
}

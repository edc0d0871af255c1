//! `Reply`: an answer, and how it is written; `Refusal`: why a request is not carried out.
//!
//! **Invariants**
//! - Every answer tells browsers to guess no types, to show it in no frame, and to send no address
//!   of it elsewhere.
//! - A body that cannot be written whole ends the connection before its announced end.
//! - No header has a control character.

use crate::dates;
use crate::head::{Head, Method};
use crate::text::escaped;
use crate::wire::{PIECE, Wire};
use std::io::{self, Write};
use std::time::Duration;

/// The policy of pages: they load nothing but the style and the pictures of this server.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
                           frame-ancestors 'none'; base-uri 'none'";
/// The policy of everything that comes out of the file system: it is not of this origin.
const FOREIGN_POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
                              media-src 'self'; frame-ancestors 'none'";

/// Writes a body of unknown length.
pub(crate) type Writing<'r> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'r>;

pub(crate) enum Content<'r> {
    None,
    Bytes(Vec<u8>),
    /// A body of this length.
    Sized(u64, Writing<'r>),
    /// A body of unknown length. A client of HTTP/1.0 cannot tell its end from a lost connection.
    Stream(Writing<'r>),
}

/// An answer.
pub(crate) struct Reply<'r> {
    pub(crate) status: u16,
    headers: Vec<(&'static str, String)>,
    pub(crate) content: Content<'r>,
}

impl<'r> Reply<'r> {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), content: Content::None }
    }

    /// A page of this server.
    pub(crate) fn page(status: u16, content: Content<'r>) -> Self {
        Self::with_content(status, "text/html; charset=utf-8", content)
            .header("Content-Security-Policy", PAGE_POLICY)
    }

    /// Something out of the file system, which must not act as a page of this server.
    pub(crate) fn foreign(status: u16, media_type: &str, content: Content<'r>) -> Self {
        Self::with_content(status, media_type, content).header("Content-Security-Policy", FOREIGN_POLICY)
    }

    /// Properties and errors of WebDAV.
    pub(crate) fn xml(status: u16, content: Content<'r>) -> Self {
        Self::with_content(status, "application/xml; charset=utf-8", content)
            .header("Content-Security-Policy", FOREIGN_POLICY)
    }

    pub(crate) fn text(status: u16, text: impl Into<String>) -> Self {
        let bytes = Content::Bytes(text.into().into_bytes());
        Self::with_content(status, "text/plain; charset=utf-8", bytes)
            .header("Content-Security-Policy", FOREIGN_POLICY)
    }

    pub(crate) fn with_content(status: u16, media_type: &str, content: Content<'r>) -> Self {
        Self { content, ..Self::new(status) }.header("Content-Type", media_type)
    }

    #[must_use]
    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        let value: String = value.into();
        let value = value.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        self.headers.push((name, value));
        self
    }

    /// Sends the answer to a request. Returns whether the connection can go on.
    ///
    /// # Errors
    /// The client takes no more, or the body could not be made whole: the connection must end.
    pub(crate) fn send(
        self,
        request: Option<&Head>,
        goes_on: bool,
        wire: &mut Wire<'_>,
        time: Duration,
    ) -> io::Result<bool> {
        let is_old = request.is_some_and(|head| head.is_old);
        let (mut status, mut content) = (self.status, self.content);
        if is_old && status == 200 && matches!(content, Content::Stream(_)) {
            let is_page = self.headers.iter().any(|(_, value)| value.starts_with("text/html"));
            if !is_page {
                status = 505;
                content =
                    Content::Bytes(b"HTTP/1.1 is needed: only there an end is told from a loss\n".to_vec());
            }
        }
        let length = match &content {
            Content::None if matches!(status, 204 | 304) => None,
            Content::None => Some(0),
            Content::Bytes(bytes) => Some(bytes.len() as u64),
            Content::Sized(length, _) => Some(*length),
            Content::Stream(_) => None,
        };
        let is_chunked = matches!(content, Content::Stream(_)) && !is_old;
        let goes_on =
            goes_on && !wire.connection().is_ending() && (length.is_some() || is_chunked || status < 400);
        let goes_on = goes_on && !(matches!(content, Content::Stream(_)) && is_old);
        let mut head =
            format!("HTTP/1.1 {status} {}\r\nDate: {}\r\n", reason(status), dates::http(dates::now()));
        let mut add = |name: &str, value: &str| {
            for part in [name, ": ", value, "\r\n"] {
                head.push_str(part);
            }
        };
        for (name, value) in &self.headers {
            add(name, value);
        }
        add("X-Content-Type-Options", "nosniff");
        // Stricter ones would take the origin from the forms of pages.
        add("Referrer-Policy", "same-origin");
        add("Cross-Origin-Resource-Policy", "same-origin");
        if !self.headers.iter().any(|(name, _)| *name == "Cache-Control") {
            add("Cache-Control", "private, no-cache");
        }
        if let Some(length) = length {
            add("Content-Length", &length.to_string());
        }
        if is_chunked {
            add("Transfer-Encoding", "chunked");
        }
        add("Connection", if goes_on { "keep-alive" } else { "close" });
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        if request.is_some_and(|head| head.method == Method::Head) {
            wire.send(&bytes, time)?;
            return Ok(goes_on);
        }
        match content {
            Content::None => wire.send(&bytes, time)?,
            Content::Bytes(body) => {
                bytes.extend(body);
                wire.send(&bytes, time)?;
            }
            Content::Sized(length, write) => {
                wire.send(&bytes, time)?;
                let mut sized = Pieces { wire, time, form: Form::Sized(length), buffer: Vec::new() };
                write(&mut sized)?;
                sized.end()?;
            }
            Content::Stream(write) => {
                wire.send(&bytes, time)?;
                let form = if is_chunked { Form::Chunked } else { Form::UntilClosed };
                let mut chunked = Pieces { wire, time, form, buffer: Vec::new() };
                write(&mut chunked)?;
                chunked.end()?;
            }
        }
        Ok(goes_on)
    }
}

#[derive(Clone, Copy)]
enum Form {
    /// This many bytes are missing.
    Sized(u64),
    Chunked,
    UntilClosed,
}

/// Sends a body in pieces.
struct Pieces<'w, 'c> {
    wire: &'w mut Wire<'c>,
    time: Duration,
    form: Form,
    buffer: Vec<u8>,
}

impl Pieces<'_, '_> {
    fn send_buffer(&mut self) -> io::Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        self.send_piece(&buffer)?;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    fn send_piece(&mut self, piece: &[u8]) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        match &mut self.form {
            Form::Sized(left) => {
                *left = left.checked_sub(piece.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
                self.wire.send(piece, self.time)
            }
            Form::UntilClosed => self.wire.send(piece, self.time),
            Form::Chunked => {
                self.wire.send(format!("{:x}\r\n", piece.len()).as_bytes(), self.time)?;
                self.wire.send(piece, self.time)?;
                self.wire.send(b"\r\n", self.time)
            }
        }
    }

    fn end(mut self) -> io::Result<()> {
        self.send_buffer()?;
        match self.form {
            Form::Sized(0) | Form::UntilClosed => Ok(()),
            Form::Sized(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Form::Chunked => self.wire.send(b"0\r\n\r\n", self.time),
        }
    }
}

impl Write for Pieces<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > PIECE {
            self.send_buffer()?;
        }
        if bytes.len() >= PIECE {
            self.send_piece(bytes)?;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_buffer()
    }
}

/// The reason why a request is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) text: String,
    /// The element of WebDAV that names the condition which does not hold (RFC 4918, 16).
    pub(crate) condition: Option<&'static str>,
    /// The resource for which it does not hold.
    href: Option<String>,
    headers: Vec<(&'static str, String)>,
}

impl Refusal {
    pub(crate) fn new(status: u16, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), condition: None, href: None, headers: Vec::new() }
    }

    /// A condition of WebDAV does not hold.
    pub(crate) fn condition(status: u16, condition: &'static str, text: impl Into<String>) -> Self {
        Self { condition: Some(condition), ..Self::new(status, text) }
    }

    /// Names the resource for which the condition does not hold.
    #[must_use]
    pub(crate) fn of(mut self, href: String) -> Self {
        self.href = Some(href);
        self
    }

    #[must_use]
    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the answer: XML for a condition of WebDAV, a page for browsers, otherwise text.
    pub(crate) fn into_reply(self, is_browser: bool) -> Reply<'static> {
        let text = escaped(&self.text);
        let reply = if let Some(condition) = self.condition {
            let href =
                self.href.map_or_else(String::new, |href| format!("<D:href>{}</D:href>", escaped(&href)));
            let xml = format!(
                "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
                 <D:error xmlns:D=\"DAV:\"><D:{condition}>{href}</D:{condition}></D:error>\n"
            );
            Reply::xml(self.status, Content::Bytes(xml.into_bytes()))
        } else if is_browser {
            let title = format!("{} {}", self.status, reason(self.status));
            let html = format!(
                "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
                 <meta name=\"viewport\" content=\"width=device-width\">\n\
                 <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
                 <link rel=\"stylesheet\" href=\"/?view=style\">\n</head>\n<body>\n<main>\n\
                 <h1>{title}</h1>\n<p>{text}</p>\n<p><a href=\"/\">To the files</a></p>\n\
                 </main>\n</body>\n</html>\n"
            );
            Reply::page(self.status, Content::Bytes(html.into_bytes()))
        } else {
            Reply::text(self.status, format!("{}\n", self.text))
        };
        self.headers.into_iter().fold(reply, |reply, (name, value)| reply.header(name, value))
    }
}

/// Returns the words for a status.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        301 => "Moved Permanently",
        303 => "See Other",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        _ => "Status",
    }
}

//! `Head`: the request line and the headers of a request.
//!
//! The crate `httparse` splits the lines. This file decides what they mean, more strictly than the
//! standard allows, so that no proxy in front can understand a request in another way.
//!
//! **Invariants**
//! - A request has one `Host`. It has either no body, one of a known length, or a chunked one.
//! - Lines end in CR LF; no header is continued on a second line.
//! - Nothing is allocated for a head of more than [`HEAD_MOST`] bytes or [`HEADERS_MOST`] headers.
//!
//! Source: RFC 9110, RFC 9112.

use crate::target::Target;

/// The most bytes of a request line with its headers.
pub(crate) const HEAD_MOST: usize = 32 << 10;
/// The most headers.
const HEADERS_MOST: usize = 100;
/// The most bytes of a method's name.
const METHOD_MOST: usize = 20;

/// The faults of a head. Each ends the connection, because it is not known where a next request
/// would begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadFault {
    pub(crate) status: u16,
    pub(crate) reason: &'static str,
}

const fn fault(status: u16, reason: &'static str) -> HeadFault {
    HeadFault { status, reason }
}

/// How long the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
}

/// The methods that the server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Options,
    Post,
    Put,
    Delete,
    Propfind,
    Proppatch,
    Mkcol,
    Copy,
    Move,
    Lock,
    Unlock,
    /// Any other.
    Unknown,
}

impl Method {
    const NAMES: [(&'static str, Self); 13] = [
        ("GET", Self::Get),
        ("HEAD", Self::Head),
        ("OPTIONS", Self::Options),
        ("POST", Self::Post),
        ("PUT", Self::Put),
        ("DELETE", Self::Delete),
        ("PROPFIND", Self::Propfind),
        ("PROPPATCH", Self::Proppatch),
        ("MKCOL", Self::Mkcol),
        ("COPY", Self::Copy),
        ("MOVE", Self::Move),
        ("LOCK", Self::Lock),
        ("UNLOCK", Self::Unlock),
    ];

    fn of(name: &str) -> Self {
        Self::NAMES.iter().find(|(known, _)| *known == name).map_or(Self::Unknown, |(_, method)| *method)
    }

    /// Whether the method changes nothing (RFC 9110, 9.2.1; RFC 4918, 9.1).
    pub(crate) fn is_safe(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Options | Self::Propfind)
    }
}

/// A request without its body.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) target: Target,
    pub(crate) framing: Framing,
    /// Whether the client speaks HTTP/1.0, which has no chunked bodies.
    pub(crate) is_old: bool,
    /// Whether the connection serves further requests.
    pub(crate) keeps_alive: bool,
    /// Whether the client waits for an answer before it sends the body.
    pub(crate) expects_continue: bool,
    headers: Vec<(String, String)>,
}

impl Head {
    /// Parses the head at the start of `bytes`, and returns it with its length. `None` if its end
    /// is not among the bytes yet.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, HeadFault> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4) else {
            return if bytes.len() >= HEAD_MOST { Err(too_long(bytes)) } else { Ok(None) };
        };
        if end > HEAD_MOST {
            return Err(too_long(bytes));
        }
        let lone = bytes[..end]
            .iter()
            .zip(std::iter::once(&0).chain(bytes))
            .any(|(byte, before)| *byte == b'\n' && *before != b'\r' || *before == b'\r' && *byte != b'\n');
        if lone || bytes[0] == b'\r' {
            return Err(fault(400, "a line does not end in CR LF"));
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MOST];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes[..end]) {
            Ok(httparse::Status::Complete(length)) if length == end => {}
            Ok(_) => return Err(fault(400, "the request is malformed")),
            Err(httparse::Error::TooManyHeaders) => return Err(fault(431, "too many headers")),
            Err(httparse::Error::Version) => return Err(fault(505, "not a version of HTTP/1")),
            Err(_) => return Err(fault(400, "the request is malformed")),
        }
        Self::of(&request).map(|head| Some((head, end)))
    }

    fn of(request: &httparse::Request<'_, '_>) -> Result<Self, HeadFault> {
        let (Some(method), Some(path), Some(version)) = (request.method, request.path, request.version)
        else {
            return Err(fault(400, "the request line is malformed"));
        };
        if method.len() > METHOD_MOST {
            return Err(fault(501, "no such method"));
        }
        let mut headers = Vec::with_capacity(request.headers.len());
        for header in request.headers.iter() {
            // Bytes beyond ASCII have no meaning in headers, and stay as replacement characters.
            let value = String::from_utf8_lossy(header.value).trim().to_owned();
            headers.push((header.name.to_ascii_lowercase(), value));
        }
        let target = Target::parse(path).map_err(|bad| fault(400, bad.0))?;
        let method = Method::of(method);
        if target.is_server && method != Method::Options {
            return Err(fault(400, "only OPTIONS is for the server as a whole"));
        }
        let is_old = version == 0;
        let mut head = Self {
            method,
            target,
            framing: Framing::Length(0),
            is_old,
            keeps_alive: !is_old,
            expects_continue: false,
            headers,
        };
        head.framing = head.find_framing()?;
        if head.one("host")?.is_none() {
            return Err(fault(400, "the request has no Host"));
        }
        if head.all("connection").any(|value| has_token(value, "close")) {
            head.keeps_alive = false;
        }
        if let Some(expected) = head.one("expect")? {
            if !expected.eq_ignore_ascii_case("100-continue") {
                return Err(fault(417, "only 100-continue can be expected"));
            }
            head.expects_continue = !is_old;
        }
        Ok(head)
    }

    fn find_framing(&self) -> Result<Framing, HeadFault> {
        let length = self.one("content-length")?;
        if let Some(coding) = self.one("transfer-encoding")? {
            if length.is_some() {
                return Err(fault(400, "both Content-Length and Transfer-Encoding"));
            }
            if self.is_old {
                return Err(fault(400, "HTTP/1.0 has no Transfer-Encoding"));
            }
            return match coding.eq_ignore_ascii_case("chunked") {
                true => Ok(Framing::Chunked),
                false => Err(fault(501, "only the transfer coding chunked is known")),
            };
        }
        let Some(length) = length else { return Ok(Framing::Length(0)) };
        let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        let number = length.parse().ok().filter(|number: &u64| is_number && i64::try_from(*number).is_ok());
        number.map(Framing::Length).ok_or(fault(400, "the Content-Length is no number"))
    }

    /// Returns all values of a header.
    pub(crate) fn all<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'h str> + 'h {
        self.headers.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a header that may be there once.
    pub(crate) fn one(&self, name: &str) -> Result<Option<&str>, HeadFault> {
        let mut all = self.all_of(name);
        let first = all.next();
        if all.next().is_some() {
            return Err(fault(400, "a header is there twice"));
        }
        Ok(first)
    }

    fn all_of<'h, 'n>(&'h self, name: &'n str) -> impl Iterator<Item = &'h str> + use<'h, 'n> {
        self.headers.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a header, the first if there are several.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all_of(name).next()
    }

    /// Returns host and port that the request is for. The absolute form goes before `Host`.
    pub(crate) fn authority(&self) -> &str {
        self.target.authority.as_deref().or(self.get("host")).unwrap_or_default()
    }

    /// Returns whether the request has a body, be it empty.
    pub(crate) fn has_body(&self) -> bool {
        self.framing != Framing::Length(0)
    }
}

/// Returns the fault of a head that is too long: whether that is because of its target.
fn too_long(bytes: &[u8]) -> HeadFault {
    match bytes.iter().take(HEAD_MOST / 2).any(|byte| *byte == b'\n') {
        true => fault(431, "the headers are too long"),
        false => fault(414, "the target is too long"),
    }
}

/// Returns whether a list of tokens has one.
fn has_token(list: &str, token: &str) -> bool {
    list.split(',').any(|part| part.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Head, HeadFault> {
        Head::parse(text.as_bytes()).map(|found| found.expect("a whole head").0)
    }

    fn status(text: &str) -> u16 {
        parse(text).map_or_else(|fault| fault.status, |_| 200)
    }

    #[test]
    fn a_head_is_understood() {
        let head = parse(
            "PUT /a%20b?at=7 HTTP/1.1\r\nHost: h:1\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\
             Connection: foo, Close\r\n\r\n",
        )
        .unwrap();
        assert_eq!((head.method, head.framing), (Method::Put, Framing::Length(5)));
        assert_eq!(head.target.names, [b"a b".to_vec()]);
        assert!(head.expects_continue && !head.keeps_alive && head.has_body());
        assert_eq!(head.authority(), "h:1");
        let head = parse("GET http://x/ HTTP/1.0\r\nhost: y\r\n\r\n").unwrap();
        assert!(head.is_old && !head.keeps_alive);
        assert_eq!(head.authority(), "x");
        let head = parse("PATCH / HTTP/1.1\r\nHost: y\r\nTransfer-Encoding: Chunked\r\n\r\n").unwrap();
        assert_eq!((head.method, head.framing), (Method::Unknown, Framing::Chunked));
    }

    #[test]
    fn incomplete_heads_wait_and_endless_ones_do_not() {
        assert!(Head::parse(b"GET / HTTP/1.1\r\nHost: x\r\n").unwrap().is_none());
        assert!(Head::parse(b"").unwrap().is_none());
        let line = vec![b'a'; HEAD_MOST];
        assert_eq!(Head::parse(&line).unwrap_err().status, 414);
        let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(HEAD_MOST));
        assert_eq!(status(&long), 431);
        let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MOST));
        assert_eq!(status(&many), 431);
    }

    #[test]
    fn requests_that_proxies_could_misunderstand_are_refused() {
        for (expected, text) in [
            (400, "GET / HTTP/1.1\r\n\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n"),
            (501, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
            (501, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n"),
            (400, "PUT / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n"),
            (400, "PUT / HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n"),
            (400, "GET / HTTP/1.1\nHost: a\r\n\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n"),
            (400, "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
            (400, "GET /../x HTTP/1.1\r\nHost: a\r\n\r\n"),
            (400, "GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
            (400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
            (505, "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
            (505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
            (417, "GET / HTTP/1.1\r\nHost: a\r\nExpect: cake\r\n\r\n"),
            (501, "GETGETGETGETGETGETGETGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
            (200, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"),
        ] {
            assert_eq!(status(text), expected, "{text:?}");
        }
    }
}

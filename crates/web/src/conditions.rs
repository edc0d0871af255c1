//! The validators of a file, and the conditions of a request on them.
//!
//! An ETag is strong: it names the inode, the transaction that made it, its size, and the times of
//! the last changes of content and inode. A number of the last transaction would change with a
//! commit, although the content stays.
//!
//! Source: RFC 9110, 8.8 and 13.

use crate::dates;
use crate::head::{Head, HeadFault, Method};
use papilio::Metadata;

/// The properties that tell one state of a resource from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validators {
    pub(crate) etag: String,
    /// Seconds since 1970.
    modified: i64,
    pub(crate) last_modified: String,
}

/// The outcome of the conditions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoOn,
    NotModified,
    Failed,
}

impl Validators {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let (mtime, ctime) = (metadata.mtime(), metadata.ctime());
        let etag = format!(
            "\"{:x}-{:x}-{:x}-{:x}-{:x}.{:x}-{:x}.{:x}\"",
            metadata.tree().0,
            metadata.number().0,
            metadata.generation().0,
            metadata.size(),
            mtime.seconds,
            mtime.nanoseconds,
            ctime.seconds,
            ctime.nanoseconds
        );
        Self { etag, modified: mtime.seconds, last_modified: dates::http(mtime) }
    }

    /// Returns whether a range of this state continues what the client has (`If-Range`).
    pub(crate) fn continues(&self, head: &Head) -> bool {
        match head.get("if-range") {
            None => true,
            Some(value) if value.starts_with('"') => value == self.etag,
            // A time is a weak validator; only one that is exactly the same counts.
            Some(value) => value == self.last_modified,
        }
    }
}

/// Evaluates the conditions of a request on a resource; `None` if there is none.
pub(crate) fn evaluate(head: &Head, found: Option<&Validators>) -> Result<Verdict, HeadFault> {
    let etag = found.map(|validators| validators.etag.as_str());
    let reads = matches!(head.method, Method::Get | Method::Head);
    if let Some(matches) = list(head, "if-match") {
        if !is_in(&matches, etag, false) {
            return Ok(Verdict::Failed);
        }
    } else if let Some(date) = head.one("if-unmodified-since")?.and_then(dates::parse_http)
        && found.is_none_or(|validators| validators.modified > date)
    {
        return Ok(Verdict::Failed);
    }
    if let Some(matches) = list(head, "if-none-match") {
        if is_in(&matches, etag, true) {
            return Ok(if reads { Verdict::NotModified } else { Verdict::Failed });
        }
    } else if reads
        && let Some(date) = head.one("if-modified-since")?.and_then(dates::parse_http)
        && found.is_some_and(|validators| validators.modified <= date)
    {
        return Ok(Verdict::NotModified);
    }
    Ok(Verdict::GoOn)
}

/// Returns the value of a header that is a list, and may be there several times.
fn list(head: &Head, name: &str) -> Option<String> {
    let all: Vec<&str> = head.all(name).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// Returns whether an ETag is in a list. The weak comparison ignores `W/`, the strong one never
/// matches weak ones.
fn is_in(list: &str, etag: Option<&str>, is_weak: bool) -> bool {
    let Some(etag) = etag else { return false };
    if list.trim() == "*" {
        return true;
    }
    // Our tags contain no comma, so a part with one is of somebody else.
    list.split(',').map(str::trim).any(|part| match part.strip_prefix("W/") {
        Some(weak) => is_weak && weak == etag,
        None => part == etag,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(method: &str, headers: &str, found: Option<&Validators>) -> Verdict {
        let text = format!("{method} / HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        let (head, _) = Head::parse(text.as_bytes()).unwrap().unwrap();
        evaluate(&head, found).unwrap()
    }

    #[test]
    fn conditions_are_those_of_the_standard() {
        let found = Validators {
            etag: "\"a-1\"".to_owned(),
            modified: 784_111_777,
            last_modified: "Sun, 06 Nov 1994 08:49:37 GMT".to_owned(),
        };
        let (same, earlier) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:36 GMT");
        use Verdict::{Failed, GoOn, NotModified};
        for (method, headers, expected) in [
            ("GET", "If-None-Match: \"a-1\"\r\n".to_owned(), NotModified),
            ("HEAD", "If-None-Match: W/\"a-1\"\r\n".to_owned(), NotModified),
            ("GET", "If-None-Match: \"x\", \"a-1\"\r\n".to_owned(), NotModified),
            ("GET", "If-None-Match: \"x\"\r\nIf-None-Match: \"a-1\"\r\n".to_owned(), NotModified),
            ("GET", "If-None-Match: \"x\"\r\n".to_owned(), GoOn),
            ("GET", "If-None-Match: *\r\n".to_owned(), NotModified),
            ("PUT", "If-None-Match: *\r\n".to_owned(), Failed),
            ("PUT", "If-Match: \"a-1\"\r\n".to_owned(), GoOn),
            ("PUT", "If-Match: W/\"a-1\"\r\n".to_owned(), Failed),
            ("PUT", "If-Match: \"b\"\r\n".to_owned(), Failed),
            ("GET", format!("If-Modified-Since: {same}\r\n"), NotModified),
            ("GET", format!("If-Modified-Since: {earlier}\r\n"), GoOn),
            ("GET", "If-Modified-Since: nonsense\r\n".to_owned(), GoOn),
            // The ETag goes before the time.
            ("GET", format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {same}\r\n"), GoOn),
            ("PUT", format!("If-Unmodified-Since: {same}\r\n"), GoOn),
            ("PUT", format!("If-Unmodified-Since: {earlier}\r\n"), Failed),
        ] {
            assert_eq!(verdict(method, &headers, Some(&found)), expected, "{method} {headers}");
        }
        assert_eq!(verdict("PUT", "If-Match: *\r\n", None), Failed);
        assert_eq!(verdict("PUT", "If-None-Match: *\r\n", None), GoOn);
    }
}

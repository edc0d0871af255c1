//! Lists of owners and modes, so that users other than root can build images.
//!
//! Owns [`Manifest`] and the parser of its text.

use papilio_engine::errors::{Error, Result};
use std::collections::HashMap;

/// Owners and modes by path.
///
/// The text has one line per path, with four fields separated by blanks: path, user, group, mode.
/// User and group are numbers, the mode is octal, and `-` leaves a field unchanged. The path starts
/// at the top of the tree, with or without a leading slash. It is everything before the last three
/// fields, so that it may contain blanks, and has the escapes `\n`, `\t`, `\r`, `\\` and `\ooo`.
/// The path `*` applies to all paths without a line. Empty lines and lines that start with `#` are
/// ignored.
///
/// ```
/// use papilio::Manifest;
/// let text = b"# root owns everything else\n* 0 0 -\nhome/me 1000 1000 0750\n";
/// let manifest = Manifest::parse(text)?;
/// let entry = manifest.get(b"home/me").unwrap();
/// assert_eq!((entry.uid, entry.gid, entry.mode), (Some(1000), Some(1000), Some(0o750)));
/// assert_eq!(manifest.get(b"etc").unwrap().uid, Some(0));
/// assert!(Manifest::parse(b"home/me 1000\n").is_err());
/// # Ok::<(), papilio::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    entries: HashMap<Vec<u8>, ManifestEntry>,
    others: Option<ManifestEntry>,
}

/// The owner and mode of a path; `None` leaves a field unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The owner's user id.
    pub uid: Option<u32>,
    /// The group id.
    pub gid: Option<u32>,
    /// The twelve low bits of the mode.
    pub mode: Option<u32>,
}

impl Manifest {
    /// Parses the text.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the number of a line that is invalid or repeats a path.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let mut manifest = Self::default();
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let wrong = |what: &str| Error::Invalid(format!("manifest, line {}: {what}", number + 1));
            let (path, entry) = parse_line(line).map_err(wrong)?;
            let again = match path == b"*" {
                true => manifest.others.replace(entry).is_some(),
                false => manifest.entries.insert(normalized(&path), entry).is_some(),
            };
            if again {
                return Err(wrong("the path occurs a second time"));
            }
        }
        Ok(manifest)
    }

    /// Returns the entry of a path: that of its own line, or of `*`.
    pub fn get(&self, path: &[u8]) -> Option<ManifestEntry> {
        self.entries.get(&normalized(path)).copied().or(self.others)
    }

    /// Returns the entry of a path's own line, if it has one.
    pub(super) fn own(&self, path: &[u8]) -> Option<ManifestEntry> {
        self.entries.get(&normalized(path)).copied()
    }
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, ManifestEntry), &'static str> {
    let mut path = line;
    let mut field = || {
        let blank =
            path.iter().rposition(u8::is_ascii_whitespace).ok_or("expected path, user, group and mode")?;
        let field = &path[blank + 1..];
        path = path[..blank].trim_ascii_end();
        Ok::<&[u8], &'static str>(field)
    };
    let mode = number(field()?, 8).ok_or("the mode is not an octal number")?;
    let gid = number(field()?, 10).ok_or("the group is not a number")?;
    let uid = number(field()?, 10).ok_or("the user is not a number")?;
    if mode.is_some_and(|mode| mode > 0o7777) {
        return Err("the mode has more than twelve bits");
    }
    Ok((unescaped(path).ok_or("invalid escape after a backslash")?, ManifestEntry { uid, gid, mode }))
}

fn number(field: &[u8], radix: u32) -> Option<Option<u32>> {
    if field == b"-" {
        return Some(None);
    }
    let text = std::str::from_utf8(field).ok()?;
    // `from_str_radix` would also accept a sign.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| u32::from_str_radix(text, radix).ok())?.map(Some)
}

fn unescaped(path: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next()? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'\\' => b'\\',
            first @ b'0'..=b'3' => {
                let mut value = first - b'0';
                for _ in 0..2 {
                    let digit = bytes.next().filter(|digit| (b'0'..=b'7').contains(digit))?;
                    value = value * 8 + (digit - b'0');
                }
                value
            }
            _ => return None,
        });
    }
    Some(out)
}

/// Removes `.` and extra slashes from a path.
pub(super) fn normalized(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && part != b".");
    parts.collect::<Vec<_>>().join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_split_from_the_end_of_the_line() {
        let text =
            b"./a  b/c 1 \t 2  0644\n/ 3 4 01777\nnew\\012line 5 - -\n\n  # nothing\nback\\\\slash - - 7\n";
        let manifest = Manifest::parse(text).unwrap();
        let get = |path: &[u8]| manifest.get(path).map(|entry| (entry.uid, entry.gid, entry.mode));
        assert_eq!(get(b"a  b/c"), Some((Some(1), Some(2), Some(0o644))));
        assert_eq!(get(b""), Some((Some(3), Some(4), Some(0o1777))));
        assert_eq!(get(b"/new\nline"), Some((Some(5), None, None)));
        assert_eq!(get(b"back\\slash"), Some((None, None, Some(7))));
        assert_eq!(get(b"other"), None);
    }

    #[test]
    fn errors_contain_the_number_of_an_invalid_line() {
        for (line, what) in [
            ("a 1 2", "expected path"),
            ("a 1 2 9", "octal"),
            ("a 1 2 +7", "octal"),
            ("a 1 2 10000", "twelve"),
            ("a 1 root 7", "group"),
            ("a 4294967296 1 7", "user"),
            ("a\\x 1 1 7", "backslash"),
            ("a\\400 1 1 7", "backslash"),
            ("b 1 1 7", "second time"),
            ("* 1 1 7", "second time"),
        ] {
            let text = format!("b 1 1 7\n* - - -\n{line}\n");
            let error = Manifest::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("line 3") && error.contains(what), "{line}: {error}");
        }
    }
}

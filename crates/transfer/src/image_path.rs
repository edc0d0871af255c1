//! [`ImagePath`]: a path inside a file system, as messages show it.

use crate::text::escaped;
use papilio_engine::errors::Error;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A path inside a file system, with the name of the file system for messages.
///
/// It is shown as `IMAGE:/path`, or as the path alone if the image has no name, with control
/// characters escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePath {
    /// The image or device; may be empty.
    pub image: PathBuf,
    /// The path inside, as typed; it starts with a slash.
    pub path: Vec<u8>,
}

impl ImagePath {
    /// Returns a path in a file system without a name.
    pub fn unnamed(path: impl Into<Vec<u8>>) -> Self {
        Self { image: PathBuf::new(), path: path.into() }
    }

    /// Returns the last component, or `None` for the root and for `.` and `..`, which name no
    /// entry.
    pub fn base_name(&self) -> Option<&[u8]> {
        let end = self.path.iter().rposition(|&byte| byte != b'/')? + 1;
        let start = self.path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        match &self.path[start..end] {
            b"." | b".." => None,
            name => Some(name),
        }
    }

    /// Returns whether the path can only name a directory: `a/`, `a/.`, `a/..`.
    pub fn wants_directory(&self) -> bool {
        self.path.ends_with(b"/") || self.base_name().is_none()
    }

    /// Returns the operand of the entry `name` of this directory.
    pub fn join(&self, name: &[u8]) -> Self {
        let mut path = self.path.clone();
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self { image: self.image.clone(), path }
    }

    /// Returns `IMAGE:/path` as bytes, which the command accepts as an operand again. Without a
    /// name of the image it is the path alone.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = OsString::from(&self.image).into_vec();
        if !bytes.is_empty() {
            bytes.push(b':');
        }
        bytes.extend_from_slice(&self.path);
        bytes
    }
}

impl fmt::Display for ImagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&escaped(&self.to_bytes())))
    }
}

/// Returns the message of `error` with the path that it concerns.
pub fn describe(path: &ImagePath, error: &Error) -> String {
    match error {
        Error::Path { kind, .. } => format!("{path}: {kind}"),
        other => format!("{path}: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_names() {
        let base = |path: &str| {
            let path = ImagePath { image: "i".into(), path: path.into() };
            path.base_name().map(|name| String::from_utf8(name.to_vec()).unwrap())
        };
        assert_eq!(base("/a/b"), Some("b".into()));
        assert_eq!(base("/a/b//"), Some("b".into()));
        assert_eq!(base("/a/."), None);
        assert_eq!(base("/a/.."), None);
        assert_eq!(base("/"), None);
    }
}

//! Operands: `IMAGE:/path` inside a file system, or a path on the host.
//!
//! Owns [`Operand`] and the syntax of operands. A colon before a slash separates the image
//! from the path. If there are several, the parser takes the first one whose left side exists and
//! is not a directory. Without such a colon, an argument that exists as a whole is a path on the
//! host, and in any other one the first colon separates. `IMAGE@N` names partition N of an image.
//! In a URL, the first colon before a slash after `SCHEME://` separates.

use crate::usage_error::UsageError;
pub use papilio::ImagePath;
use papilio::device::{split_partition, url_prefix};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An argument that may be on either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A path inside a file system.
    Image(ImagePath),
    /// A path on the host.
    Host(PathBuf),
}

/// The kind of file that the host has at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostKind {
    Nothing,
    Directory,
    Other,
}

fn kind_on_host(path: &Path) -> HostKind {
    // IMAGE@N exists if the image does.
    match std::fs::metadata(split_partition(path).0) {
        Ok(metadata) if metadata.is_dir() => HostKind::Directory,
        Ok(_) => HostKind::Other,
        Err(_) => HostKind::Nothing,
    }
}

impl Operand {
    /// Parses an argument.
    pub fn parse(argument: &OsStr) -> Self {
        Self::parse_with(argument, kind_on_host)
    }

    fn parse_with(argument: &OsStr, kind_on_host: impl Fn(&Path) -> HostKind) -> Self {
        let bytes = argument.as_bytes();
        let split = |at: usize| ImagePath {
            image: PathBuf::from(OsStr::from_bytes(&bytes[..at])),
            path: if at + 1 == bytes.len() { b"/".to_vec() } else { bytes[at + 1..].to_vec() },
        };
        let first = url_prefix(bytes).unwrap_or(1);
        let colons: Vec<usize> = (first..bytes.len())
            .filter(|&at| bytes[at] == b':' && matches!(bytes.get(at + 1), None | Some(b'/')))
            .collect();
        for &at in &colons {
            let operand = split(at);
            if kind_on_host(&operand.image) == HostKind::Other {
                return Operand::Image(operand);
            }
        }
        match colons.first() {
            Some(&at) if kind_on_host(Path::new(argument)) == HostKind::Nothing => Operand::Image(split(at)),
            _ => Operand::Host(PathBuf::from(argument)),
        }
    }
}

/// Parses an argument that must be inside a file system. An image alone means its root.
///
/// # Errors
/// The argument is a directory on the host.
pub fn parse_image_path(argument: &OsStr) -> Result<ImagePath, UsageError> {
    match Operand::parse(argument) {
        Operand::Image(path) => Ok(path),
        Operand::Host(image) if kind_on_host(&image) != HostKind::Directory => {
            Ok(ImagePath { image, path: b"/".to_vec() })
        }
        Operand::Host(path) => Err(UsageError::new(format_args!(
            "{}: a directory on the host; name a path inside a file system as IMAGE:/path",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(image: &str, path: &str) -> Operand {
        Operand::Image(ImagePath { image: image.into(), path: path.into() })
    }

    fn parse(argument: &str, files: &[&str], directories: &[&str]) -> Operand {
        Operand::parse_with(OsStr::new(argument), |path| {
            let is = |names: &[&str]| names.iter().any(|name| Path::new(name) == path);
            match () {
                () if is(files) => HostKind::Other,
                () if is(directories) => HostKind::Directory,
                () => HostKind::Nothing,
            }
        })
    }

    #[test]
    fn colon_separates_image_and_path() {
        assert_eq!(parse("a.img:/b/c", &["a.img"], &[]), image("a.img", "/b/c"));
        assert_eq!(parse("missing.img:/b", &[], &[]), image("missing.img", "/b"));
        assert_eq!(parse("a.img:", &["a.img"], &[]), image("a.img", "/"));
        assert_eq!(parse("plain/dir", &[], &[]), Operand::Host("plain/dir".into()));
        assert_eq!(parse("a:b", &[], &[]), Operand::Host("a:b".into()));
    }

    #[test]
    fn colon_of_a_scheme_separates_nothing() {
        assert_eq!(parse("s3://b/d.qcow2:/etc", &[], &[]), image("s3://b/d.qcow2", "/etc"));
        assert_eq!(parse("http://h:80/a@2:", &[], &[]), image("http://h:80/a@2", "/"));
        assert_eq!(parse("https://h/a", &[], &[]), Operand::Host("https://h/a".into()));
        assert_eq!(parse("nbd://h:/a", &[], &[]), image("nbd", "//h:/a"));
    }

    #[test]
    fn existing_files_decide_between_colons() {
        assert_eq!(parse("usb:/0:/x", &["usb:/0"], &[]), image("usb:/0", "/x"));
        assert_eq!(parse("a:/b:/c", &["a", "a:/b"], &[]), image("a", "/b:/c"));
        assert_eq!(parse("dir:/f", &[], &["dir:/f"]), Operand::Host("dir:/f".into()));
    }
}

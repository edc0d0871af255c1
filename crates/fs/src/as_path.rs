//! The types that can name a path in a file system.
//!
//! Owns [`AsPath`].

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path in a Btrfs file system: any string, byte string or host path.
///
/// On disk a path is bytes, with components separated by `/`. Every function that takes a path
/// accepts all of these types, and references to them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device: std::sync::Arc<dyn papilio::device::Device> =
/// #     std::sync::Arc::new(papilio::device::MemoryDevice::new(256 << 20));
/// # papilio::mkfs_device(&device, &papilio::MkfsOptions::new())?;
/// # let options = papilio::OpenOptions::new().write(true);
/// # let fs = papilio::FileSystem::from_devices(vec![device], &options)?;
/// use std::path::Path;
///
/// fs.create_dir("/etc")?;
/// fs.create_file(Path::new("/etc").join("hosts"))?;
/// fs.create_file(b"/etc/caf\xe9")?;
/// assert_eq!(fs.read_dir(String::from("/etc"))?.count(), 2);
/// # Ok(())
/// # }
/// ```
pub trait AsPath {
    /// Returns the bytes of the path.
    fn as_path_bytes(&self) -> &[u8];
}

impl AsPath for [u8] {
    fn as_path_bytes(&self) -> &[u8] {
        self
    }
}

impl<const N: usize> AsPath for [u8; N] {
    fn as_path_bytes(&self) -> &[u8] {
        self
    }
}

impl AsPath for Vec<u8> {
    fn as_path_bytes(&self) -> &[u8] {
        self
    }
}

impl AsPath for str {
    fn as_path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsPath for String {
    fn as_path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsPath for OsStr {
    fn as_path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsPath for OsString {
    fn as_path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsPath for Path {
    fn as_path_bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

impl AsPath for PathBuf {
    fn as_path_bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

impl<T: AsPath + ToOwned + ?Sized> AsPath for Cow<'_, T> {
    fn as_path_bytes(&self) -> &[u8] {
        (**self).as_path_bytes()
    }
}

impl<T: AsPath + ?Sized> AsPath for &T {
    fn as_path_bytes(&self) -> &[u8] {
        (**self).as_path_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_gives_the_same_bytes() {
        fn bytes(path: impl AsPath) -> Vec<u8> {
            path.as_path_bytes().to_vec()
        }
        let wanted = b"a/b".to_vec();
        assert_eq!(bytes("a/b"), wanted);
        assert_eq!(bytes(String::from("a/b")), wanted);
        assert_eq!(bytes(b"a/b"), wanted);
        assert_eq!(bytes(*b"a/b"), wanted);
        assert_eq!(bytes(&b"a/b"[..]), wanted);
        assert_eq!(bytes(wanted.clone()), wanted);
        assert_eq!(bytes(OsStr::new("a/b")), wanted);
        assert_eq!(bytes(OsString::from("a/b")), wanted);
        assert_eq!(bytes(Path::new("a/b")), wanted);
        let path = PathBuf::from("a/b");
        assert_eq!(bytes(&path), wanted);
        assert_eq!(bytes(path), wanted);
        assert_eq!(bytes(Cow::Borrowed("a/b")), wanted);
    }
}

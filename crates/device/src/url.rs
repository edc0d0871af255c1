//! URLs in the place of paths.
//!
//! Owns [`is_url`], by which every opener tells a URL from a path on the host. It is there without
//! the feature `remote` too, so that a program without it says why it cannot open a URL.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The schemes of URLs that name images.
pub const URL_SCHEMES: [&str; 9] =
    ["http", "https", "s3", "gs", "az", "slatedb+s3", "slatedb+gs", "slatedb+az", "slatedb+file"];

/// Returns the length of `scheme://` at the start of an argument, if it names an image at a URL.
pub fn url_prefix(argument: &[u8]) -> Option<usize> {
    let end = argument.windows(3).position(|bytes| bytes == b"://")?;
    let known = URL_SCHEMES.iter().any(|scheme| argument[..end].eq_ignore_ascii_case(scheme.as_bytes()));
    known.then_some(end + 3)
}

/// Returns whether a path is the URL of a device in an object store, which can be written.
pub fn is_store_url(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    is_url(path) && bytes.len() > 8 && bytes[..8].eq_ignore_ascii_case(b"slatedb+")
}

/// Returns whether a path is the URL of an image.
pub fn is_url(path: &Path) -> bool {
    url_prefix(path.as_os_str().as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_schemes_are_urls() {
        for url in ["http://h/a", "HTTPS://h/a", "s3://b/k", "gs://b/k", "az://c/k"] {
            assert!(is_url(Path::new(url)) && !is_store_url(Path::new(url)), "{url}");
        }
        for path in ["/s3://b", "s3:/b", "nbd://h/a", "a/http://h", "http:", ""] {
            assert!(!is_url(Path::new(path)), "{path}");
        }
        for url in ["slatedb+s3://b/k", "SlateDB+file:///d"] {
            assert!(is_store_url(Path::new(url)), "{url}");
        }
        assert!(!is_store_url(Path::new("slatedb+nfs://b/k")));
        assert_eq!(url_prefix(b"s3://bucket:/etc"), Some(5));
    }
}

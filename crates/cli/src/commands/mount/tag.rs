//! Sources of a mount that name a file system by its UUID or label, as fstab(5) does.
//!
//! Owns [`resolve`]. The tags are looked up among the block devices of this machine. Image files
//! are not searched: nobody says where to look, and a copy beside an image has the same UUID.
//!
//! Kernel counterpart: none; mount(8) resolves tags with libblkid.

use anyhow::{Context as _, bail};
use papilio::FoundDevice;
use papilio::format::Uuid;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The file systems that a tag means.
#[derive(Debug, PartialEq, Eq)]
enum Tag {
    Uuid(Uuid),
    Label(Vec<u8>),
}

impl Tag {
    /// Parses `UUID=...` or `LABEL=...`; `None` for a path.
    ///
    /// # Errors
    /// A malformed UUID, or a tag of partitions.
    fn of(source: &Path) -> anyhow::Result<Option<Self>> {
        let bytes = source.as_os_str().as_bytes();
        let Some(equals) = bytes.iter().position(|&byte| byte == b'=') else { return Ok(None) };
        let (name, value) = (&bytes[..equals], unquoted(&bytes[equals + 1..]));
        let shown = source.display();
        match name {
            b"UUID" => {
                let text = std::str::from_utf8(value).ok();
                let uuid = text.and_then(|text| Uuid::parse_str(text).ok());
                Ok(Some(Self::Uuid(uuid.with_context(|| format!("{shown}: not a UUID"))?)))
            }
            b"LABEL" if value.is_empty() => bail!("{shown}: the label is missing"),
            b"LABEL" => Ok(Some(Self::Label(value.to_vec()))),
            b"PARTUUID" | b"PARTLABEL" | b"ID" => {
                bail!("{shown}: only UUID= and LABEL= are understood; name the device, or use mount(8)")
            }
            _ => Ok(None),
        }
    }

    fn matches(&self, device: &FoundDevice) -> bool {
        match self {
            Self::Uuid(uuid) => device.fsid == *uuid,
            Self::Label(label) => device.label == *label,
        }
    }
}

fn unquoted(value: &[u8]) -> &[u8] {
    let quoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    quoted.unwrap_or(value)
}

/// Returns the device that a source names, or the source itself if it is a path.
///
/// # Errors
/// No file system has the UUID or label, or several have the label.
pub(super) fn resolve(source: &Path) -> anyhow::Result<PathBuf> {
    let Some(tag) = Tag::of(source)? else { return Ok(source.to_path_buf()) };
    let found = FoundDevice::on_this_machine()?;
    chosen(&tag, found).with_context(|| source.display().to_string())
}

/// Returns the first device of the only file system that a tag means.
fn chosen(tag: &Tag, found: Vec<FoundDevice>) -> anyhow::Result<PathBuf> {
    let matching = found.into_iter().filter(|device| tag.matches(device));
    let mut devices = FoundDevice::without_twins(matching);
    devices.sort_by_key(|device| device.devid);
    let first = devices.first().context("no block device that can be read has this file system")?;
    if let Some(other) = devices.iter().find(|device| device.fsid != first.fsid) {
        let (one, two) = (first.path.display(), other.path.display());
        bail!("the file systems on {one} and on {two} have this label: use UUID=");
    }
    Ok(first.path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_told_from_paths() {
        let of = |text: &str| Tag::of(Path::new(text));
        let uuid = Uuid::from_bytes(*b"0123456789abcdef");
        assert_eq!(of(&format!("UUID={uuid}")).unwrap(), Some(Tag::Uuid(uuid)));
        let upper = uuid.to_string().to_uppercase();
        assert_eq!(of(&format!("UUID=\"{upper}\"")).unwrap(), Some(Tag::Uuid(uuid)));
        assert_eq!(of("LABEL=my disk").unwrap(), Some(Tag::Label(b"my disk".to_vec())));
        assert_eq!(of("LABEL=\"a=b\"").unwrap(), Some(Tag::Label(b"a=b".to_vec())));
        for path in ["disk.img", "./UUID=5", "/dev/x=y", "Label=x", "="] {
            assert_eq!(of(path).unwrap(), None, "{path}");
        }
        for bad in ["UUID=", "UUID=12", "UUID=\"x", "LABEL=", "LABEL=\"\"", "PARTUUID=1", "PARTLABEL=x"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}

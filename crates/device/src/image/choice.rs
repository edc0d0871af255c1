//! The choice of a partition.
//!
//! Owns [`PartitionChoice`], which options give, and [`split_partition`], the syntax of parts such
//! as `IMAGE@N`.

use super::disk::{Content, OpenedImage, content_of};
use super::format;
use crate::device::Device;
use crate::error::OpenErrorKind;
use crate::partition_table::{Partition, PartitionTable};
use crate::url::is_url;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

/// The part of a disk image that has the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PartitionChoice {
    /// The whole disk if it is a file system, else the one partition with Btrfs.
    #[default]
    Found,
    /// The bytes of the file as they are, whatever they look like.
    Whole,
    /// The partition of this number.
    Number(u32),
    /// The partition with this label or UUID.
    Named(String),
}

impl FromStr for PartitionChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Err("a number, a label, a UUID or \"none\" is needed"),
            "none" => Ok(Self::Whole),
            _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map(Self::Number).map_err(|_| "no disk has a partition of that number")
            }
            _ => Ok(Self::Named(text.to_owned())),
        }
    }
}

/// A part of an image, as a path names it after `@`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImagePart {
    /// The partition of this number: `IMAGE@2`.
    Number(u32),
    /// Everything from a byte on: `IMAGE@+1048576`. A suffix K, M, G or T counts powers of 1024.
    Offset(u64),
    /// A logical volume: `IMAGE@group/volume`.
    Volume(String),
    /// The device that nothing lies on, whatever its content is: `IMAGE@top`.
    Top,
}

impl ImagePart {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(offset) = text.strip_prefix('+') {
            let shift = "KMGT".find(offset.chars().last()?.to_ascii_uppercase());
            let digits = if shift.is_some() { &offset[..offset.len() - 1] } else { offset };
            let unit = 1_u64 << shift.map_or(0, |at| (at + 1) * 10);
            return digits
                .parse::<u64>()
                .ok()
                .filter(|_| is_number(digits))?
                .checked_mul(unit)
                .map(Self::Offset);
        }
        if text == "top" {
            return Some(Self::Top);
        }
        let is_name = |name: &str| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte))
        };
        match text.split_once('/') {
            Some((group, volume)) if is_name(group) && is_name(volume) => Some(Self::Volume(text.to_owned())),
            Some(_) => None,
            None => text.parse().ok().filter(|_| is_number(text)).map(Self::Number),
        }
    }
}

impl fmt::Display for ImagePart {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Offset(offset) => write!(formatter, "+{offset}"),
            Self::Volume(name) => write!(formatter, "{name}"),
            Self::Top => write!(formatter, "top"),
        }
    }
}

/// Splits `IMAGE@N`, `IMAGE@+BYTES`, `IMAGE@GROUP/VOLUME` or `IMAGE@top` into the path of the image
/// and the part. A file that has the whole path as its name wins. In a URL, `@N` and `@+BYTES` are
/// always parts; `%40N` is part of a name.
pub fn split_partition(path: &Path) -> (&Path, Option<ImagePart>) {
    let bytes = path.as_os_str().as_bytes();
    let split = bytes.iter().rposition(|byte| *byte == b'@').and_then(|at| {
        Some((Path::new(OsStr::from_bytes(&bytes[..at])), ImagePart::parse(&bytes[at + 1..])?))
    });
    match split {
        Some((image, part @ (ImagePart::Number(_) | ImagePart::Offset(_)))) if is_url(path) => {
            (image, Some(part))
        }
        Some((image, part))
            if !is_url(path)
                && path.symlink_metadata().is_err()
                && image.metadata().is_ok_and(|metadata| !metadata.is_dir()) =>
        {
            (image, Some(part))
        }
        _ => (path, None),
    }
}

impl OpenedImage {
    /// Returns the chosen partition; `None` for the whole disk.
    ///
    /// # Errors
    /// No such partition, an encrypted one, or several with Btrfs and no choice.
    pub fn partition(&self, choice: &PartitionChoice) -> Result<Option<&Partition>, OpenErrorKind> {
        let chosen = self.any_partition(choice)?;
        match chosen.map(|partition| content_of(&*self.disk, partition)) {
            Some(Content::Other("luks")) => Err(OpenErrorKind::Encrypted),
            _ => Ok(chosen),
        }
    }

    /// As [`Self::partition`], for a partition of any content.
    pub(super) fn any_partition(
        &self,
        choice: &PartitionChoice,
    ) -> Result<Option<&Partition>, OpenErrorKind> {
        let partitions = self.table.as_ref().map_or(&[][..], |table| &table.partitions);
        let chosen = match (choice, &self.table) {
            (PartitionChoice::Whole, _) => return Ok(None),
            (PartitionChoice::Found, None) => {
                return if format::is_encrypted(&*self.disk) {
                    Err(OpenErrorKind::Encrypted)
                } else {
                    Ok(None)
                };
            }
            (PartitionChoice::Found, Some(table)) => return self.found(table).map(Some),
            (PartitionChoice::Number(number), _) => {
                let found = partitions.iter().find(|partition| partition.number == *number);
                found.ok_or_else(|| self.missing(&number.to_string()))?
            }
            (PartitionChoice::Named(name), _) => {
                let named: Vec<_> = partitions.iter().filter(|partition| is_named(partition, name)).collect();
                match named[..] {
                    [partition] => partition,
                    [] => return Err(self.missing(name)),
                    _ => {
                        return Err(OpenErrorKind::ChoosePartition(format!(
                            "{} partitions are named {name}: choose one by its number",
                            named.len()
                        )));
                    }
                }
            }
        };
        Ok(Some(chosen))
    }

    /// Returns the one partition with Btrfs.
    fn found<'a>(&self, table: &'a PartitionTable) -> Result<&'a Partition, OpenErrorKind> {
        let is_btrfs = |partition: &&Partition| content_of(&*self.disk, partition) == Content::Btrfs;
        let btrfs: Vec<_> = table.partitions.iter().filter(is_btrfs).collect();
        match btrfs[..] {
            [partition] => Ok(partition),
            [] => Err(OpenErrorKind::ChoosePartition(format!(
                "no partition has a Btrfs file system; it has {}",
                list(&*self.disk, table)
            ))),
            _ => Err(OpenErrorKind::ChoosePartition(format!(
                "{} partitions have Btrfs file systems: choose one with @NUMBER or --partition; it has {}",
                btrfs.len(),
                list(&*self.disk, table)
            ))),
        }
    }

    fn missing(&self, wanted: &str) -> OpenErrorKind {
        let found = match &self.table {
            None => "it has no partition table".to_owned(),
            Some(table) => format!("it has {}", list(&*self.disk, table)),
        };
        OpenErrorKind::NoPartition { wanted: wanted.to_owned(), found }
    }
}

fn is_named(partition: &Partition, name: &str) -> bool {
    partition.label == name || partition.uuid.eq_ignore_ascii_case(name)
}

/// Lists the partitions in one line, for messages.
fn list(disk: &dyn Device, table: &PartitionTable) -> String {
    const MOST: usize = 16;
    let describe = |partition: &Partition| {
        let content = match content_of(disk, partition) {
            Content::Btrfs => "btrfs",
            Content::Other(name) => name,
            Content::Unknown => "unknown",
        };
        let label = match partition.label.as_str() {
            "" => String::new(),
            label => format!(" {:?}", label),
        };
        format!("{}{label} ({content}, {} bytes)", partition.number, partition.length)
    };
    let mut parts: Vec<_> = table.partitions.iter().take(MOST).map(describe).collect();
    let more = table.partitions.len().saturating_sub(MOST);
    if more > 0 {
        parts.push(format!("{more} more"));
    }
    let mut text = match parts.len() {
        0 => "no partitions".to_owned(),
        _ => format!("partitions {}", parts.join(", ")),
    };
    for fault in table.faults.iter().take(MOST) {
        text = format!("{text}; {fault}");
    }
    text
}

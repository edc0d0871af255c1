//! `papilio filesystem mkswapfile`, as `btrfs filesystem mkswapfile`.

use crate::context::{Context, create_host_file};
use crate::filling::Caller;
use crate::mounted::{Mounted, Target};
use crate::output::Output;
use crate::units::{Units, parse_size};
use anyhow::Context as _;
use papilio::{InodeFlags, NewKind, Uuid};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};

/// Bytes of a page of the header. The kernel accepts those of its own page size only.
const PAGE: u64 = 4096;
/// The least size, as mkswap(8) and `btrfs` have it, in bytes.
const LEAST: u64 = 40 << 10;
/// The most pages that the header counts.
const MOST_PAGES: u64 = u32::MAX as u64;

/// Create a file that can be a swap file
///
/// It is not copied on write, has no holes, and has the header of mkswap(8). The size is rounded
/// down to whole pages of 4 KiB and is at least 40 KiB.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file, which must not exist
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// The size
    #[arg(short, long, default_value = "2G", value_parser = parse_size)]
    size: u64,
    /// The UUID in the header: clear (all zeros), random, time or a UUID
    #[arg(short = 'U', long, default_value = "random", value_parser = parse_uuid)]
    uuid: Uuid,
}

fn parse_uuid(text: &str) -> Result<Uuid, String> {
    match text {
        "clear" => Ok(Uuid::nil()),
        "random" => Ok(Uuid::new_v4()),
        "time" => Ok(of_time()),
        _ => text.parse().map_err(|_| "not clear, random, time or a UUID".to_owned()),
    }
}

/// Returns a UUID of version 7: the time in milliseconds, then random bits (RFC 9562).
fn of_time() -> Uuid {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut bytes = *Uuid::new_v4().as_bytes();
    bytes[..6].copy_from_slice(&(now.as_millis() as u64).to_be_bytes()[2..]);
    bytes[6] = 0x70 | bytes[6] & 0x0f;
    Uuid::from_bytes(bytes)
}

/// Returns the first page of a swap area, as `union swap_header` of Linux's `swap.h` has it.
fn header(pages: u32, uuid: Uuid) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    page[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&(pages - 1).to_ne_bytes());
    page[1036..1052].copy_from_slice(uuid.as_bytes());
    page[PAGE as usize - 10..].copy_from_slice(b"SWAPSPACE2");
    page
}

impl Args {
    /// Creates the file.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let pages = self.size / PAGE;
        if self.size < LEAST || pages > MOST_PAGES {
            let most = Units::HUMAN.text(MOST_PAGES * PAGE);
            let text = format!("mkswapfile: {} bytes are not from 40 KiB to {most}", self.size);
            return Err(crate::usage_error::UsageError::new(text).into());
        }
        let header = header(pages as u32, self.uuid);
        match Target::parse_new(&self.path)? {
            Target::Image(path) => {
                let fs = context.change(&path.image)?;
                let make = || {
                    let mut new = Caller::new().inode(NewKind::Regular, 0o600);
                    new.file_flags = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
                    let file = fs.create(&path.path, &new)?.open()?;
                    let filled = file.allocate(0, pages * PAGE, false);
                    filled.and_then(|()| file.write_all_at(&header, 0)).inspect_err(|_| {
                        // Nothing half made stays. The failure itself is what the user hears of.
                        let _ = fs.remove_file(&path.path);
                    })
                };
                make().map_err(|error| context.at(&path, &error))?;
            }
            Target::Mounted(mounted) => make_mounted(&mounted, pages * PAGE, &header)?,
        }
        if context.verbosity >= 0 {
            let mut output = Output::new()?;
            let size = Units::HUMAN.text(pages * PAGE);
            output.text(format_args!(
                "create swapfile {} size {size} ({})\n",
                self.path.display(),
                pages * PAGE
            ))?;
            output.finish()?;
        }
        Ok(())
    }
}

fn make_mounted(mounted: &Mounted, size: u64, header: &[u8]) -> anyhow::Result<()> {
    let shown = mounted.to_string();
    let new = !mounted.path.exists();
    anyhow::ensure!(new, "{shown}: {}", papilio::PathError::Exists);
    let file: File = create_host_file(&mounted.path)?;
    let fill = || -> std::io::Result<()> {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        crate::host_calls::reserve_in_place(&file, size)?;
        file.write_all_at(header, 0)?;
        file.sync_all()
    };
    fill()
        .map_err(|error| mounted.at(&error))
        .inspect_err(|_| {
            let _ = std::fs::remove_file(&mounted.path);
        })
        .context("creating the swap file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_parsed() {
        assert!(parse_uuid("clear").unwrap().is_nil());
        assert_eq!(parse_uuid("time").unwrap().get_version_num(), 7);
        assert_eq!(parse_uuid("random").unwrap().get_version_num(), 4);
        assert!(parse_uuid("x").is_err());
    }
}

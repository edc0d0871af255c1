//! `papilio inspect map-logical`, in the format of `btrfs-map-logical`.

use crate::context::Context;
use crate::holder;
use crate::host_output::HostOutput;
use crate::mounted::Target;
use crate::output::Output;
use crate::tree_source::TreeSource;
use anyhow::{Context as _, bail};
use papilio::format::items::chunk::ChunkItem;
use papilio::format::items::chunk_places::ChunkPlace;
use papilio::format::{DeviceId, ItemType, PhysicalAddress, objectid};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Show where the copies of a logical address are on devices
///
/// With -o the bytes there are copied to a file, unverified and as they are stored.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The address in bytes
    #[arg(short, long)]
    logical: u64,
    /// The number of bytes; by default those of a tree block
    #[arg(short, long)]
    bytes: Option<u64>,
    /// Show or copy only this copy, counted from 1
    #[arg(short, long)]
    copy: Option<usize>,
    /// Copy the bytes to this file
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
}

impl Args {
    /// Shows the places.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let source = TreeSource::open(context, &self.path)?;
        let shown = self.path.display().to_string();
        let (paths, node_size) = self.devices(context)?;
        let chunks = source.chunks()?;
        let mut target = self.output.as_deref().map(HostOutput::open).transpose()?;
        let (mut address, end) =
            (self.logical, self.logical.saturating_add(self.bytes.unwrap_or(node_size).max(1)));
        let mut output = Output::new()?;
        self.warn_if_free(context, &source)?;
        while address < end {
            let chunk = chunks.iter().find(|chunk| {
                (chunk.start.0..chunk.start.0.saturating_add(chunk.item.length)).contains(&address)
            });
            let Some(chunk) = chunk else { bail!("{shown}: no chunk has logical address {address}") };
            let places = chunk.item.places(address - chunk.start.0);
            let mut places =
                places.map_err(|reason| anyhow::anyhow!("{shown}: chunk {}: {reason}", chunk.start))?;
            if context.arguments().drop_in {
                places.extend(parity_places(&chunk.item, address - chunk.start.0));
            }
            if let Some(copy) = self.copy.filter(|copy| *copy == 0 || *copy > places.len()) {
                bail!("{shown}: there is no copy {copy} of logical address {address}, only {}", places.len());
            }
            let length = places[0].length.min(end - address);
            for (at, place) in places.iter().enumerate() {
                let copy = at + 1;
                if self.copy.is_some_and(|only| only != copy) {
                    continue;
                }
                let device = paths.get(&place.devid.0).map_or("missing", String::as_str);
                output.text(format_args!(
                    "mirror {copy} logical {address} physical {} device {device}\n",
                    place.offset
                ))?;
                if let Some(target) = target.as_mut().filter(|_| copy == self.copy.unwrap_or(1)) {
                    copy_bytes(device, place, length, target)?;
                }
            }
            address += length;
        }
        if let Some(target) = target {
            target.finish()?;
        }
        Ok(output.finish()?)
    }

    /// Returns the paths of the devices by id, and the size of a tree block.
    fn devices(&self, context: &Context) -> anyhow::Result<(HashMap<u64, String>, u64)> {
        let place = holder::place_of(Path::new(&self.path));
        let (usage, node_size) = match Target::parse(place.as_os_str())? {
            Target::Image(path) => {
                let fs = context.open(&path.image)?;
                (fs.usage()?, fs.superblock().raw.node_size.into())
            }
            Target::Mounted(mounted) => {
                let mount = mounted.open()?;
                let read = || Ok((mount.device_paths()?, mount.fs_info()?.node_size.into()));
                let (paths, node_size) = read().map_err(|error| mounted.at(&error))?;
                let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
                let named = paths.into_iter().filter_map(|(devid, path)| Some((devid.0, text(path?))));
                return Ok((named.collect(), node_size));
            }
        };
        let named = |device: papilio::DeviceUsage| Some((device.devid.0, device.path?));
        Ok((usage.devices.into_iter().filter_map(named).collect(), node_size))
    }

    fn warn_if_free(&self, context: &Context, source: &TreeSource) -> anyhow::Result<()> {
        // An extent of data is at most 128 MiB long.
        let least = self.logical.saturating_sub(128 << 20);
        let keys = (
            papilio::Key::new(least, ItemType::EXTENT_ITEM, 0),
            papilio::Key::new(self.logical, ItemType::METADATA_ITEM, u64::MAX),
        );
        let mut last = None;
        source.search(objectid::EXTENT_TREE, keys, 0, |key, _| {
            match key.item_type {
                ItemType::EXTENT_ITEM => last = Some(key.objectid.saturating_add(key.offset)),
                // A tree block is at least as long as the address is behind its start, if in it.
                ItemType::METADATA_ITEM => last = Some(key.objectid.saturating_add(64 << 10)),
                _ => {}
            }
            Ok(())
        })?;
        if last.is_none_or(|end| end <= self.logical) {
            context.warning(format_args!("no extent is at logical address {}", self.logical));
        }
        Ok(())
    }
}

/// Returns the places of the parities that cover the byte at `offset` in a chunk, which
/// btrfs-map-logical shows as further copies: P, then Q.
fn parity_places(chunk: &ChunkItem, offset: u64) -> Vec<ChunkPlace> {
    let stripes = chunk.stripes.len();
    let Ok(profile) = chunk.profile() else { return Vec::new() };
    let columns = profile.data_stripes(stripes);
    if profile.parity() == 0 || columns == 0 || chunk.stripe_length == 0 {
        return Vec::new();
    }
    let row = offset / chunk.stripe_length / columns as u64;
    let within = offset % chunk.stripe_length;
    let place = |column: usize| {
        let stripe = &chunk.stripes[((row % stripes as u64) as usize + column) % stripes];
        let start = stripe.offset.0.saturating_add(row.saturating_mul(chunk.stripe_length));
        ChunkPlace {
            devid: stripe.devid,
            offset: PhysicalAddress(start.saturating_add(within)),
            length: chunk.stripe_length - within,
        }
    };
    (columns..stripes).map(place).collect()
}

fn copy_bytes(device: &str, place: &ChunkPlace, length: u64, target: &mut HostOutput) -> anyhow::Result<()> {
    let DeviceId(devid) = place.devid;
    let source = File::open(device).with_context(|| format!("device {devid}: {device}"))?;
    let mut buffer = vec![0; 64 << 10];
    let mut done = 0;
    while done < length {
        let count = (length - done).min(buffer.len() as u64) as usize;
        source
            .read_exact_at(&mut buffer[..count], place.offset.0 + done)
            .with_context(|| device.to_owned())?;
        target.write_all(&buffer[..count]).context("writing the copy")?;
        done += count as u64;
    }
    Ok(())
}

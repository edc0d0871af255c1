//! `Search`: finds the layers over a device, and opens them.
//!
//! A device is a node. Its content decides which nodes follow: partitions, the data of an
//! encrypted volume, an array of several nodes, volumes of a group. The search goes on until
//! nothing new is found. Encrypted volumes come last, so that nobody is asked for a passphrase that
//! is not needed.
//!
//! **Invariants**
//! - Each array, group and encrypted volume is opened once. A header that leads to a layer below
//!   its own device is an error, so that every search ends.
//! - Devices that were not named are read without a lock to look at them. Only those that have a
//!   wanted UUID are opened as members.

use crate::content::Content;
use crate::error::{LayerError, Result};
use crate::keys::Keys;
use crate::luks::{LuksDevice, LuksHeader};
use crate::lvm::{self, VolumeGroup};
use crate::md::{self, MdDevice};
use crate::options::LayerOptions;
use papilio_device::{
    Access, Device, ImageOptions, LayerChoice, OpenOptions, PartitionDevice, split_partition,
};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most nodes of a search.
const MOST_NODES: usize = 4096;
/// The most layers over one another.
const DEEPEST: usize = 16;
/// The most files beside an image that are looked at.
const MOST_NEIGHBOURS: usize = 1024;
const BLOCK_DEVICES: &str = "/sys/class/block";

/// A device of a search.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) content: Content,
    /// The nodes that this one lies on.
    pub(crate) below: Vec<usize>,
    /// The layer that made it, such as "raid5"; empty for a file.
    pub(crate) made_by: String,
    /// The identities of all layers below.
    path: Vec<String>,
    /// The name of a logical volume.
    pub(crate) volume: Option<String>,
    /// Why this layer can only be read.
    pub(crate) read_only: Option<String>,
    /// Whether a layer was opened over this node, or failed.
    is_done: bool,
}

/// How the devices of a search are opened.
pub(crate) struct Search<'a> {
    pub(crate) options: &'a LayerOptions,
    pub(crate) keys: &'a Keys,
    pub(crate) path: &'a Path,
    pub(crate) open: &'a OpenOptions,
    pub(crate) image: &'a ImageOptions,
    pub(crate) nodes: Vec<Node>,
    pub(crate) faults: Vec<LayerError>,
    has_members: bool,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        options: &'a LayerOptions,
        keys: &'a Keys,
        path: &'a Path,
        open: &'a OpenOptions,
        image: &'a ImageOptions,
    ) -> Self {
        let (nodes, faults) = (Vec::new(), Vec::new());
        Self { options, keys, path, open, image, nodes, faults, has_members: false }
    }

    /// Adds the device that the search begins with.
    pub(crate) fn add_base(&mut self, device: Arc<dyn Device>) -> Result<()> {
        self.add(device, Vec::new(), String::new(), None)?;
        let is_unknown = |node: &Node| matches!(node.content, Content::Unknown | Content::Other(_));
        if let (Some(header), Some(node)) =
            (&self.options.header, self.nodes.first_mut().filter(|node| is_unknown(node)))
        {
            let device = open_header(header)?;
            node.content = Content::Luks(LuksHeader::read(&*device).map(Box::new));
        }
        Ok(())
    }

    fn add(
        &mut self,
        device: Arc<dyn Device>,
        below: Vec<usize>,
        made_by: String,
        identity: Option<String>,
    ) -> Result<usize> {
        let mut path: Vec<String> = below.iter().flat_map(|at| self.nodes[*at].path.clone()).collect();
        path.extend(identity);
        let content = Content::of(&*device, self.options.ignore_signatures);
        if let Some(layer) = identity_of(&content).filter(|own| path.contains(own)) {
            return Err(LayerError::Circle { device: device.name().to_owned(), layer });
        }
        if self.nodes.len() >= MOST_NODES || path.len() > DEEPEST {
            return Err(LayerError::NotFound(format!("{}: too many layers", device.name())));
        }
        let at = self.nodes.len();
        let node =
            Node { device, content, below, made_by, path, volume: None, read_only: None, is_done: false };
        self.nodes.push(node);
        self.add_partitions(at)?;
        Ok(at)
    }

    fn add_partitions(&mut self, at: usize) -> Result<()> {
        let node = &self.nodes[at];
        let Content::Partitions(table) = &node.content else { return Ok(()) };
        let disk = Arc::clone(&node.device);
        let partitions = table.partitions.clone();
        for partition in partitions {
            let name = format!("{}@{}", disk.name(), partition.number);
            let made = PartitionDevice::new(Arc::clone(&disk), name, partition.start, partition.length);
            // A partition past the end is a fault of the table, which other commands name.
            let Ok(device) = made else { continue };
            self.add(Arc::new(device), vec![at], format!("partition {}", partition.number), None)?;
        }
        Ok(())
    }

    /// Opens layers until the wanted device is there, or nothing more is found.
    pub(crate) fn run(&mut self, choice: LayerChoice<'_>) -> Result<()> {
        loop {
            if self.open_arrays()? || self.open_groups()? {
                continue;
            }
            let is_found = match choice {
                LayerChoice::Btrfs => self.nodes.iter().any(|node| matches!(node.content, Content::Btrfs(_))),
                LayerChoice::Volume(name) => {
                    self.nodes.iter().any(|node| node.volume.as_deref() == Some(name))
                }
                LayerChoice::Top => false,
            };
            if is_found || !self.unlock_next()? {
                return Ok(());
            }
        }
    }

    /// Returns the node of the wanted device.
    pub(crate) fn choose(&mut self, choice: LayerChoice<'_>) -> Result<usize> {
        let is_wanted = |node: &Node| match choice {
            LayerChoice::Btrfs => matches!(node.content, Content::Btrfs(_)),
            LayerChoice::Volume(name) => node.volume.as_deref() == Some(name),
            LayerChoice::Top => {
                !node.is_done && !node.content.is_layer() && !matches!(node.content, Content::Partitions(_))
            }
        };
        let found: Vec<usize> = (0..self.nodes.len()).filter(|at| is_wanted(&self.nodes[*at])).collect();
        let name = self.path.display();
        match (&found[..], choice) {
            ([one], _) => Ok(*one),
            ([], _) if !self.faults.is_empty() => Err(self.faults.remove(0)),
            ([], LayerChoice::Volume(volume)) => Err(LayerError::NotFound(format!(
                "{name} has no logical volume {volume}; it has {}",
                self.list()
            ))),
            ([], LayerChoice::Top) => {
                Err(LayerError::NotFound(format!("{name}: every layer is below another")))
            }
            ([], LayerChoice::Btrfs) => Err(LayerError::NotFound(format!(
                "no Btrfs file system lies over it; it has {}",
                self.list()
            ))),
            (several, _) => Err(LayerError::NotFound(format!(
                "{} devices may be meant: name a volume as IMAGE@GROUP/VOLUME or a partition as IMAGE@N; it has {}",
                several.len(),
                self.list()
            ))),
        }
    }

    /// Returns why a node can only be read, if a layer at or below it can.
    pub(crate) fn read_only(&self, at: usize) -> Option<LayerError> {
        let node = &self.nodes[at];
        let own = node
            .read_only
            .as_ref()
            .map(|reason| LayerError::ReadOnly { layer: node.made_by.clone(), reason: reason.clone() });
        own.or_else(|| node.below.iter().find_map(|below| self.read_only(*below)))
    }

    fn list(&self) -> String {
        let tops = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(at, _)| !self.nodes.iter().any(|node| node.below.contains(at)));
        let describe = |(_, node): (usize, &Node)| format!("{} ({})", node.device.name(), describe(node));
        let all: Vec<String> = tops.take(16).map(describe).collect();
        all.join(", ")
    }

    fn open_arrays(&mut self) -> Result<bool> {
        let pending = self.nodes.iter().filter(|node| !node.is_done).find_map(|node| match &node.content {
            Content::Member(superblock) => Some((superblock.uuid, superblock.raid_disks, superblock.label())),
            _ => None,
        });
        let Some((uuid, wanted, label)) = pending else { return Ok(false) };
        let identity = format!("array {}", crate::bytes::uuid(&uuid));
        let is_member = |content: &Content| matches!(content, Content::Member(own) if own.uuid == uuid);
        let count = |nodes: &[Node]| nodes.iter().filter(|node| is_member(&node.content)).count();
        self.widen(count(&self.nodes) < wanted as usize, &is_member)?;
        let members: Vec<usize> =
            (0..self.nodes.len()).filter(|at| is_member(&self.nodes[*at].content)).collect();
        let mut found = Vec::new();
        for at in &members {
            let node = &mut self.nodes[*at];
            if node.is_done {
                // A member that appears over the array itself.
                let device = node.device.name().to_owned();
                return Err(LayerError::Circle { device, layer: identity });
            }
            node.is_done = true;
            if let Content::Member(superblock) = &node.content {
                found.push((Arc::clone(&node.device), (**superblock).clone()));
            }
        }
        match md::assemble(found) {
            Err(error) => self.faults.push(error),
            Ok(array) => {
                let level = array.superblock.level_name();
                for left in &array.left_out {
                    tracing::warn!("{label}: {} is left out: {}", left.name, left.reason);
                }
                // A writer gets it as an error.
                let is_read = self.nodes[0].device.access() == Access::ReadOnly;
                if let Some(reason) = array.read_only.as_ref().filter(|_| is_read) {
                    tracing::warn!("{label} can only be read: {reason}");
                }
                let read_only = array.read_only.clone();
                let device = MdDevice::new(array, format!("{} ({level})", self.path.display()));
                let at = self.add(Arc::new(device), members, format!("{level} {label}"), Some(identity))?;
                self.nodes[at].read_only = read_only;
            }
        }
        Ok(true)
    }

    fn open_groups(&mut self) -> Result<bool> {
        let pending =
            self.nodes.iter().position(|node| !node.is_done && matches!(node.content, Content::Physical(_)));
        let Some(first) = pending else { return Ok(false) };
        if let Content::Physical(Err(_)) = &self.nodes[first].content {
            self.nodes[first].is_done = true;
            if let Content::Physical(Err(error)) =
                std::mem::replace(&mut self.nodes[first].content, Content::Unknown)
            {
                self.faults.push(error);
            }
            return Ok(true);
        }
        // A device without metadata of its own belongs to the group that lists it.
        let Some(mut group) = self.group_of(first) else {
            self.nodes[first].is_done = true;
            let name = self.nodes[first].device.name();
            self.faults.push(LayerError::NotFound(format!(
                "{name}: an LVM physical volume of no group that is known"
            )));
            return Ok(true);
        };
        let wanted = group.devices.clone();
        let is_member = |content: &Content| matches!(content, Content::Physical(Ok(physical)) if wanted.contains(&physical.uuid));
        let count = self.nodes.iter().filter(|node| is_member(&node.content)).count();
        self.widen(count < wanted.len(), &is_member)?;
        let mut members = Vec::new();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let Content::Physical(Ok(physical)) = &node.content else { continue };
            if !wanted.contains(&physical.uuid) {
                continue;
            }
            node.is_done = true;
            if let Some(other) = physical
                .group
                .as_ref()
                .filter(|other| other.uuid == group.uuid && other.sequence > group.sequence)
            {
                group = other.clone();
            }
            members.push((at, physical.uuid.clone()));
        }
        self.nodes[first].is_done = true;
        self.open_volumes(&group, &members)?;
        Ok(true)
    }

    fn group_of(&self, at: usize) -> Option<VolumeGroup> {
        let Content::Physical(Ok(own)) = &self.nodes[at].content else { return None };
        let listing = self.nodes.iter().filter_map(|node| match &node.content {
            Content::Physical(Ok(physical)) => physical.group.as_ref(),
            _ => None,
        });
        let listing = listing.filter(|group| group.devices.contains(&own.uuid));
        listing.max_by_key(|group| group.sequence).cloned()
    }

    fn open_volumes(&mut self, group: &VolumeGroup, members: &[(usize, String)]) -> Result<()> {
        for (place, (at, uuid)) in members.iter().enumerate() {
            if let Some((other, _)) = members[..place].iter().find(|(_, other)| other == uuid) {
                return Err(LayerError::Twins {
                    array: group.label(),
                    first: self.nodes[*other].device.name().to_owned(),
                    second: self.nodes[*at].device.name().to_owned(),
                    role: uuid.clone(),
                });
            }
        }
        let present: Vec<(String, Arc<dyn Device>)> =
            members.iter().map(|(at, uuid)| (uuid.clone(), Arc::clone(&self.nodes[*at].device))).collect();
        for volume in group.volumes.iter().filter(|volume| volume.is_visible) {
            let full = format!("{}/{}", group.name, volume.name);
            let name = format!("{}@{full}", self.path.display());
            match lvm::open_volume(group, &volume.name, &present, name) {
                Err(error) => self.faults.push(error),
                Ok((device, read_only)) => {
                    let below = members.iter().map(|(at, _)| *at).collect();
                    let identity = Some(format!("group {}", group.uuid));
                    let at = self.add(Arc::new(device), below, format!("volume {full}"), identity)?;
                    self.nodes[at].volume = Some(full);
                    self.nodes[at].read_only = read_only;
                }
            }
        }
        Ok(())
    }

    /// Unlocks an encrypted volume. Returns whether there was one to try.
    fn unlock_next(&mut self) -> Result<bool> {
        let pending =
            self.nodes.iter().position(|node| !node.is_done && matches!(node.content, Content::Luks(_)));
        let Some(at) = pending else { return Ok(false) };
        self.nodes[at].is_done = true;
        match self.unlock(at) {
            Err(error @ LayerError::Circle { .. }) => return Err(error),
            Err(error) => self.faults.push(error),
            Ok(()) => {}
        }
        Ok(true)
    }

    fn unlock(&mut self, at: usize) -> Result<()> {
        let node = &mut self.nodes[at];
        let device = Arc::clone(&node.device);
        let header = match &mut node.content {
            Content::Luks(Ok(header)) => (**header).clone(),
            content => match std::mem::replace(content, Content::Unknown) {
                Content::Luks(Err(error)) => return Err(error),
                _ => return Ok(()),
            },
        };
        let is_detached = !LuksHeader::is_at(&*device);
        let header_device = match &self.options.header {
            Some(path) if is_detached => open_header(path)?,
            _ => Arc::clone(&device),
        };
        let key = self.keys.unlock(&header, &*header_device, self.options)?;
        let name = format!("{} (LUKS)", device.name());
        let opened = LuksDevice::new(device, name, &header, &key)?;
        let identity = format!("LUKS volume {}", header.uuid);
        self.add(Arc::new(opened), vec![at], format!("LUKS{}", header.version), Some(identity))?;
        Ok(())
    }

    /// Adds the members that were named, and if more are needed, those among the neighbours.
    fn widen(&mut self, needs_more: bool, is_member: &dyn Fn(&Content) -> bool) -> Result<()> {
        if !needs_more {
            return Ok(());
        }
        if !self.has_members {
            self.has_members = true;
            for path in self.options.members.clone() {
                if self.is_known(&path) {
                    continue;
                }
                let failed = |error: papilio_device::OpenError| LayerError::NotFound(error.to_string());
                let device = self.open.open_base(split_partition(&path).0, self.image).map_err(failed)?.disk;
                self.add(device, Vec::new(), String::new(), None)?;
            }
        }
        for path in neighbours(self.path) {
            if self.is_known(&path) {
                continue;
            }
            let look = OpenOptions::new(Access::ReadOnly).lock(false);
            let Ok(image) = look.open_base(&path, self.image) else { continue };
            if !has_member(&image.disk, is_member) {
                continue;
            }
            drop(image);
            match self.open.open_base(&path, self.image) {
                Ok(image) => {
                    self.add(image.disk, Vec::new(), String::new(), None)?;
                }
                Err(error) => self.faults.push(LayerError::NotFound(error.to_string())),
            }
        }
        Ok(())
    }

    /// Returns whether a path is a file that the search has opened.
    fn is_known(&self, path: &Path) -> bool {
        let identity = |path: &Path| {
            let metadata = std::fs::metadata(split_partition(path).0).ok()?;
            Some((metadata.dev(), metadata.ino(), metadata.rdev()))
        };
        let Some(wanted) = identity(path) else { return false };
        let bases = self.nodes.iter().filter(|node| node.below.is_empty());
        identity(self.path) == Some(wanted)
            || bases.into_iter().any(|node| identity(Path::new(node.device.name())) == Some(wanted))
    }
}

/// Returns whether a disk, or a partition of it, is a wanted member.
fn has_member(disk: &Arc<dyn Device>, is_member: &dyn Fn(&Content) -> bool) -> bool {
    match Content::of(&**disk, false) {
        Content::Partitions(table) => table.partitions.iter().any(|partition| {
            let made =
                PartitionDevice::new(Arc::clone(disk), String::new(), partition.start, partition.length);
            made.is_ok_and(|device| is_member(&Content::of(&device, false)))
        }),
        content => is_member(&content),
    }
}

/// Returns the identity of the layer that a content is a part of.
fn identity_of(content: &Content) -> Option<String> {
    match content {
        Content::Member(superblock) => Some(format!("array {}", crate::bytes::uuid(&superblock.uuid))),
        Content::Physical(Ok(physical)) => {
            physical.group.as_ref().map(|group| format!("group {}", group.uuid))
        }
        Content::Luks(Ok(header)) => Some(format!("LUKS volume {}", header.uuid)),
        _ => None,
    }
}

/// Returns a text about the content of a node.
pub(crate) fn describe(node: &Node) -> String {
    match &node.content {
        Content::Btrfs(text) => text.clone(),
        Content::Luks(Ok(header)) => {
            let second = if header.is_secondary { ", first header damaged" } else { "" };
            let (version, cipher, sector) = (header.version, &header.cipher, header.sector_size);
            format!("LUKS{version}, {cipher}, sectors of {sector} bytes, {}{second}", header.uuid)
        }
        Content::Luks(Err(error)) => error.to_string(),
        Content::Member(superblock) => {
            let role = match superblock.role {
                md::Role::Active(place) => format!("member {place} of {}", superblock.raid_disks),
                md::Role::Spare => "spare".to_owned(),
                md::Role::Faulty => "failed member".to_owned(),
                md::Role::Journal => "journal".to_owned(),
            };
            let (level, version, label) = (superblock.level_name(), superblock.version, superblock.label());
            format!("{role} of {level} {label}, metadata {version}, events {}", superblock.events)
        }
        Content::Physical(Ok(physical)) => match &physical.group {
            Some(group) => format!("LVM2 physical volume of group {:?}", group.name),
            None => "LVM2 physical volume".to_owned(),
        },
        Content::Physical(Err(error)) => error.to_string(),
        Content::Partitions(table) => format!("{:?} partition table", table.kind).to_lowercase(),
        Content::Other(name) => (*name).to_owned(),
        Content::Unknown => "unknown".to_owned(),
    }
}

fn open_header(path: &Path) -> Result<Arc<dyn Device>> {
    let opened = OpenOptions::new(Access::ReadOnly).open(path);
    Ok(Arc::new(opened.map_err(|error| LayerError::NotFound(error.to_string()))?))
}

/// Returns the files beside an image, or the block devices of the machine, in order.
fn neighbours(path: &Path) -> Vec<PathBuf> {
    let path = split_partition(path).0;
    let Ok(metadata) = std::fs::metadata(path) else { return Vec::new() };
    let mut found: Vec<PathBuf> = if metadata.file_type().is_block_device() {
        let Ok(entries) = std::fs::read_dir(BLOCK_DEVICES) else { return Vec::new() };
        let device = |entry: std::fs::DirEntry| {
            Path::new("/dev").join(entry.file_name().to_string_lossy().replace('!', "/"))
        };
        entries.flatten().map(device).collect()
    } else {
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
        let is_image = |path: &PathBuf| {
            std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() >= 64 << 10)
        };
        entries.flatten().map(|entry| entry.path()).filter(is_image).take(MOST_NEIGHBOURS).collect()
    };
    found.sort();
    found
}

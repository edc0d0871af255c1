//! Assembling an array: which members are used, which are left out and why, and whether it can be
//! written.
//!
//! The member with the highest event count decides: its list of parts says who belongs to the
//! array. The kernel takes members whose count is one lower, too, as a crash between the writes of
//! two superblocks leaves them.

use super::geometry::{Geometry, Placement};
use super::superblock::{MdSuperblock, Reshape, Role, feature};
use crate::error::{LayerError, Result};
use papilio_device::Device;
use std::sync::Arc;

/// The format's name in messages.
const FORMAT: &str = "md";
/// The most members of an array.
const MOST_MEMBERS: u32 = 4096;

/// A member that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The device.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// A member that is used.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) device: Arc<dyn Device>,
    pub(super) superblock: MdSuperblock,
}

/// An array whose members are chosen.
#[derive(Debug)]
pub struct Assembled {
    /// The newest superblock.
    pub superblock: MdSuperblock,
    /// The members that are not used.
    pub left_out: Vec<LeftOut>,
    /// Why the array can only be read, if it can.
    pub read_only: Option<String>,
    /// The places of members that are missing.
    pub missing: Vec<u32>,
    pub(super) members: Vec<Option<Member>>,
    pub(super) geometry: Geometry,
    /// The shape that an unfinished reshape leads to.
    pub(super) new_geometry: Option<Geometry>,
}

impl Assembled {
    /// Returns the names of the members in use, by place.
    pub fn members(&self) -> Vec<(usize, String)> {
        let named = |(at, member): (usize, &Option<Member>)| {
            member.as_ref().map(|member| (at, member.device.name().to_owned()))
        };
        self.members.iter().enumerate().filter_map(named).collect()
    }
}

/// Chooses the members of an array among devices whose superblocks have one UUID.
///
/// # Errors
/// Too few members, two that claim one place, a level or feature that is not supported.
pub fn assemble(found: Vec<(Arc<dyn Device>, MdSuperblock)>) -> Result<Assembled> {
    let Some(newest) = found.iter().map(|(_, superblock)| superblock).max_by_key(|found| found.events) else {
        return Err(LayerError::NotFound("an array without members".to_owned()));
    };
    let newest = newest.clone();
    let label = newest.label();
    check(&newest, &label)?;
    let mut members: Vec<Option<Member>> = vec![None; newest.raid_disks as usize];
    let mut left_out = Vec::new();
    for (device, superblock) in found {
        match fitness(&superblock, &newest) {
            Ok(role) => match &members[role as usize] {
                Some(other) => {
                    return Err(LayerError::Twins {
                        array: label,
                        first: other.device.name().to_owned(),
                        second: device.name().to_owned(),
                        role: role.to_string(),
                    });
                }
                None => members[role as usize] = Some(Member { device, superblock }),
            },
            Err(reason) => left_out.push(LeftOut { name: device.name().to_owned(), reason }),
        }
    }
    let sizes: Vec<Option<u64>> =
        members.iter().map(|member| Some(member.as_ref()?.superblock.data_size)).collect();
    let missing: Vec<u32> =
        (0..).zip(&members).filter(|(_, member)| member.is_none()).map(|(at, _)| at).collect();
    let too_few = || LayerError::MembersMissing {
        array: label.clone(),
        present: members.iter().flatten().count(),
        wanted: members.len(),
        left_out: left_out_text(&left_out),
    };
    let needs_all = matches!(newest.level, -1 | 0);
    if needs_all && !missing.is_empty() {
        return Err(too_few());
    }
    let refused = |feature| LayerError::unsupported(&label, FORMAT, feature);
    let (geometry, new_geometry) = match &newest.reshape {
        None => (Geometry::new(&newest, &sizes).map_err(refused)?, None),
        Some(reshape) => {
            let (old, new) = (old_shape(&newest, reshape), new_shape(&newest, reshape));
            let new = Geometry::new(&new, &sizes).map_err(refused)?;
            (Geometry::new(&old, &sizes).map_err(refused)?, Some(new))
        }
    };
    if !is_complete(&geometry, &newest, &missing) {
        return Err(too_few());
    }
    for member in members.iter().flatten().filter(|_| !needs_all) {
        let superblock = &member.superblock;
        let moved = superblock.reshape.map_or(superblock.data_offset, |reshape| reshape.data_offset);
        let end = moved.max(superblock.data_offset).checked_add(newest.component);
        if end.is_none_or(|end| end > member.device.size()) {
            let reason = "the member is smaller than the array's superblock says";
            return Err(LayerError::damaged(member.device.name(), FORMAT, reason));
        }
    }
    let read_only = read_only(&newest, members.iter().flatten(), &missing, members.len());
    Ok(Assembled { superblock: newest, left_out, read_only, missing, members, geometry, new_geometry })
}

fn old_shape(newest: &MdSuperblock, reshape: &Reshape) -> MdSuperblock {
    MdSuperblock { raid_disks: reshape.old_disks, ..newest.clone() }
}

fn new_shape(newest: &MdSuperblock, reshape: &Reshape) -> MdSuperblock {
    let Reshape { level, layout, chunk, .. } = *reshape;
    MdSuperblock { level, layout, chunk, ..newest.clone() }
}

/// Writes the members that were left out as the end of a sentence.
pub(crate) fn left_out_text(left_out: &[LeftOut]) -> String {
    let one = |left: &LeftOut| format!("; {} is left out: {}", left.name, left.reason);
    left_out.iter().map(one).collect()
}

fn check(newest: &MdSuperblock, label: &str) -> Result<()> {
    let refused = |feature: &str| Err(LayerError::unsupported(label, FORMAT, feature));
    match () {
        () if newest.reshape.is_some_and(|reshape| {
            let is_parity = |level| matches!(level, 4..=6);
            !is_parity(newest.level) || !is_parity(reshape.level) || reshape.old_disks == 0
        }) =>
        {
            refused("a reshape that is not finished, of a level without parity")
        }
        () if newest.reshape.is_some_and(|reshape| reshape.old_disks > newest.raid_disks) => {
            refused("a reshape to fewer members that is not finished")
        }
        () if newest.features & !feature::KNOWN != 0 => refused("unknown features"),
        () if newest.features & feature::JOURNAL != 0 => refused("a journal"),
        () if newest.raid_disks == 0 || newest.raid_disks > MOST_MEMBERS => {
            refused(&format!("{} members", newest.raid_disks))
        }
        () => Ok(()),
    }
}

/// Returns the place of a member, or why it is left out.
fn fitness(superblock: &MdSuperblock, newest: &MdSuperblock) -> Result<u32, String> {
    let shape = |of: &MdSuperblock| (of.level, of.layout, of.chunk, of.raid_disks, of.component);
    if superblock.events.saturating_add(1) < newest.events {
        let (own, others) = (superblock.events, newest.events);
        return Err(format!("it missed changes: its event count is {own}, the array's {others}"));
    }
    if shape(superblock) != shape(newest) {
        return Err("its superblock describes an array of another shape".to_owned());
    }
    if superblock.features & feature::REPLACEMENT != 0 {
        return Err("it is to replace another member".to_owned());
    }
    if superblock.recovered.is_some() {
        return Err("its content is not rebuilt yet".to_owned());
    }
    // Version 0.90 and 1 list the parts by the number of the device.
    let role = newest.roles.get(superblock.number as usize).copied().unwrap_or(Role::Faulty);
    match role {
        Role::Active(place) if superblock.role != role => {
            Err(format!("the array has another member at place {place}"))
        }
        Role::Active(place) if place < newest.raid_disks => Ok(place),
        Role::Active(place) => Err(format!("the array has no place {place}")),
        Role::Spare => Err("it is a spare".to_owned()),
        Role::Faulty => Err("the array's other members say that it failed".to_owned()),
        Role::Journal => Err("it is a journal".to_owned()),
    }
}

/// Returns whether all data can be read.
fn is_complete(geometry: &Geometry, newest: &MdSuperblock, missing: &[u32]) -> bool {
    let is_missing = |member: usize| missing.contains(&(member as u32));
    match &geometry.placement {
        Placement::Linear(_) | Placement::Stripes { .. } => missing.is_empty(),
        Placement::Mirror => missing.len() < newest.raid_disks as usize,
        Placement::Parity(_) => missing.len() <= if newest.level == 6 { 2 } else { 1 },
        // The places of copies repeat after as many chunks as there are members.
        Placement::Mirrors(_) => (0..u64::from(newest.raid_disks)).all(|chunk| {
            let (copies, _) = geometry.copies(chunk * geometry.chunk);
            copies.iter().any(|copy| !is_missing(copy.member))
        }),
    }
}

fn read_only<'m>(
    newest: &MdSuperblock,
    mut members: impl Iterator<Item = &'m Member>,
    missing: &[u32],
    wanted: usize,
) -> Option<String> {
    let has_redundancy = !matches!(newest.level, -1 | 0);
    if !missing.is_empty() {
        return Some(format!("it is degraded: {} of {wanted} members are missing", missing.len()));
    }
    if newest.reshape.is_some() {
        return Some("its reshape is not finished".to_owned());
    }
    if has_redundancy && !newest.is_clean {
        return Some(
            "it is dirty: it was not stopped after its last write, so copies or parity may differ".to_owned(),
        );
    }
    if members.any(|member| !member.superblock.bad.is_empty()) {
        return Some("a member has a list of bad blocks".to_owned());
    }
    let unusual = [
        (feature::PPL | feature::MULTIPLE_PPLS, "it has a partial parity log"),
        (feature::CLUSTERED, "it is an array of a cluster"),
    ];
    let found = unusual.iter().find(|(bits, _)| newest.features & bits != 0);
    found.map(|(_, reason)| (*reason).to_owned())
}

//! Why a balance found no space: the bytes that a conversion has to move, and the room for them.
//!
//! Owns [`explain`].

use crate::units::Units;
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::format::items::chunk::RaidProfile;
use papilio::{BalanceFilter, BalanceOptions, Usage};

/// Adds to the error of a balance the room that its conversions lack, and the unallocated space of
/// each device. Other balances and other errors stay as they are.
pub fn explain(
    error: anyhow::Error,
    options: &BalanceOptions,
    usage: anyhow::Result<Usage>,
) -> anyhow::Error {
    // A mount tells the reason as text only.
    let text = format!("{error:#}");
    let is_space = text.contains("no space left") || text.contains("no room");
    let Ok(usage) = usage else { return error };
    let kinds = [
        ("data", BlockGroupFlags::DATA, &options.data),
        ("metadata", BlockGroupFlags::METADATA, &options.metadata),
    ];
    let lacks: Vec<String> =
        kinds.iter().filter_map(|(name, kind, filter)| lack(name, *kind, filter.as_ref()?, &usage)).collect();
    if !is_space || lacks.is_empty() {
        return error;
    }
    let free = usage.devices.iter().filter(|device| !device.is_missing());
    let free: Vec<String> = free
        .map(|device| format!("{} on device {}", Units::HUMAN.text(device.unallocated()), device.devid))
        .collect();
    anyhow::anyhow!("{text}; {}; unallocated are {}", lacks.join("; "), free.join(", "))
}

/// Says how much is to be converted, and the room for it.
fn lack(name: &str, kind: BlockGroupFlags, filter: &BalanceFilter, usage: &Usage) -> Option<String> {
    let profile = RaidProfile::from_flags(filter.convert?).ok()?;
    let of_kind = usage.spaces.iter().filter(|space| space.kind.contains(kind));
    let (done, other): (Vec<_>, Vec<_>) = of_kind.partition(|space| space.profile == profile);
    let left: u64 = other.iter().map(|space| space.used).sum();
    let free: u64 = done.iter().map(|space| space.total.saturating_sub(space.used)).sum();
    let room = free.saturating_add(usage.room_for(profile));
    if left == 0 {
        return None;
    }
    let target = profile.name().to_lowercase();
    let (human, missing) = (|bytes| Units::HUMAN.text(bytes), left.saturating_sub(room));
    let missing = match missing {
        0 => String::new(),
        missing => format!(", {} too little", human(missing)),
    };
    Some(format!(
        "{} of {name} are not {target} yet, which has room for {}{missing}",
        human(left),
        human(room)
    ))
}

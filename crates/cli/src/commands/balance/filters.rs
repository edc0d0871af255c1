//! The filters of a balance, spelled as in btrfs-balance(8).
//!
//! Owns [`parse`].

use crate::units::parse_size;
use papilio::format::DeviceId;
use papilio::{BalanceFilter, RaidProfile};
use std::ops::{Range, RangeInclusive};

/// Parses a comma-separated list of filters, which may be empty.
///
/// # Errors
/// The first filter that is unknown, or whose value is wrong.
pub fn parse(text: &str) -> Result<BalanceFilter, String> {
    let mut filter = BalanceFilter::default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value)));
        let needed = || value.ok_or_else(|| format!("{name} needs a value"));
        let wrong = |reason: String| format!("{part}: {reason}");
        match name {
            "usage" => filter.usage = Some(usage(needed()?).map_err(wrong)?),
            "profiles" => {
                let profiles = needed()?.split('|').map(|name| profile(name).map(RaidProfile::flags));
                filter.profiles = Some(profiles.collect::<Result<_, _>>().map_err(wrong)?);
            }
            "devid" => {
                let number = needed()?.parse().map_err(|_| wrong("not a device id".to_owned()))?;
                filter.devid = Some(DeviceId(number));
            }
            "drange" => filter.drange = Some(addresses(needed()?).map_err(wrong)?),
            "vrange" => filter.vrange = Some(addresses(needed()?).map_err(wrong)?),
            "stripes" => {
                let (low, high) = range(needed()?, number).map_err(wrong)?.into_inner();
                filter.stripes = Some(narrow(low)..=narrow(high));
            }
            "limit" => match needed()? {
                text if text.contains("..") => {
                    let (low, high) = range(text, number).map_err(wrong)?.into_inner();
                    (filter.limit_min, filter.limit) = (Some(narrow(low)), Some(narrow(high)));
                }
                text => filter.limit = Some(narrow(number(text).map_err(wrong)?)),
            },
            "convert" => filter.convert = Some(profile(needed()?).map_err(wrong)?.flags()),
            "soft" if value.is_none() => filter.soft = true,
            _ => return Err(format!("{part}: not a filter")),
        }
    }
    if filter.soft && filter.convert.is_none() {
        return Err("soft: needs convert".to_owned());
    }
    Ok(filter)
}

fn profile(name: &str) -> Result<RaidProfile, String> {
    let found = RaidProfile::ALL.into_iter().find(|profile| profile.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("{name:?} is not a profile"))
}

fn usage(text: &str) -> Result<RangeInclusive<u8>, String> {
    let percent = |text: &str| {
        let number = text.parse::<u8>().ok().filter(|number| *number <= 100);
        number.map(u64::from).ok_or_else(|| "not a percentage".to_owned())
    };
    let (low, high) = match text.contains("..") {
        true => range(text, percent)?.into_inner(),
        false => (0, percent(text)?),
    };
    Ok(low as u8..=high.min(100) as u8)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse::<u32>().map(u64::from).map_err(|_| "not a number".to_owned())
}

/// The end of an open range is the largest number.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Parses a range of addresses, whose end is not part of it.
fn addresses(text: &str) -> Result<Range<u64>, String> {
    range(text, parse_size).map(|range| *range.start()..*range.end())
}

/// Parses `A..B`, of which one side may be missing, or a single number.
fn range(text: &str, parse: impl Fn(&str) -> Result<u64, String>) -> Result<RangeInclusive<u64>, String> {
    let Some((low, high)) = text.split_once("..") else {
        let one = parse(text)?;
        return Ok(one..=one);
    };
    let low = if low.is_empty() { 0 } else { parse(low)? };
    let high = if high.is_empty() { u64::MAX } else { parse(high)? };
    if low > high {
        return Err("the range is empty".to_owned());
    }
    Ok(low..=high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio::BlockGroupFlags;

    #[test]
    fn filters_are_spelled_as_in_btrfs_balance() {
        let filter = parse("usage=50,devid=2,limit=3..7,vrange=1m..,profiles=single|raid1").unwrap();
        assert_eq!((filter.usage, filter.devid), (Some(0..=50), Some(DeviceId(2))));
        assert_eq!((filter.limit_min, filter.limit), (Some(3), Some(7)));
        assert_eq!(filter.vrange, Some(1 << 20..u64::MAX));
        assert_eq!(filter.profiles.unwrap(), [BlockGroupFlags::empty(), BlockGroupFlags::RAID1]);
        let filter = parse("convert=RAID1C3,soft,stripes=2..,usage=..20,drange=4096..8192").unwrap();
        assert_eq!((filter.convert, filter.soft), (Some(BlockGroupFlags::RAID1C3), true));
        assert_eq!((filter.stripes, filter.usage), (Some(2..=u32::MAX), Some(0..=20)));
        assert_eq!(filter.drange, Some(4096..8192));
        assert!(parse("").unwrap().usage.is_none());
        for wrong in [
            "usage",
            "usage=101",
            "soft",
            "soft=1,convert=dup",
            "convert=raid7",
            "limit=5..2",
            "size=3",
            "devid=x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

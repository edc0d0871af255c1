//! The values of options: numbers, sizes, and the messages about wrong ones.

use super::types::MountOptionError;

pub(super) fn needed<'a>(name: &str, value: Option<&'a str>) -> Result<&'a str, MountOptionError> {
    match value {
        None | Some("") => {
            Err(MountOptionError::new(format!("mount option {name} needs a value: {name}=...")))
        }
        Some(value) => Ok(value),
    }
}

pub(super) fn number(
    name: &str,
    value: Option<&str>,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, MountOptionError> {
    let text = needed(name, value)?;
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ if *range.end() == u64::MAX => Err(bad_value(name, value, "a number")),
        _ => {
            let wanted = format!("a number from {} to {}", range.start(), range.end());
            Err(bad_value(name, value, &wanted))
        }
    }
}

/// Parses a size below 4 GiB, with a suffix as in the kernel's `memparse`.
pub(super) fn size(name: &str, value: Option<&str>) -> Result<u32, MountOptionError> {
    u32::try_from(bytes_of(name, value)?).map_err(|_| bad_value(name, value, "a number of bytes"))
}

/// Parses a size in bytes with an optional suffix k, m or g.
pub(super) fn bytes_of(name: &str, value: Option<&str>) -> Result<u64, MountOptionError> {
    let text = needed(name, value)?;
    let shift = match text.as_bytes().last() {
        Some(b'k' | b'K') => 10,
        Some(b'm' | b'M') => 20,
        Some(b'g' | b'G') => 30,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| bad_value(name, value, "a number of bytes"))
}

pub(super) fn bad_value(name: &str, value: Option<&str>, wanted: &str) -> MountOptionError {
    MountOptionError::new(format!("mount option {name}: {:?} is not {wanted}", value.unwrap_or_default()))
}

/// Parses a user or group id. The last one means "none" to the kernel.
pub(super) fn id(name: &str, value: Option<&str>) -> Result<u32, MountOptionError> {
    Ok(number(name, value, 0..=u64::from(u32::MAX) - 1)? as u32)
}

/// Parses permission bits, an octal number.
pub(super) fn mask(name: &str, value: Option<&str>) -> Result<u32, MountOptionError> {
    let text = needed(name, value)?;
    match u32::from_str_radix(text, 8) {
        Ok(mask) if mask <= 0o777 && !text.starts_with('+') => Ok(mask),
        _ => Err(bad_value(name, value, "an octal number up to 777")),
    }
}

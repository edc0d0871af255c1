//! The names of flags. Unknown bits are shown as one number.

use bitflags::Flags;

/// Returns the names of the flags that are set, followed by unknown bits.
pub fn flag_names<F: Flags<Bits = B>, B: std::fmt::LowerHex + Copy + Into<u64>>(flags: F) -> Vec<String> {
    let mut rest: u64 = flags.bits().into();
    let mut names = Vec::new();
    for flag in F::FLAGS {
        let bits: u64 = flag.value().bits().into();
        if !flag.name().is_empty() && bits != 0 && rest & bits == bits {
            names.push(flag.name().to_owned());
            rest &= !bits;
        }
    }
    if rest != 0 {
        names.push(format!("UNKNOWN: {rest:#x}"));
    }
    names
}

/// Returns the names joined by `|`, or `none`.
pub fn flags_text<F: Flags<Bits = B>, B: std::fmt::LowerHex + Copy + Into<u64>>(flags: F) -> String {
    let names = flag_names(flags);
    if names.is_empty() { "none".to_owned() } else { names.join("|") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio::format::items::block_group::BlockGroupFlags;

    #[test]
    fn known_and_unknown_flags_are_shown() {
        assert_eq!(flags_text(BlockGroupFlags::METADATA | BlockGroupFlags::DUP), "METADATA|DUP");
        assert_eq!(flags_text(BlockGroupFlags::empty()), "none");
        assert_eq!(
            flags_text(BlockGroupFlags::from_bits_retain(1 | 1 << 60)),
            "DATA|UNKNOWN: 0x1000000000000000"
        );
    }
}

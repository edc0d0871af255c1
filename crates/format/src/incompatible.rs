//! Features that a file system may use and this code does not support, as a type.
//!
//! Owns [`Incompatible`]. It names neither a path nor a device; the layers that do I/O add those.

use crate::features::IncompatFeatures;

/// A file system that uses a feature this code does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Incompatible {
    /// Incompat feature bits that forbid reading. The text names those that are known, each with
    /// the reason, and shows the others as a mask.
    #[error("{}", incompat_text(*.0))]
    IncompatBits(u64),
    /// Read-only compatible feature bits; an unknown one forbids writing.
    #[error("unknown compat_ro feature bits {0:#x}: the file system can only be read")]
    CompatRoBits(u64),
    /// An unknown checksum algorithm.
    #[error("unknown checksum type {0}")]
    ChecksumType(u16),
    /// An unknown compression algorithm.
    #[error("unknown compression type {0}")]
    Compression(u8),
}

/// The features that are known and not supported, and why.
const REFUSED: [(IncompatFeatures, &str); 4] = [
    (IncompatFeatures::ZONED, "zoned mode (zones are written in order, which Papilio does not do)"),
    (
        IncompatFeatures::EXTENT_TREE_V2,
        "extent-tree-v2 (an experiment that was never finished; kernels refuse it, too)",
    ),
    (
        IncompatFeatures::RAID_STRIPE_TREE,
        "raid-stripe-tree (an experimental format: it says where data lies, and Papilio cannot read it)",
    ),
    (
        IncompatFeatures::REMAP_TREE,
        "remap-tree (an experimental format: it says where block groups lie, and Papilio cannot read it)",
    ),
];

fn incompat_text(bits: u64) -> String {
    let bits = IncompatFeatures::from_bits_retain(bits);
    let mut parts: Vec<String> = Vec::new();
    let mut rest = bits;
    for (feature, reason) in REFUSED {
        if bits.contains(feature) {
            parts.push(reason.to_owned());
            rest.remove(feature);
        }
    }
    if !rest.is_empty() {
        parts.push(format!("unknown incompat feature bits {:#x}", rest.bits()));
    }
    format!("the file system uses features that are not supported: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_features_are_named_and_others_are_a_mask() {
        let text = |bits| Incompatible::IncompatBits(bits).to_string();
        for (feature, _) in REFUSED {
            assert_eq!(feature.bits() & IncompatFeatures::SUPPORTED.bits(), 0, "{feature:?}");
        }
        let zoned = text(IncompatFeatures::ZONED.bits());
        assert!(zoned.contains("zoned mode (") && !zoned.contains("0x"), "{zoned}");
        let several = text(IncompatFeatures::RAID_STRIPE_TREE.bits() | 1 << 40);
        assert!(
            several.contains("raid-stripe-tree (") && several.ends_with("bits 0x10000000000"),
            "{several}"
        );
        assert!(text(1 << 13).contains("extent-tree-v2 (") && text(1 << 17).contains("remap-tree ("));
    }
}

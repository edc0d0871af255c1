//! Unusual names: the longest, the oddest, and different names with the same hash.
//!
//! The hash in a directory item's key is CRC-32C without its inversions, seeded with !1
//! (`btrfs_name_hash`). That function is linear, so colliding names need no search: four bytes
//! change the register from any value to any other.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::content::{Data, Writer};
use super::tree_spec::TreeSpec;

/// The reflected polynomial of CRC-32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const SEED: u32 = !1;

/// Returns the hash of a name in the key of a directory item or an xattr.
pub fn name_hash(name: &[u8]) -> u32 {
    // crc32c_append inverts before and after; the kernel does neither.
    !crc32c::crc32c_append(!SEED, name)
}

/// Returns `count` different names that start with `prefix` and have hash `hash`. Their last four
/// bytes are arbitrary, but neither zero nor slash.
pub fn colliding_names(prefix: &str, hash: u32, count: usize) -> Vec<Vec<u8>> {
    let mut target = hash;
    // The register's value four zero bytes earlier: 32 steps back.
    for _ in 0..32 {
        target = if target >> 31 == 1 { (target ^ POLYNOMIAL) << 1 | 1 } else { target << 1 };
    }
    (0_u64..)
        .map(|number| {
            let mut name = format!("{prefix}{number}").into_bytes();
            let bytes = (name_hash(&name) ^ target).to_le_bytes();
            name.extend(bytes);
            name
        })
        .filter(|name| !name.iter().any(|byte| [0, b'/'].contains(byte)))
        .take(count)
        .collect()
}

/// Finds pairs of plain names with the same hash among `tries` names (a birthday search).
pub fn colliding_pairs(prefix: &str, tries: u32) -> Vec<(String, String)> {
    // Numbered names would never collide: they differ in fewer bits than the hash has, and the
    // function is linear. So spread the number over ten letters of five bits.
    let name = |number: u32| {
        let bits = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let letter =
            |i: u32| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[(bits >> (5 * i + 14) & 31) as usize]);
        (0..10).fold(prefix.to_owned(), |name, i| name + letter(i).encode_utf8(&mut [0; 4]))
    };
    let mut hashes: Vec<_> = (0..tries).map(|n| (name_hash(name(n).as_bytes()), n)).collect();
    hashes.sort_unstable();
    hashes.windows(2).filter(|w| w[0].0 == w[1].0).map(|w| (name(w[0].1), name(w[1].1))).collect()
}

/// Writes files with such names.
pub fn write(writer: &mut Writer, folder: &Path, _spec: &TreeSpec) -> anyhow::Result<()> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    for fill in ["a", "b", "\u{e4}"] {
        names.push(fill.as_bytes().iter().copied().cycle().take(255 - 255 % fill.len()).collect());
    }
    let odd: [&[u8]; 16] = [
        b"x",
        b" ",
        b" leading and trailing ",
        b"new\nline",
        b"tab\there",
        b"\xff\xfe\x80",
        b"\x01\x1b[31m",
        b"-rf",
        b"*?[a]",
        b"quote\"'`",
        b"back\\slash",
        b"...",
        b".hidden",
        b"a:b",
        b"\xed\xa0\x80",
        b"%s%n",
    ];
    names.extend(odd.map(<[u8]>::to_vec));
    names.push("Schmetterling \u{1f98b} \u{202e}papilio".as_bytes().to_vec());
    names.push([b"z".repeat(251), b"\xff\n\x02~".to_vec()].concat());
    // Every byte that a name may hold.
    names.extend((1..=255_u8).filter(|byte| *byte != b'/').map(|byte| vec![b'_', byte]));
    names.extend(colliding_names("hash-", 0x1234_5678, 24));
    names.extend(colliding_names("zero-", 0, 3));
    names.extend(colliding_names("ones-", u32::MAX, 3));
    for (a, b) in colliding_pairs("pair-", 300_000) {
        names.extend([a.into_bytes(), b.into_bytes()]);
    }
    for (number, name) in (0..).zip(&names) {
        let path = folder.join(OsStr::from_bytes(name));
        if number % 7 == 3 {
            writer.directory(&path)?;
        } else {
            writer.file(&path, number, Data::Text)?;
        }
    }
    let mut path = folder.join("deep");
    writer.directory(&path)?;
    // As deep as plain paths can reach within PATH_MAX.
    while path.as_os_str().len() < 3500 {
        path.push("down-and-down-and-down");
        writer.directory(&path)?;
    }
    writer.file(&path.join("bottom"), 10, Data::Text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_collide() {
        // The hash that `btrfs inspect-internal dump-tree` shows for the root tree's entry
        // "default".
        assert_eq!(name_hash(b"default"), 0x8dbf_c2d2);
        let names = colliding_names("x", 0xdead_beef, 50);
        assert!(names.iter().all(|name| name_hash(name) == 0xdead_beef));
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), 50);
        let pairs = colliding_pairs("pair-", 300_000);
        assert!(!pairs.is_empty());
        for (a, b) in pairs {
            assert_eq!(name_hash(a.as_bytes()), name_hash(b.as_bytes()));
            assert_ne!(a, b);
        }
    }
}

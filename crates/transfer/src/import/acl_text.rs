//! Access control lists in the text form of archives.
//!
//! Owns the conversion to the value of the extended attribute. The text is that of
//! `acl_from_text(3)`, long or short, with numeric ids (`tar --numeric-owner`, or a fourth field as
//! written by star). The value is that of `include/uapi/linux/posix_acl_xattr.h`, version 2.

const VERSION: u32 = 2;
const NOBODY: u32 = u32::MAX;
/// Tags, in the order that the kernel requires.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Converts the text to the attribute's value, or returns why it is invalid.
pub(super) fn parse(text: &[u8]) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "access control list is not UTF-8".to_owned())?;
    let mut entries = Vec::new();
    for entry in text.split([',', '\n']) {
        let entry = entry.split('#').next().unwrap_or_default().trim();
        if !entry.is_empty() {
            let parsed = parse_entry(entry);
            entries.push(parsed.ok_or_else(|| format!("invalid access control list entry {entry:?}"))?);
        }
    }
    entries.sort_unstable_by_key(|&(tag, _, id)| (tag, id));
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(bits.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Ok(value)
}

fn parse_entry(entry: &str) -> Option<(u16, u16, u32)> {
    let fields: Vec<&str> = entry.split(':').map(str::trim).collect();
    let (kind, who, bits, number) = match fields[..] {
        [kind, bits] => (kind, "", bits, None),
        [kind, who, bits] => (kind, who, bits, None),
        [kind, who, bits, number] => (kind, who, bits, Some(number)),
        _ => return None,
    };
    let bits = bits.chars().try_fold(0, |bits, letter| {
        Some(
            bits | match letter {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return None,
            },
        )
    })?;
    let id = || number.unwrap_or(who).parse().ok();
    Some(match (kind, who) {
        ("user" | "u", "") => (USER_OBJ, bits, NOBODY),
        ("user" | "u", _) => (USER, bits, id()?),
        ("group" | "g", "") => (GROUP_OBJ, bits, NOBODY),
        ("group" | "g", _) => (GROUP, bits, id()?),
        ("mask" | "m", "") => (MASK, bits, NOBODY),
        ("other" | "o", "") => (OTHER, bits, NOBODY),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(value: &[u8]) -> Vec<(u16, u16, u32)> {
        assert_eq!(value[..4], VERSION.to_le_bytes());
        let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
        let id = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        value[4..].chunks(8).map(|entry| (number(entry), number(&entry[2..]), id(&entry[4..]))).collect()
    }

    #[test]
    fn long_short_and_star_forms_parse() {
        let long = b"user::rwx\nother::---\nmask::r-x\t#effective\ngroup::r--\nuser:1234:r-x\n";
        let wanted = [(1, 7, NOBODY), (2, 5, 1234), (4, 4, NOBODY), (0x10, 5, NOBODY), (0x20, 0, NOBODY)];
        assert_eq!(entries(&parse(long).unwrap()), wanted);
        assert_eq!(entries(&parse(b"u::rwx,u:lisa:rx:1234,g::r,m:rx,o:").unwrap()), wanted);
        for wrong in ["user:lisa:rwx", "user::rwz", "mask:1:r", "user", "a:b:c:d:e", "\u{e9}:x"] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(parse(b"\xff").is_err());
    }
}

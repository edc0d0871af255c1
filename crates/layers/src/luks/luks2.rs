//! The header of LUKS version 2: a binary header and JSON, twice.
//!
//! The second copy follows the first, whose size is one of nine. A copy is good if its checksum is;
//! of two good ones the newer counts, and of one the other.

use super::header::{FORMAT, KeyDigest, KeySlot, LuksHeader, MAGIC, checked};
use super::kdf::{Hash, Kdf};
use crate::bytes::{array, be16, be64, text};
use crate::error::{LayerError, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use papilio_device::{Device, PhysicalAddress};
use serde_json::Value;

/// Bytes of the binary header.
const BINARY: usize = 4096;
/// The sizes of a header, binary and JSON, and so the places of the second one.
const SIZES: [u64; 9] =
    [0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000];
/// The magic number of the second header.
const SECOND: &[u8; 6] = b"SKUL\xba\xbe";
/// The most key slots, segments or digests.
const MOST: usize = 64;

struct Copy {
    sequence: u64,
    uuid: String,
    label: String,
    json: Value,
}

/// Returns the place of the second header, if there is one.
pub(super) fn secondary_of(device: &dyn Device) -> Option<u64> {
    SIZES.into_iter().find(|place| {
        let mut start = [0; 8];
        let is_there = device.read_at(&mut start, PhysicalAddress(*place)).is_ok();
        is_there && start.starts_with(SECOND) && be16(&start, 6) == 2
    })
}

/// Reads the better of the two headers.
pub(super) fn read(device: &dyn Device) -> Result<LuksHeader> {
    let name = device.name();
    let first = read_copy(device, 0, MAGIC);
    let second = match secondary_of(device) {
        Some(place) => read_copy(device, place, SECOND),
        None => Err("there is no second header".to_owned()),
    };
    let (copy, is_secondary) = match (first, second) {
        (Ok(first), Ok(second)) if second.sequence > first.sequence => (second, true),
        (Ok(first), _) => (first, false),
        (Err(_), Ok(second)) => (second, true),
        (Err(first), Err(second)) => {
            return Err(LayerError::damaged(name, FORMAT, format!("{first}; {second}")));
        }
    };
    let header = interpret(name, &copy, is_secondary)?;
    checked(name, header, device.size())
}

fn read_copy(device: &dyn Device, place: u64, magic: &[u8; 6]) -> Result<Copy, String> {
    let which = if place == 0 { "the first header" } else { "the second header" };
    let fault = |text: &str| format!("{which} {text}");
    let mut bytes = vec![0; BINARY];
    device
        .read_at(&mut bytes, PhysicalAddress(place))
        .map_err(|error| fault(&format!("cannot be read: {error}")))?;
    if !bytes.starts_with(magic) || be16(&bytes, 6) != 2 {
        return Err(fault("has no magic number"));
    }
    let size = be64(&bytes, 8);
    if !SIZES.contains(&size) || be64(&bytes, 256) != place {
        return Err(fault("has a wrong size or place"));
    }
    bytes.resize(size as usize, 0);
    device
        .read_at(&mut bytes[BINARY..], PhysicalAddress(place + BINARY as u64))
        .map_err(|error| fault(&format!("cannot be read: {error}")))?;
    let hash = Hash::named(&text(&bytes[72..104])).ok_or_else(|| fault("has an unknown checksum"))?;
    let stored: [u8; 64] = array(&bytes, 448).unwrap_or([0; 64]);
    bytes[448..512].fill(0);
    if hash.digest(&[&bytes])[..] != stored[..hash.length()] {
        return Err(fault("has a wrong checksum"));
    }
    let area = &bytes[BINARY..];
    let end = area.iter().position(|byte| *byte == 0).unwrap_or(area.len());
    let json =
        serde_json::from_slice(&area[..end]).map_err(|error| fault(&format!("is no JSON: {error}")))?;
    Ok(Copy { sequence: be64(&bytes, 16), uuid: text(&bytes[168..208]), label: text(&bytes[24..72]), json })
}

/// Reads fields of JSON, and says which one is wrong.
struct Fields<'a> {
    name: &'a str,
    place: String,
    value: &'a Value,
}

impl<'a> Fields<'a> {
    fn fault<T>(&self, field: &str) -> Result<T> {
        Err(LayerError::damaged(self.name, FORMAT, format!("{}: no valid {field:?}", self.place)))
    }

    fn text(&self, field: &str) -> Result<&'a str> {
        self.value.get(field).and_then(Value::as_str).map_or_else(|| self.fault(field), Ok)
    }

    /// Numbers of 64 bits are strings in this JSON.
    fn number(&self, field: &str) -> Result<u64> {
        let value = self.value.get(field);
        let number = value.and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok()));
        number.map_or_else(|| self.fault(field), Ok)
    }

    fn small(&self, field: &str) -> Result<u32> {
        u32::try_from(self.number(field)?).or_else(|_| self.fault(field))
    }

    fn bytes(&self, field: &str) -> Result<Vec<u8>> {
        STANDARD.decode(self.text(field)?).or_else(|_| self.fault(field))
    }

    fn hash(&self) -> Result<Hash> {
        let hash = self.text("hash")?;
        let refused = || LayerError::unsupported(self.name, FORMAT, format!("the hash {hash:?}"));
        Hash::named(hash).ok_or_else(refused)
    }

    fn inside(&self, field: &str) -> Result<Self> {
        match self.value.get(field) {
            Some(value @ Value::Object(_)) => {
                Ok(Fields { name: self.name, place: format!("{}.{field}", self.place), value })
            }
            _ => self.fault(field),
        }
    }

    /// Returns the numbered objects in a field, in order.
    fn numbered(&self, field: &str) -> Result<Vec<(u32, Self)>> {
        let all = self.inside(field)?;
        let Value::Object(map) = all.value else { return self.fault(field) };
        if map.len() > MOST {
            return self.fault(field);
        }
        let mut found = Vec::new();
        for (number, value) in map {
            let Ok(parsed) = number.parse() else { return all.fault(number) };
            found.push((parsed, Fields { name: self.name, place: format!("{}.{number}", all.place), value }));
        }
        found.sort_by_key(|(number, _)| *number);
        Ok(found)
    }

    fn names(&self, field: &str) -> Result<Vec<u32>> {
        let Some(Value::Array(list)) = self.value.get(field) else { return self.fault(field) };
        let number = |value: &Value| value.as_str()?.parse().ok();
        list.iter().map(|value| number(value).map_or_else(|| self.fault(field), Ok)).collect()
    }
}

fn interpret(name: &str, copy: &Copy, is_secondary: bool) -> Result<LuksHeader> {
    let root = Fields { name, place: "LUKS2 JSON".to_owned(), value: &copy.json };
    let refuse = |feature: String| Err(LayerError::unsupported(name, FORMAT, feature));
    let config = root.inside("config")?;
    if let Some(Value::Array(mandatory)) = config.value.pointer("/requirements/mandatory")
        && let Some(requirement) = mandatory.first()
    {
        return refuse(format!("the requirement {requirement}"));
    }
    let mut segments = root.numbered("segments")?;
    if segments.len() != 1 {
        return refuse(format!("{} segments of data", segments.len()));
    }
    let (segment_number, segment) = segments.remove(0);
    if segment.text("type")? != "crypt" {
        return refuse(format!("data of the type {:?}", segment.text("type")?));
    }
    if segment.value.get("integrity").is_some() {
        return refuse("integrity protection (dm-integrity)".to_owned());
    }
    let sector_size = segment.small("sector_size")?;
    if !sector_size.is_power_of_two() || !(512..=4096).contains(&sector_size) {
        return segment.fault("sector_size");
    }
    let data_length = match segment.text("size")? {
        "dynamic" => None,
        _ => Some(segment.number("size")?),
    };
    let mut digests = Vec::new();
    let (mut data_digest, mut owners) = (None, Vec::new());
    for (_, fields) in root.numbered("digests")? {
        if fields.text("type")? != "pbkdf2" {
            return refuse(format!("digests of the type {:?}", fields.text("type")?));
        }
        if fields.names("segments")?.contains(&segment_number) {
            data_digest = Some(digests.len());
        }
        owners.push(fields.names("keyslots")?);
        digests.push(KeyDigest {
            hash: fields.hash()?,
            iterations: fields.small("iterations")?,
            salt: fields.bytes("salt")?,
            digest: fields.bytes("digest")?,
        });
    }
    let Some(data_digest) = data_digest else { return root.fault("digests") };
    let mut slots = Vec::new();
    for (number, fields) in root.numbered("keyslots")? {
        // Slots of other types, and those of no digest, open nothing.
        let Some(digest) = owners.iter().position(|slots| slots.contains(&number)) else { continue };
        if fields.text("type")? == "luks2" {
            slots.push(key_slot(number, &fields, digest)?);
        }
    }
    Ok(LuksHeader {
        version: 2,
        uuid: copy.uuid.clone(),
        label: copy.label.clone(),
        cipher: segment.text("encryption")?.to_owned(),
        sector_size,
        is_secondary,
        key_length: slots.first().map_or(1, |slot: &KeySlot| slot.key_length),
        slots,
        data_offset: segment.number("offset")?,
        data_length,
        iv_offset: segment.number("iv_tweak")?,
        digests,
        data_digest,
    })
}

fn key_slot(number: u32, fields: &Fields<'_>, digest: usize) -> Result<KeySlot> {
    let (spread, area, kdf) = (fields.inside("af")?, fields.inside("area")?, fields.inside("kdf")?);
    if spread.text("type")? != "luks1" || area.text("type")? != "raw" {
        return Err(LayerError::unsupported(fields.name, FORMAT, format!("the type of key slot {number}")));
    }
    let salt = kdf.bytes("salt")?;
    let kdf = match kdf.text("type")? {
        "pbkdf2" => Kdf::Pbkdf2 { hash: kdf.hash()?, iterations: kdf.small("iterations")?, salt },
        argon @ ("argon2i" | "argon2id") => Kdf::Argon2 {
            id: argon == "argon2id",
            passes: kdf.small("time")?,
            memory_kib: kdf.small("memory")?,
            lanes: kdf.small("cpus")?,
            salt,
        },
        other => {
            return Err(LayerError::unsupported(
                fields.name,
                FORMAT,
                format!("the key derivation {other:?}"),
            ));
        }
    };
    let priority = match fields.value.get("priority") {
        None => 1,
        Some(_) => u8::try_from(fields.small("priority")?.min(2)).unwrap_or(2),
    };
    Ok(KeySlot {
        number,
        priority,
        key_length: fields.small("key_size")? as usize,
        stripes: spread.small("stripes")? as usize,
        hash: spread.hash()?,
        kdf,
        material: area.number("offset")?,
        cipher: area.text("encryption")?.to_owned(),
        cipher_key_length: area.small("key_size")? as usize,
        digest,
    })
}

//! `VolumeGroup`: the contents of the metadata, checked.
//!
//! **Invariants** of a group: segments of a volume follow one another without gaps, and products of
//! extents and sizes fit in 63 bits.

use super::text::{Section, Value};

const SECTOR: u64 = 512;
/// The most segments of a volume.
const MOST_SEGMENTS: usize = 100_000;

/// A volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeGroup {
    /// The name.
    pub name: String,
    /// The UUID.
    pub uuid: String,
    /// The count of changes of the metadata.
    pub sequence: u64,
    /// The logical volumes, hidden parts included.
    pub volumes: Vec<LogicalVolume>,
    /// The UUIDs of the physical volumes, without dashes.
    pub devices: Vec<String>,
    pub(super) physical: Vec<Physical>,
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalVolume {
    /// The name.
    pub name: String,
    /// Whether it is a volume of its own, not a part of another.
    pub is_visible: bool,
    /// Whether the metadata lets it be written.
    pub is_writable: bool,
    /// Bytes.
    pub size: u64,
    /// The types of its segments, such as `striped`.
    pub kind: String,
    pub(super) segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Physical {
    pub(super) name: String,
    pub(super) uuid: String,
    /// Bytes to the first extent.
    pub(super) start: u64,
    /// Bytes of all extents.
    pub(super) length: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Bytes of the volume before it.
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) kind: Kind,
}

/// A place on a physical volume, or in another logical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) name: String,
    /// Bytes from the first extent of a physical volume, or from the start of a logical one.
    pub(super) offset: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Striped {
        stripe: u64,
        legs: Vec<Leg>,
    },
    Mirror {
        legs: Vec<Leg>,
    },
    /// A mirror whose legs have a volume of metadata each.
    Raid1 {
        legs: Vec<(String, Leg)>,
    },
    Other(String),
}

impl VolumeGroup {
    /// Reads the group of parsed metadata.
    ///
    /// # Errors
    /// The fault.
    pub(super) fn of(root: &Section) -> Result<Self, String> {
        let sections = root.all_sections();
        let [(name, group)] = sections[..] else { return Err(format!("{} volume groups", sections.len())) };
        let extent = group.number("extent_size")?.checked_mul(SECTOR).filter(|extent| *extent > 0);
        let extent = extent.ok_or("an extent size that no group has")?;
        let mut physical = Vec::new();
        for (name, section) in group.sections("physical_volumes") {
            physical.push(Physical {
                name: name.to_owned(),
                uuid: section.text("id")?.replace('-', ""),
                start: bytes(section.number("pe_start")?, SECTOR)?,
                length: bytes(section.number("pe_count")?, extent)?,
            });
        }
        let mut volumes = Vec::new();
        for (name, section) in group.sections("logical_volumes") {
            volumes.push(volume(name, section, extent).map_err(|reason| format!("volume {name}: {reason}"))?);
        }
        Ok(Self {
            name: name.to_owned(),
            uuid: group.text("id")?.to_owned(),
            sequence: group.number("seqno")?,
            devices: physical.iter().map(|physical| physical.uuid.clone()).collect(),
            volumes,
            physical,
        })
    }

    /// Returns a name of the group for messages.
    pub fn label(&self) -> String {
        format!("LVM volume group {:?}", self.name)
    }
}

fn bytes(count: u64, unit: u64) -> Result<u64, String> {
    let product = count.checked_mul(unit).filter(|product| *product < 1 << 63);
    product.ok_or_else(|| "a size that no device has".to_owned())
}

fn has_flag(section: &Section, flag: &str) -> bool {
    section
        .list("status")
        .is_ok_and(|list| list.iter().any(|value| matches!(value, Value::Text(text) if text == flag)))
}

fn volume(name: &str, section: &Section, extent: u64) -> Result<LogicalVolume, String> {
    let count = usize::try_from(section.number("segment_count")?).unwrap_or(usize::MAX);
    if count > MOST_SEGMENTS {
        return Err(format!("{count} segments"));
    }
    let all = section.all_sections();
    let (mut segments, mut size, mut kinds) = (Vec::new(), 0, Vec::new());
    for number in 1..=count {
        let wanted = format!("segment{number}");
        let found = all.iter().find(|(name, _)| *name == wanted);
        let (_, segment) = found.ok_or_else(|| format!("no {wanted}"))?;
        let start = bytes(segment.number("start_extent")?, extent)?;
        let length = bytes(segment.number("extent_count")?, extent)?;
        if start != size || length == 0 {
            return Err(format!("a gap before {wanted}"));
        }
        size = start.checked_add(length).ok_or("a size that no device has")?;
        let kind = segment.text("type")?;
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
        segments.push(Segment { start, length, kind: parse_kind(kind, segment, extent, length)? });
    }
    Ok(LogicalVolume {
        name: name.to_owned(),
        is_visible: has_flag(section, "VISIBLE"),
        is_writable: has_flag(section, "WRITE"),
        size,
        kind: kinds.join(", "),
        segments,
    })
}

fn parse_kind(kind: &str, segment: &Section, extent: u64, length: u64) -> Result<Kind, String> {
    Ok(match kind {
        "striped" => {
            let legs = legs(segment.list("stripes")?, extent)?;
            let stripe = match legs.len() {
                0 => return Err("a segment without stripes".to_owned()),
                1 => length,
                _ => bytes(segment.number("stripe_size")?, SECTOR)?,
            };
            let row = stripe.checked_mul(legs.len() as u64).ok_or("a size that no device has")?;
            if row == 0 || !length.is_multiple_of(row) {
                return Err("stripes that do not fill their segment".to_owned());
            }
            Kind::Striped { stripe, legs }
        }
        "mirror" => Kind::Mirror { legs: legs(segment.list("mirrors")?, extent)? },
        "raid1" => {
            let names = segment.list("raids")?;
            let text = |value: &Value| match value {
                Value::Text(text) => Ok(text.clone()),
                _ => Err("a leg without a name".to_owned()),
            };
            let leg = |pair: &[Value]| match pair {
                [meta, image] => Ok((text(meta)?, Leg { name: text(image)?, offset: 0 })),
                _ => Err("a leg without metadata".to_owned()),
            };
            Kind::Raid1 { legs: names.chunks(2).map(leg).collect::<Result<_, String>>()? }
        }
        other => Kind::Other(other.to_owned()),
    })
}

fn legs(list: &[Value], extent: u64) -> Result<Vec<Leg>, String> {
    let leg = |pair: &[Value]| match pair {
        [Value::Text(name), Value::Number(start)] => {
            Ok(Leg { name: name.clone(), offset: bytes(*start, extent)? })
        }
        _ => Err("a list of stripes that is not one".to_owned()),
    };
    list.chunks(2).map(leg).collect()
}

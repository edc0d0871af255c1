//! The manifest of a backup.
//!
//! Owns [`Manifest`]: the snapshot of a backup, the base that it needs, and the objects that hold
//! its stream and its outline. It is JSON in an object of its own, `backups/NAME`. A manifest that
//! was read is valid: names are names, and the lengths of objects add up.

use crate::error::{BackupError, Result};
use papilio::{Generation, SentSubvolume, Uuid};
use papilio_keys::hex;
use serde::{Deserialize, Serialize};

/// The version of the format.
const VERSION: u32 = 1;
/// The most bytes of a manifest: some 3 million objects.
pub const MOST_MANIFEST: u64 = 512 << 20;
/// The most bytes of content of an object with a part of a stream.
pub const MOST_DATA: u64 = 64 << 20;

/// An object that holds a part of a stream: name, bytes of content, bytes as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredObject(pub String, pub u32, pub u64);

impl StoredObject {
    /// Returns the object's name in the store.
    pub fn place(&self) -> String {
        data_name(&self.0)
    }
}

/// Returns the name in the store of an object with data.
pub fn data_name(name: &str) -> String {
    format!("data/{}/{name}", name.get(..2).unwrap_or_default())
}

/// The snapshot that a backup is the difference from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseName {
    /// The UUID by which streams name it.
    #[serde(with = "uuid_text")]
    pub uuid: Uuid,
    /// The sender's transaction that last changed it.
    pub ctransid: u64,
}

impl BaseName {
    /// Returns the identity that a stream gives.
    pub fn sent(self) -> SentSubvolume {
        SentSubvolume { uuid: self.uuid, ctransid: Generation(self.ctransid) }
    }
}

/// A UUID as text.
mod uuid_text {
    use papilio::Uuid;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(uuid: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(uuid)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Uuid, D::Error> {
        let text = String::deserialize(deserializer)?;
        Uuid::parse_str(&text).map_err(|_| D::Error::custom("this is no UUID"))
    }
}

/// A backup of one snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format: 1.
    pub version: u32,
    /// The snapshot's name; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// The snapshot's name in hexadecimal, if it is no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// The host that made the backup.
    pub host: String,
    /// The operand that named the snapshot.
    pub source: String,
    /// The time that retention goes by, in seconds since 1970.
    pub time: i64,
    /// When the manifest was written, in nanoseconds since 1970. Of two with one snapshot, the
    /// later one counts.
    pub written: u64,
    /// The subvolume that snapshots of one series are of.
    pub series: String,
    /// The snapshot.
    pub snapshot: BaseName,
    /// The snapshot that this is the difference from; without it, the backup is full.
    #[serde(default)]
    pub base: Option<BaseName>,
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// The objects whose contents, one behind another, are the stream.
    pub stream: Vec<StoredObject>,
    /// Bytes of the outline.
    pub outline_bytes: u64,
    /// The objects whose contents are the outline.
    pub outline: Vec<StoredObject>,
}

impl Manifest {
    /// Returns the version that this program writes.
    pub(crate) const fn version() -> u32 {
        VERSION
    }

    /// Parses and validates a manifest. `object` names it in errors.
    ///
    /// # Errors
    /// [`BackupError::Damaged`] with the fault.
    pub fn parse(object: &str, bytes: &[u8]) -> Result<Self> {
        let wrong = |fault: String| BackupError::damaged(object, fault);
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let fault = |error: serde_json::Error| wrong(format!("the manifest is not valid: {error}"));
        let Versioned { version } = serde_json::from_slice(bytes).map_err(fault)?;
        if version != VERSION {
            return Err(wrong(format!("version {version} of the format, where {VERSION} is known")));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(fault)?;
        match manifest.fault() {
            None => Ok(manifest),
            Some(fault) => Err(wrong(format!("the manifest is not valid: {fault}"))),
        }
    }

    /// Returns the manifest as bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a manifest has no maps with keys that are no text")
    }

    fn fault(&self) -> Option<String> {
        let name = self.name_bytes().unwrap_or_default();
        if matches!(&name[..], b"" | b"." | b"..")
            || name.len() > 255
            || name.iter().any(|byte| matches!(byte, b'/' | 0))
        {
            return Some(format!("{:?} is no name of a subvolume", self.name));
        }
        if self.base.is_some_and(|base| base.uuid == self.snapshot.uuid) {
            return Some("the snapshot is its own base".into());
        }
        let parts =
            [("stream", &self.stream, self.stream_bytes), ("outline", &self.outline, self.outline_bytes)];
        for (what, objects, bytes) in parts {
            let is_valid = |StoredObject(name, length, _): &StoredObject| {
                hex::array::<32>(name).is_some() && *length > 0 && u64::from(*length) <= MOST_DATA
            };
            if let Some(wrong) = objects.iter().find(|object| !is_valid(object)) {
                return Some(format!(
                    "an object of the {what} has the name {:?} and {} bytes",
                    wrong.0, wrong.1
                ));
            }
            let sum: u64 = objects.iter().map(|object| u64::from(object.1)).sum();
            if sum != bytes {
                return Some(format!("the objects of the {what} have {sum} bytes in place of {bytes}"));
            }
        }
        None
    }

    /// Returns the snapshot's name.
    pub fn name_bytes(&self) -> Option<Vec<u8>> {
        match &self.name_hex {
            Some(text) => hex::bytes(text),
            None => Some(self.name.clone().into_bytes()),
        }
    }

    /// Returns all objects.
    pub fn objects(&self) -> impl Iterator<Item = &StoredObject> {
        self.stream.iter().chain(&self.outline)
    }

    /// Returns the bytes of all objects as they are stored. Objects that other backups share count.
    pub fn stored_bytes(&self) -> u64 {
        self.objects().fold(0, |sum, object| sum.saturating_add(object.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Manifest {
        let uuid = |byte| Uuid::from_bytes([byte; 16]);
        Manifest {
            version: 1,
            name: "monday".into(),
            name_hex: None,
            host: "host".into(),
            source: "/mnt/monday".into(),
            time: 1_700_000_000,
            written: 5,
            series: "a".into(),
            snapshot: BaseName { uuid: uuid(1), ctransid: 9 },
            base: Some(BaseName { uuid: uuid(2), ctransid: 8 }),
            stream_bytes: 30,
            stream: vec![StoredObject("ab".repeat(32), 10, 7), StoredObject("cd".repeat(32), 20, 8)],
            outline_bytes: 5,
            outline: vec![StoredObject("ef".repeat(32), 5, 9)],
        }
    }

    #[test]
    fn a_manifest_is_parsed_as_written() {
        let manifest = example();
        assert_eq!(Manifest::parse("m", &manifest.to_bytes()).unwrap(), manifest);
        assert_eq!(manifest.stored_bytes(), 24);
    }

    #[test]
    fn contradictions_are_refused() {
        let wrong = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = example();
            change(&mut manifest);
            Manifest::parse("m", &manifest.to_bytes()).unwrap_err().to_string()
        };
        assert!(wrong(&|m| m.version = 2).contains("version 2"));
        for name in ["", "..", "a/b", "a\0b", &"x".repeat(256)] {
            assert!(wrong(&|m| m.name = name.into()).contains("no name"), "{name}");
        }
        assert!(wrong(&|m| m.name_hex = Some("2f".into())).contains("no name"));
        assert!(wrong(&|m| m.base = Some(m.snapshot)).contains("own base"));
        assert!(wrong(&|m| m.stream_bytes = 31).contains("30 bytes in place of 31"));
        assert!(wrong(&|m| m.outline[0].0 = "../../etc/passwd".into()).contains("outline"));
        assert!(wrong(&|m| m.stream[0].1 = 0).contains("0 bytes"));
        assert!(wrong(&|m| m.stream[0].1 = u32::MAX).contains("bytes"));
    }

    /// Changed bytes and random text never panic, and what is accepted is valid.
    #[test]
    fn hostile_manifests_are_refused_or_valid() {
        let good = example().to_bytes();
        let mut random = fastrand::Rng::with_seed(17);
        let mut accepted = 0;
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                match random.u8(..4) {
                    0 => bytes[at] = random.u8(..),
                    1 => bytes.truncate(at + 1),
                    2 => bytes.insert(at, random.u8(..)),
                    _ => {
                        let piece = good[random.usize(..good.len())..].to_vec();
                        bytes.splice(at..at, piece.into_iter().take(random.usize(..40)));
                    }
                }
            }
            if let Ok(manifest) = Manifest::parse("m", &bytes) {
                accepted += 1;
                assert_eq!(manifest.fault(), None);
                assert!(manifest.objects().all(|object| object.place().len() == "data/ab/".len() + 64));
            }
        }
        assert!(accepted > 0 && accepted < 15_000, "{accepted}");
        let deep = [&b"{\"version\":1,\"name\":"[..], &b"[".repeat(1 << 20)].concat();
        assert!(Manifest::parse("m", &deep).is_err());
    }
}

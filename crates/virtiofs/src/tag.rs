//! The name of a device.
//!
//! Owns [`Tag`].

/// Length of a tag in the device's configuration in bytes.
pub const TAG_BYTES: usize = 36;

/// The name by which a guest mounts the file system: `mount -t virtiofs TAG /mnt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag([u8; TAG_BYTES]);

impl Tag {
    /// Makes a tag of 1 to 36 bytes. `None` for another length, and for zeros and line ends in it.
    pub fn new(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let fits = (1..=TAG_BYTES).contains(&bytes.len());
        if !fits || bytes.iter().any(|byte| byte.is_ascii_control()) {
            return None;
        }
        let mut tag = [0; TAG_BYTES];
        tag[..bytes.len()].copy_from_slice(bytes);
        Some(Self(tag))
    }

    pub(crate) fn bytes(&self) -> &[u8; TAG_BYTES] {
        &self.0
    }
}

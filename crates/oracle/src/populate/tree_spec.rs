//! The parameters of a seeded tree: [`TreeSpec`].

/// How much to write, and the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeSpec {
    /// Approximate number of files; a few hundred special cases come on top.
    pub files: u64,
    /// Approximate bytes of file content, before compression and sharing.
    pub bytes: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Whether to write subvolumes and snapshots, which only Btrfs supports.
    pub subvolumes: bool,
}

impl Default for TreeSpec {
    fn default() -> Self {
        Self { files: 300, bytes: 16 << 20, seed: 1, subvolumes: true }
    }
}

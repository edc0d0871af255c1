//! The parts of a source that Btrfs cannot keep.
//!
//! Owns [`Losses`], which the walk over the source counts and the plan shows.

/// Properties of the source that Btrfs cannot have: how many inodes have each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// Project ids, or their inheritance.
    pub projects: u64,
    /// Space that is preallocated. The files read as before, and the image keeps the blocks.
    pub preallocated: u64,
    /// fs-verity.
    pub verity: u64,
    /// Directories whose names are not case-sensitive.
    pub casefold: u64,
    /// Inodes that hold quotas.
    pub quotas: u64,
    /// Hints for the allocation of XFS: extent sizes, DAX and the like.
    pub hints: u64,
    /// Extended attributes that the options leave out.
    pub xattrs: u64,
}

impl Losses {
    /// Returns a line for each property that is lost.
    pub fn lines(&self) -> Vec<String> {
        let named = [
            (self.projects, "inodes lose their project id, which Btrfs does not have"),
            (self.preallocated, "files lose preallocated space; they read as before"),
            (self.verity, "files lose fs-verity; their content stays"),
            (self.casefold, "directories distinguish upper from lower case now"),
            (self.quotas, "inodes with quotas stay in the image only"),
            (self.hints, "inodes lose hints that only XFS has, as extent sizes"),
            (self.xattrs, "extended attributes are left out, as asked"),
        ];
        named.iter().filter(|(count, _)| *count > 0).map(|(count, text)| format!("{count} {text}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_named() {
        let losses = Losses { projects: 3, ..Losses::default() };
        assert_eq!(losses.lines(), ["3 inodes lose their project id, which Btrfs does not have"]);
        assert!(Losses::default().lines().is_empty());
    }
}

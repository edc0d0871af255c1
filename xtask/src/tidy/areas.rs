//! The parts of the workspace that have ratchets of their own: crates, folders and documents.

/// Returns the part that holds `path`: `crates/NAME`, the top-level folder, or the file's own name.
pub fn area(path: &str) -> String {
    let mut parts = path.split('/');
    match (parts.next(), parts.next()) {
        (Some("crates"), Some(name)) => format!("crates/{name}"),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_crates_folders_and_documents() {
        for (path, expected) in [
            ("crates/fuse/src/lib.rs", "crates/fuse"),
            ("xtask/src/main.rs", "xtask"),
            ("docs/mount.md", "docs"),
            ("README.md", "README.md"),
        ] {
            assert_eq!(area(path), expected);
        }
    }
}

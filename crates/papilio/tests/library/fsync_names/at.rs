//! Operations of histories ([`At`]) and assertions on their results ([`Seen`]). Paths start at the
//! root.

use papilio::{File, FileKind, FileSystem, NewInode, NewKind, RenameMode, XattrSet};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A file system that a history changes. Each operation panics if it fails.
pub struct At(pub FileSystem);

impl At {
    pub fn mkdir(&self, path: &str) {
        self.0.create_dir(path).unwrap();
    }

    /// Makes a file whose content is its own path.
    pub fn file(&self, path: &str) -> File {
        self.file_with(path, path.as_bytes())
    }

    pub fn file_with(&self, path: &str, content: &[u8]) -> File {
        let file = self.0.create_file(path).unwrap();
        file.write_all_at(content, 0).unwrap();
        file
    }

    pub fn open(&self, path: &str) -> File {
        self.0.open_file(path).unwrap()
    }

    pub fn write(&self, path: &str, offset: u64, content: &[u8]) {
        self.open(path).write_all_at(content, offset).unwrap();
    }

    /// Fsyncs an inode of any kind.
    pub fn fsync(&self, path: &str) {
        self.0.inode_nofollow(path).unwrap().sync_all().unwrap();
    }

    pub fn rename(&self, from: &str, to: &str) {
        self.0.rename_with(from, to, RenameMode::Replace).unwrap();
    }

    pub fn exchange(&self, one: &str, other: &str) {
        self.0.rename_with(one, other, RenameMode::Exchange).unwrap();
    }

    pub fn whiteout(&self, from: &str, to: &str) {
        let (old, old_name) = self.0.parent(from).unwrap();
        let (new, new_name) = self.0.parent(to).unwrap();
        old.rename_leaving_whiteout(old_name, &new, new_name, RenameMode::Replace, (0, 0)).unwrap();
    }

    pub fn link(&self, existing: &str, path: &str) {
        self.0.hard_link(existing, path).unwrap();
    }

    pub fn unlink(&self, path: &str) {
        self.0.remove_file(path).unwrap();
    }

    pub fn rmdir(&self, path: &str) {
        self.0.remove_dir(path).unwrap();
    }

    pub fn symlink(&self, target: &str, path: &str) {
        self.0.symlink(target, path).unwrap();
    }

    pub fn special(&self, kind: NewKind<'_>, path: &str) {
        self.0.create(path, &NewInode::new(kind, 0o640)).unwrap();
    }

    pub fn tmpfile(&self, directory: &str, content: &[u8]) -> File {
        let new = NewInode::new(NewKind::Regular, 0o600);
        let file = self.0.inode(directory).unwrap().create_unnamed(&new).unwrap();
        file.write_all_at(content, 0).unwrap();
        file
    }

    pub fn name(&self, file: &File, path: &str) {
        let (directory, name) = self.0.parent(path).unwrap();
        directory.hard_link(file.inode(), name).unwrap();
    }

    pub fn set_xattr(&self, path: &str, name: &str, value: &str) {
        let inode = self.0.inode_nofollow(path).unwrap();
        inode.set_xattr(name.as_bytes(), value.as_bytes(), XattrSet::Any).unwrap();
    }

    pub fn remove_xattr(&self, path: &str, name: &str) {
        self.0.inode_nofollow(path).unwrap().remove_xattr(name.as_bytes()).unwrap();
    }

    pub fn chmod(&self, path: &str, mode: u32) {
        self.0.set_permissions(path, mode).unwrap();
    }
}

/// The root of a mounted file system, after a replay.
pub struct Seen(pub PathBuf);

impl Seen {
    /// Asserts that a file has the content that [`At::file`] gave it as `made`.
    pub fn is(&self, path: &str, made: &str) {
        self.holds(path, made.as_bytes());
    }

    pub fn holds(&self, path: &str, content: &[u8]) {
        let found = std::fs::read(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(found == content, "{path}: {} bytes, expected {}", found.len(), content.len());
    }

    pub fn gone(&self, path: &str) {
        assert!(self.path(path).symlink_metadata().is_err(), "{path} exists");
    }

    pub fn there(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    pub fn kind(&self, path: &str) -> FileKind {
        let mode = self.meta(path).mode();
        FileKind::from_mode(mode).expect("a known kind")
    }

    /// Asserts that a directory has exactly these names.
    pub fn lists(&self, path: &str, names: &[&str]) {
        let entries = std::fs::read_dir(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let found: BTreeSet<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let expected: BTreeSet<String> = names.iter().map(ToString::to_string).collect();
        assert!(found == expected, "{path} holds {found:?}, expected {expected:?}");
    }

    pub fn same(&self, one: &str, other: &str) {
        assert_eq!(self.meta(one).ino(), self.meta(other).ino(), "{one} and {other}");
    }

    pub fn links(&self, path: &str, links: u64) {
        assert_eq!(self.meta(path).nlink(), links, "links of {path}");
    }

    pub fn target(&self, path: &str, target: &str) {
        assert_eq!(std::fs::read_link(self.path(path)).unwrap().to_str(), Some(target));
    }

    pub fn xattr(&self, path: &str, name: &str, value: Option<&str>) {
        let found = xattr::get(self.path(path), name).unwrap();
        assert_eq!(found.as_deref(), value.map(str::as_bytes), "{name} of {path}");
    }

    pub fn mode(&self, path: &str, mode: u32) {
        assert_eq!(self.meta(path).mode() & 0o7777, mode, "mode of {path}");
    }

    /// Asserts that exactly one of two names exists.
    pub fn one_of(&self, one: &str, other: &str) {
        assert!(
            self.there(one) != self.there(other),
            "{one}: {}, {other}: {}",
            self.there(one),
            self.there(other)
        );
    }

    fn meta(&self, path: &str) -> std::fs::Metadata {
        self.path(path).symlink_metadata().unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }
}

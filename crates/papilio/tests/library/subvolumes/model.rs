//! Random subvolumes, snapshots, changes, renames and deletions, compared with a model in memory.

use crate::in_memory::{assert_clean, crashed, formatted_with, open};
use papilio::format::TreeId;
use papilio::{FileSystem, MkfsOptions, RenameMode};
use papilio_device::MemoryDevice;
use std::collections::BTreeMap;
use std::sync::Arc;

type Files = BTreeMap<String, Vec<u8>>;

/// The model of a subvolume.
#[derive(Clone, Debug, Default)]
struct Subvolume {
    files: Files,
    /// Names of subvolumes nested in the snapshot's source, here empty directories.
    stubs: Vec<String>,
    parent: Option<TreeId>,
    name: String,
    read_only: bool,
}

struct World {
    device: Arc<MemoryDevice>,
    fs: Option<FileSystem>,
    subvolumes: BTreeMap<TreeId, Subvolume>,
    random: fastrand::Rng,
    names: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let device = formatted_with(1 << 30, &MkfsOptions::new().node_size(4096));
        let fs = Some(open(&device));
        let subvolumes = BTreeMap::from([(TreeId(5), Subvolume::default())]);
        Self { device, fs, subvolumes, random: fastrand::Rng::with_seed(seed), names: 0 }
    }

    fn fs(&self) -> &FileSystem {
        self.fs.as_ref().unwrap()
    }

    fn path(&self, id: TreeId) -> String {
        let subvolume = &self.subvolumes[&id];
        subvolume.parent.map_or(String::new(), |parent| format!("{}/{}", self.path(parent), subvolume.name))
    }

    fn any(&mut self, wanted: impl Fn(&Subvolume) -> bool) -> Option<TreeId> {
        let ids: Vec<_> = self.subvolumes.iter().filter(|(_, s)| wanted(s)).map(|(id, _)| *id).collect();
        self.random.choice(ids)
    }

    fn new_name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}{}", self.names)
    }

    fn has_children(&self, id: TreeId) -> bool {
        self.subvolumes.values().any(|subvolume| subvolume.parent == Some(id))
    }

    fn is_within(&self, id: TreeId, above: TreeId) -> bool {
        id == above || self.subvolumes[&id].parent.is_some_and(|parent| self.is_within(parent, above))
    }

    fn create(&mut self) {
        let parent = self.any(|s| !s.read_only).unwrap();
        let name = self.new_name("sub");
        let root = self.fs().create_subvolume(format!("{}/{name}", self.path(parent))).unwrap();
        let new = Subvolume { parent: Some(parent), name, ..Subvolume::default() };
        assert!(self.subvolumes.insert(root.tree(), new).is_none(), "subvolume ids are not reused");
    }

    fn snapshot(&mut self) {
        let source = self.any(|_| true).unwrap();
        let parent = self.any(|s| !s.read_only).unwrap();
        let (name, read_only) = (self.new_name("snap"), self.random.u8(..4) == 0);
        let to = format!("{}/{name}", self.path(parent));
        let root = self.fs().snapshot(self.path(source) + "/", to, read_only).unwrap();
        let mut new = self.subvolumes[&source].clone();
        let children = self.subvolumes.values().filter(|s| s.parent == Some(source));
        new.stubs.extend(children.map(|child| child.name.clone()));
        (new.parent, new.name, new.read_only) = (Some(parent), name, read_only);
        assert!(self.subvolumes.insert(root.tree(), new).is_none(), "subvolume ids are not reused");
    }

    fn change(&mut self) {
        let Some(id) = self.any(|s| !s.read_only) else { return };
        let path = self.path(id);
        for _ in 0..self.random.usize(1..60) {
            let known: Vec<_> = self.subvolumes[&id].files.keys().cloned().collect();
            if self.random.u8(..5) == 0
                && let Some(name) = self.random.choice(&known)
            {
                self.fs().remove_file(format!("{path}/{name}")).unwrap();
                self.subvolumes.get_mut(&id).unwrap().files.remove(name);
                continue;
            }
            let old = if self.random.bool() { self.random.choice(known) } else { None };
            let name = match old {
                Some(name) => name,
                None => self.new_name("file"),
            };
            let length = if self.random.u8(..10) == 0 { 30_000 } else { 400 };
            let content: Vec<u8> = (0..self.random.usize(..length)).map(|_| self.random.u8(..)).collect();
            let offset = self.random.usize(..length / 2);
            let file = match self.fs().open_file(format!("{path}/{name}")) {
                Ok(file) => file,
                Err(_) => self.fs().create_file(format!("{path}/{name}")).unwrap(),
            };
            file.write_all_at(&content, offset as u64).unwrap();
            let expected = self.subvolumes.get_mut(&id).unwrap().files.entry(name).or_default();
            if content.is_empty() {
                continue;
            }
            expected.resize(expected.len().max(offset + content.len()), 0);
            expected[offset..offset + content.len()].copy_from_slice(&content);
        }
    }

    fn delete(&mut self) {
        let Some(id) = self.any(|s| s.parent.is_some()) else { return };
        let parent = self.subvolumes[&id].parent.unwrap();
        let result = if self.random.bool() {
            self.fs().delete_subvolume(self.path(id))
        } else {
            self.fs().delete_subvolume_by_id(id)
        };
        if self.has_children(id) || self.subvolumes[&parent].read_only {
            result.unwrap_err();
        } else {
            result.unwrap();
            self.subvolumes.remove(&id);
        }
    }

    fn rename(&mut self) {
        let Some(id) = self.any(|s| s.parent.is_some()) else { return };
        let to = self.any(|_| true).unwrap();
        let name = self.new_name("moved");
        let parent = self.subvolumes[&id].parent.unwrap();
        let new_path = format!("{}/{name}", self.path(to));
        let result = self.fs().rename_with(self.path(id), new_path, RenameMode::NoReplace);
        let read_only = self.subvolumes[&to].read_only || self.subvolumes[&parent].read_only;
        // A directory that moves changes its `..`, which a read-only subvolume forbids.
        let stays = self.subvolumes[&id].read_only && parent != to;
        if read_only || stays || self.is_within(to, id) {
            result.unwrap_err();
        } else {
            result.unwrap();
            let moved = self.subvolumes.get_mut(&id).unwrap();
            (moved.parent, moved.name) = (Some(to), name);
        }
    }

    fn set_read_only(&mut self) {
        let Some(id) = self.any(|s| s.parent.is_some()) else { return };
        let read_only = self.random.u8(..3) == 0;
        self.fs().set_subvolume_read_only(self.path(id), read_only).unwrap();
        self.subvolumes.get_mut(&id).unwrap().read_only = read_only;
    }

    fn step(&mut self) {
        match self.random.u8(..100) {
            0..8 => self.create(),
            8..20 => self.snapshot(),
            20..62 => self.change(),
            62..74 => self.delete(),
            74..80 => self.rename(),
            80..84 => self.set_read_only(),
            84..88 => self.fs().clean_subvolumes().unwrap(),
            88..92 => drop(self.fs().clean_subvolumes_step().unwrap()),
            92..97 => {
                self.fs().sync().unwrap();
                assert_clean(&crashed(&self.device));
            }
            _ => {
                self.fs.take().unwrap().close().unwrap();
                assert_clean(&self.device);
                self.fs = Some(open(&self.device));
                self.compare();
            }
        }
    }

    fn compare(&self) {
        let listed = self.fs().subvolumes().unwrap();
        let living: Vec<_> = listed.iter().filter(|s| !s.is_being_deleted()).map(|s| s.id).collect();
        assert_eq!(living, self.subvolumes.keys().copied().collect::<Vec<_>>());
        for (id, expected) in &self.subvolumes {
            let path = self.path(*id);
            let info = self.fs().subvolume(*id).unwrap();
            assert_eq!(info.parent, expected.parent);
            assert_eq!(info.is_read_only(), expected.read_only);
            assert_eq!(info.path.as_deref(), Some(path.trim_start_matches('/').as_bytes()));
            assert_eq!(self.fs().inode(format!("{path}/")).unwrap().tree(), *id);
            let mut names: Vec<_> = expected.files.keys().chain(&expected.stubs).cloned().collect();
            let children = self.subvolumes.values().filter(|s| s.parent == Some(*id));
            names.extend(children.map(|child| child.name.clone()));
            names.sort_unstable();
            let entries = self.fs().read_dir(format!("{path}/")).unwrap();
            let mut found: Vec<_> =
                entries.map(|e| String::from_utf8(e.unwrap().file_name().to_vec()).unwrap()).collect();
            found.sort_unstable();
            assert_eq!(found, names, "in {path}");
            for (name, content) in &expected.files {
                assert_eq!(self.fs().read(format!("{path}/{name}")).unwrap(), *content, "{path}/{name}");
            }
        }
    }
}

#[test]
fn random_changes_agree_with_the_model() {
    for seed in 0..6 {
        let mut world = World::new(seed);
        for _ in 0..160 {
            world.step();
        }
        world.compare();
        world.fs().clean_subvolumes().unwrap();
        world.compare();
        world.fs.take().unwrap().close().unwrap();
        assert_clean(&world.device);
    }
}

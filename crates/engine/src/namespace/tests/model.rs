//! Random operations, compared with a model made of maps.
//!
//! The model follows the rules of POSIX, not the code under test. Each operation must give the same
//! result, success or reason, and all names must agree at the end.

use super::world::{ROOT, World, directory, file, reason};
use crate::errors::{PathError, Result};
use crate::items::dir;
use crate::namespace::evict::{OrphanState, evict, next_orphan};
use crate::namespace::rename::RenameMode;
use papilio_format::{InodeNumber, ItemType};
use papilio_oracle::populate::names::colliding_names;
use std::collections::{BTreeMap, HashMap};

#[derive(Debug)]
enum Node {
    File { nlink: u32 },
    Directory { parent: InodeNumber, entries: BTreeMap<Vec<u8>, InodeNumber> },
}

struct Model {
    nodes: HashMap<InodeNumber, Node>,
}

type Answer<T = ()> = std::result::Result<T, PathError>;

impl Model {
    fn new() -> Self {
        let root = Node::Directory { parent: ROOT, entries: BTreeMap::new() };
        Self { nodes: HashMap::from([(ROOT, root)]) }
    }

    fn entries(&mut self, directory: InodeNumber) -> &mut BTreeMap<Vec<u8>, InodeNumber> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory { entries, .. }) => entries,
            other => panic!("{other:?}"),
        }
    }

    fn find(&mut self, directory: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        self.entries(directory).get(name).copied()
    }

    fn is_directory(&self, inode: InodeNumber) -> bool {
        matches!(self.nodes[&inode], Node::Directory { .. })
    }

    /// The parent and name of a directory below the root.
    fn place_of(&self, directory: InodeNumber) -> Option<(InodeNumber, Vec<u8>)> {
        let Node::Directory { parent, .. } = &self.nodes[&directory] else { return None };
        let Node::Directory { entries, .. } = &self.nodes[parent] else { return None };
        let (name, _) = entries.iter().find(|(_, inode)| **inode == directory)?;
        Some((*parent, name.clone()))
    }

    fn is_within(&self, mut inode: InodeNumber, above: InodeNumber) -> bool {
        loop {
            match &self.nodes[&inode] {
                _ if inode == above => return true,
                Node::Directory { parent, .. } if *parent != inode => inode = *parent,
                _ => return false,
            }
        }
    }

    fn add(&mut self, directory: InodeNumber, name: &[u8], inode: InodeNumber, node: Node) {
        self.nodes.insert(inode, node);
        self.entries(directory).insert(name.to_vec(), inode);
    }

    fn link(&mut self, inode: InodeNumber, directory: InodeNumber, name: &[u8]) -> Answer {
        if self.is_directory(inode) {
            return Err(PathError::NotPermitted);
        }
        if self.find(directory, name).is_some() {
            return Err(PathError::Exists);
        }
        if let Some(Node::File { nlink }) = self.nodes.get_mut(&inode) {
            *nlink += 1;
        }
        self.entries(directory).insert(name.to_vec(), inode);
        Ok(())
    }

    /// Removes a name, and the inode with its last name.
    fn drop_name(&mut self, directory: InodeNumber, name: &[u8]) {
        let inode = self.entries(directory).remove(name).unwrap();
        let last = match self.nodes.get_mut(&inode).unwrap() {
            Node::Directory { entries, .. } => {
                assert!(entries.is_empty());
                true
            }
            Node::File { nlink } => {
                *nlink -= 1;
                *nlink == 0
            }
        };
        if last {
            self.nodes.remove(&inode);
        }
    }

    fn remove(&mut self, directory: InodeNumber, name: &[u8], want_directory: bool) -> Answer {
        let inode = self.find(directory, name).ok_or(PathError::NotFound)?;
        match (self.is_directory(inode), want_directory) {
            (true, false) => return Err(PathError::IsADirectory),
            (false, true) => return Err(PathError::NotADirectory),
            (true, true) if !self.entries(inode).is_empty() => return Err(PathError::NotEmpty),
            _ => {}
        }
        self.drop_name(directory, name);
        Ok(())
    }

    fn adopt(&mut self, inode: InodeNumber, directory: InodeNumber) {
        if let Some(Node::Directory { parent, .. }) = self.nodes.get_mut(&inode) {
            *parent = directory;
        }
    }

    fn rename(
        &mut self,
        (from, old): (InodeNumber, &[u8]),
        (to, new): (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Answer {
        let source = self.find(from, old).ok_or(PathError::NotFound)?;
        let target = self.find(to, new);
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(PathError::Exists),
            (None, RenameMode::Exchange) => return Err(PathError::NotFound),
            _ => {}
        }
        if self.is_directory(source) && from != to && self.is_within(to, source) {
            return Err(PathError::IntoItself);
        }
        if let Some(target) = target {
            if self.is_directory(target) && from != to && self.is_within(from, target) {
                let exchange = mode == RenameMode::Exchange;
                return Err(if exchange { PathError::IntoItself } else { PathError::NotEmpty });
            }
            if target == source {
                return Ok(());
            }
            if mode == RenameMode::Exchange {
                self.entries(from).insert(old.to_vec(), target);
                self.entries(to).insert(new.to_vec(), source);
                self.adopt(target, from);
                self.adopt(source, to);
                return Ok(());
            }
            match (self.is_directory(source), self.is_directory(target)) {
                (true, false) => return Err(PathError::NotADirectory),
                (false, true) => return Err(PathError::IsADirectory),
                (true, true) if !self.entries(target).is_empty() => return Err(PathError::NotEmpty),
                _ => {}
            }
            self.drop_name(to, new);
        }
        self.entries(from).remove(old);
        self.entries(to).insert(new.to_vec(), source);
        self.adopt(source, to);
        Ok(())
    }
}

/// A generator of random numbers, reproducible by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

fn answer<T: std::fmt::Debug>(result: Result<T>) -> Answer {
    if result.is_ok() { Ok(()) } else { Err(reason(result)) }
}

/// Few names, many of them with equal hashes, so that most operations meet an existing name.
fn names() -> Vec<Vec<u8>> {
    let mut names = colliding_names("collide-", 0x1234_5678, 12);
    names.extend(colliding_names("others-", 77, 3));
    names.extend((0..10).map(|number| format!("name-{number}").into_bytes()));
    names.push(vec![b'l'; 255]);
    names
}

fn run(seed: u64, node_size: u32, operations: usize) {
    let world = World::new(node_size);
    let mut model = Model::new();
    let mut random = Random(seed);
    let names = names();
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    for step in 0..operations {
        let mut inodes: Vec<_> = model.nodes.keys().copied().collect();
        inodes.sort_unstable();
        let directories: Vec<_> = inodes.iter().copied().filter(|inode| model.is_directory(*inode)).collect();
        let (from, to) = (*random.pick(&directories), *random.pick(&directories));
        // Mostly pick an existing name.
        let there: Vec<_> = model.entries(from).keys().cloned().collect();
        let old = match there.is_empty() || random.below(4) == 0 {
            true => random.pick(&names).clone(),
            false => random.pick(&there).clone(),
        };
        let (old, new) = (&old[..], &random.pick(&names)[..]);
        let operation = random.below(12);
        let (got, expected) = match operation {
            0..=2 => {
                let is_directory = directories.len() < 40 && random.below(2) == 0;
                let result = world.create(from, new, &if is_directory { directory() } else { file() });
                let expected = if model.find(from, new).is_some() { Err(PathError::Exists) } else { Ok(()) };
                if let Ok(inode) = result {
                    let entries = BTreeMap::new();
                    let node = if is_directory {
                        Node::Directory { parent: from, entries }
                    } else {
                        Node::File { nlink: 1 }
                    };
                    model.add(from, new, inode, node);
                }
                (answer(result), expected)
            }
            3..=4 => {
                let inode = *random.pick(&inodes);
                (answer(world.link(inode, to, new)), model.link(inode, to, new))
            }
            5..=6 => (answer(world.unlink(from, old)), model.remove(from, old, false)),
            7 => {
                let (from, old) = model.place_of(to).unwrap_or((from, old.to_vec()));
                (answer(world.rmdir(from, &old)), model.remove(from, &old, true))
            }
            _ => {
                let modes =
                    [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let mode = *random.pick(&modes);
                (
                    answer(world.rename((from, old), (to, new), mode)),
                    model.rename((from, old), (to, new), mode),
                )
            }
        };
        assert_eq!(got, expected, "seed {seed}, step {step}");
        *done.entry(format!("{:?}", got)).or_default() += 1;
        if got.is_ok() {
            *done.entry(format!("operation {operation}")).or_default() += 1;
        }
        if step % 500 == 499 {
            compare(&world, &mut model);
            evict_all(&world);
        }
    }
    // All twelve operations succeeded at least once, and seven different reasons to refuse
    // occurred.
    assert!(done.len() >= 12 + 8, "{done:?}");
    compare(&world, &mut model);
    evict_all(&world);
    world.check();
    let tree = world.tree.tree();
    let inodes = tree.items().filter(|item| item.as_ref().unwrap().key.item_type == ItemType::INODE_ITEM);
    assert_eq!(inodes.count(), model.nodes.len(), "inodes without a name are left");
}

fn compare(world: &World, model: &mut Model) {
    world.check();
    let tree = world.tree.tree();
    for (number, node) in &model.nodes {
        let Node::Directory { entries, .. } = node else { continue };
        let range = dir::index_first_key(*number, 0)..=dir::index_last_key(*number);
        let listed: BTreeMap<Vec<u8>, InodeNumber> = tree
            .range(range)
            .flat_map(|item| {
                let item = item.unwrap();
                let entries = dir::entries_of(&tree, &item).unwrap();
                entries
                    .map(|entry| (entry.name.to_vec(), InodeNumber(entry.location.objectid)))
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(&listed, entries, "directory {number}");
        for (name, inode) in entries {
            assert_eq!(world.look_up(*number, name), Some(*inode));
        }
    }
}

fn evict_all(world: &World) {
    let mut from = InodeNumber(0);
    loop {
        let next = next_orphan(&world.tree.tree(), from).unwrap();
        let Some(orphan) = next else { break };
        assert!(matches!(orphan.state, OrphanState::Unnamed(_)));
        world.edit(|editor, _, _| evict(editor, orphan.inode)).unwrap();
        from = orphan.inode;
    }
    world.check();
}

#[test]
fn random_operations_match_the_model() {
    for seed in 0..6 {
        run(seed, 4096, 2500);
    }
    run(100, 16384, 5000);
}

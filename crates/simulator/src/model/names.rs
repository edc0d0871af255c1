//! Operations on names, inodes and attributes.

use crate::model::{Content, Entry, Model, Node, NodeKind, Place, ROOT, Subvolume, Verdict};
use crate::operation::NewFile;
use papilio::{PathError, RenameMode, XattrSet};
use std::collections::BTreeMap;
use std::sync::Arc;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

fn check_name(name: &[u8]) -> Verdict {
    if name.len() > 255 { Err(PathError::NameTooLong.into()) } else { Ok(()) }
}

impl Model {
    /// Creates an inode.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn create(&mut self, path: &[u8], mode: u32, owner: (u32, u32), new: &NewFile) -> Verdict<Place> {
        let (parent, name) = self.parent(path)?;
        self.check_changeable(parent)?;
        check_name(name)?;
        let entries = self.node(parent).entries().expect("`parent` returns a directory");
        if entries.contains_key(name) {
            return Err(PathError::Exists.into());
        }
        let node = self.inherit(parent, mode, owner, new);
        let place = self.add_node(parent.subvolume, Node { nlink: 1, ..node });
        self.entries_mut(parent).insert(name.to_vec(), Entry::Node(place.node));
        Ok(place)
    }

    /// Creates a file without a name and opens it.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn create_unnamed(&mut self, slot: u8, directory: &[u8]) -> Verdict {
        let parent = self.resolve(directory, true)?;
        if self.node(parent).entries().is_none() {
            return Err(PathError::NotADirectory.into());
        }
        self.check_changeable(parent)?;
        let node = self.inherit(parent, 0o600, (0, 0), &NewFile::Regular);
        let place = self.add_node(parent.subvolume, Node { linkable: true, ..node });
        self.insert_open(slot, place);
        Ok(())
    }

    fn inherit(&self, parent: Place, mode: u32, owner: (u32, u32), new: &NewFile) -> Node {
        let parent = self.node(parent);
        let kind = match new {
            NewFile::Regular => NodeKind::File(Content::default()),
            NewFile::Directory => NodeKind::Directory(BTreeMap::new()),
            NewFile::Symlink(target) => NodeKind::Symlink(target.clone()),
            NewFile::Special(kind, major, minor) => NodeKind::Special(*kind, *major, *minor),
        };
        let (mut mode, (uid, mut gid)) = (mode, owner);
        if matches!(kind, NodeKind::Symlink(_)) {
            mode = 0o777;
        }
        if parent.mode & SET_GROUP_ID != 0 {
            gid = parent.gid;
            if matches!(kind, NodeKind::Directory(_)) {
                mode |= SET_GROUP_ID;
            }
        }
        let (xattrs, nodatacow) = (BTreeMap::new(), parent.nodatacow);
        Node { kind, mode, uid, gid, nlink: 0, linkable: false, xattrs, nodatacow }
    }

    /// Adds a name to an inode.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn link(&mut self, existing: &[u8], path: &[u8]) -> Verdict {
        let target = self.resolve(existing, false)?;
        self.link_place(target, path)
    }

    /// Adds a name to an open file.
    ///
    /// # Errors
    /// The POSIX error; [`PathError::NotFound`] for a file that has lost its last name.
    pub fn link_open(&mut self, slot: u8, path: &[u8]) -> Verdict {
        self.link_place(self.open[&slot].place, path)
    }

    fn link_place(&mut self, target: Place, path: &[u8]) -> Verdict {
        let (parent, name) = self.parent(path)?;
        let exists = self.node(parent).entries().is_some_and(|entries| entries.contains_key(name));
        let unless_it_exists = |fault| if exists { PathError::Exists } else { fault };
        if parent.subvolume != target.subvolume {
            // The look-up of the new name comes first.
            check_name(name)?;
            return Err(unless_it_exists(PathError::CrossDevice).into());
        }
        if self.node(target).entries().is_some() {
            check_name(name)?;
            return Err(unless_it_exists(PathError::NotPermitted).into());
        }
        self.check_changeable(parent)?;
        check_name(name)?;
        if self.node(target).nlink == 0 && !self.node(target).linkable {
            return Err(PathError::NotFound.into());
        }
        if exists {
            return Err(PathError::Exists.into());
        }
        let node = self.node_mut(target);
        node.nlink += 1;
        node.linkable = false;
        self.entries_mut(parent).insert(name.to_vec(), Entry::Node(target.node));
        Ok(())
    }

    /// Removes a name: of an empty directory if `directory` is set, otherwise of anything else.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn remove(&mut self, path: &[u8], directory: bool) -> Verdict {
        let (parent, name) = self.parent(path)?;
        self.check_changeable(parent)?;
        check_name(name)?;
        let entries = self.node(parent).entries().expect("`parent` returns a directory");
        let entry = *entries.get(name).ok_or(PathError::NotFound)?;
        let Entry::Node(node) = entry else {
            if !directory {
                return Err(PathError::IsADirectory.into());
            }
            // An empty subvolume, or the stub of one, can be removed like a directory.
            if let Entry::Subvolume(number) = entry {
                let root = Place { subvolume: number, node: ROOT };
                if self.node(root).entries().is_some_and(|entries| !entries.is_empty()) {
                    return Err(PathError::NotEmpty.into());
                }
                self.subvolumes.remove(&number);
            }
            self.entries_mut(parent).remove(name);
            return Ok(());
        };
        let place = Place { node, ..parent };
        match (self.node(place).entries(), directory) {
            (Some(_), false) => return Err(PathError::IsADirectory.into()),
            (None, true) => return Err(PathError::NotADirectory.into()),
            (Some(entries), true) if !entries.is_empty() => return Err(PathError::NotEmpty.into()),
            _ => {}
        }
        self.entries_mut(parent).remove(name);
        self.drop_name(place);
        Ok(())
    }

    fn drop_name(&mut self, place: Place) {
        self.node_mut(place).nlink -= 1;
        self.delete_if_unused(place);
    }

    /// Renames an entry.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn rename(&mut self, from: &[u8], to: &[u8], mode: RenameMode) -> Verdict {
        let (old, old_name) = self.parent(from)?;
        let (new, new_name) = self.parent(to)?;
        if old.subvolume != new.subvolume {
            return self.rename_across((old, old_name), (new, new_name), mode);
        }
        self.check_changeable(old)?;
        let find = |place: Place, name: &[u8]| self.node(place).entries().and_then(|e| e.get(name)).copied();
        let (source, target) = (find(old, old_name), find(new, new_name));
        if old != new {
            source.map_or(Ok(()), |source| self.check_dotdot(source))?;
            target
                .filter(|_| mode == RenameMode::Exchange)
                .map_or(Ok(()), |target| self.check_dotdot(target))?;
        }
        check_name(old_name)?;
        check_name(new_name)?;
        let source = source.ok_or(PathError::NotFound)?;
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(PathError::Exists.into()),
            (None, RenameMode::Exchange) => return Err(PathError::NotFound.into()),
            _ => {}
        }
        if old != new {
            if self.contains_directory(old.subvolume, source, new) {
                return Err(PathError::IntoItself.into());
            }
            if target.is_some_and(|target| self.contains_directory(old.subvolume, target, old)) {
                let exchange = mode == RenameMode::Exchange;
                let kind = if exchange { PathError::IntoItself } else { PathError::NotEmpty };
                return Err(kind.into());
            }
        }
        if target == Some(source) {
            return Ok(());
        }
        if mode == RenameMode::Exchange {
            self.entries_mut(old).insert(old_name.to_vec(), target.expect("an exchange has a target"));
            self.entries_mut(new).insert(new_name.to_vec(), source);
            return Ok(());
        }
        if let Some(target) = target {
            self.replace(old.subvolume, source, target)?;
        }
        self.entries_mut(old).remove(old_name);
        self.entries_mut(new).insert(new_name.to_vec(), source);
        Ok(())
    }

    /// Renames between subvolumes, which is allowed for subvolumes only.
    fn rename_across(&mut self, from: (Place, &[u8]), to: (Place, &[u8]), mode: RenameMode) -> Verdict {
        let ((old, old_name), (new, new_name)) = (from, to);
        self.check_changeable(new)?;
        self.check_changeable(old)?;
        let find = |place: Place, name: &[u8]| self.node(place).entries().and_then(|e| e.get(name)).copied();
        let source = find(old, old_name).ok_or(PathError::NotFound)?;
        self.check_subvolume_move(source, new)?;
        self.check_dotdot(source)?;
        let target = find(new, new_name);
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(PathError::Exists.into()),
            (None, RenameMode::Exchange) => return Err(PathError::NotFound.into()),
            (Some(target), RenameMode::Exchange) => {
                self.check_subvolume_move(target, old)?;
                self.check_dotdot(target)?;
                self.entries_mut(old).insert(old_name.to_vec(), target);
                self.entries_mut(new).insert(new_name.to_vec(), source);
                return Ok(());
            }
            (Some(target), RenameMode::Replace) => self.replace(new.subvolume, source, target)?,
            (None, _) => check_name(new_name)?,
        }
        self.entries_mut(old).remove(old_name);
        self.entries_mut(new).insert(new_name.to_vec(), source);
        Ok(())
    }

    /// Refuses to move a read-only subvolume to another directory.
    fn check_dotdot(&self, entry: Entry) -> Verdict {
        match entry {
            Entry::Subvolume(number) if self.is_read_only(number) => Err(PathError::ReadOnly.into()),
            _ => Ok(()),
        }
    }

    /// Refuses to move anything but a subvolume, and a subvolume into itself.
    fn check_subvolume_move(&self, entry: Entry, to: Place) -> Verdict {
        match entry {
            Entry::Node(_) => Err(PathError::CrossDevice.into()),
            Entry::Stub => Err(PathError::NotEmpty.into()),
            Entry::Subvolume(number) if self.is_nested_in(to.subvolume, number) => {
                Err(PathError::IntoItself.into())
            }
            Entry::Subvolume(_) => Ok(()),
        }
    }

    /// Returns whether subvolume `below` is `above` or is nested in it.
    fn is_nested_in(&self, below: u64, above: u64) -> bool {
        let entries = self.subvolumes[&above].nodes.values().filter_map(|node| node.entries());
        below == above
            || entries
                .flat_map(BTreeMap::values)
                .any(|entry| matches!(entry, Entry::Subvolume(number) if self.is_nested_in(below, *number)))
    }

    fn replace(&mut self, subvolume: u64, source: Entry, target: Entry) -> Verdict {
        let is_directory = |entry| match entry {
            Entry::Node(node) => self.node(Place { subvolume, node }).entries().is_some(),
            _ => true,
        };
        match (is_directory(source), is_directory(target)) {
            (true, false) => return Err(PathError::NotADirectory.into()),
            (false, true) => return Err(PathError::IsADirectory.into()),
            _ => {}
        }
        let Entry::Node(node) = target else { return Err(PathError::NotEmpty.into()) };
        let place = Place { subvolume, node };
        if self.node(place).entries().is_some_and(|entries| !entries.is_empty()) {
            return Err(PathError::NotEmpty.into());
        }
        self.drop_name(place);
        Ok(())
    }

    /// Returns whether directory `below` is the target of `entry` or lies inside it, within one
    /// subvolume.
    fn contains_directory(&self, subvolume: u64, entry: Entry, below: Place) -> bool {
        let Entry::Node(node) = entry else { return false };
        let mut pending = vec![node];
        while let Some(node) = pending.pop() {
            let place = Place { subvolume, node };
            if place == below {
                return true;
            }
            let entries = self.node(place).entries();
            pending.extend(entries.into_iter().flat_map(BTreeMap::values).filter_map(|entry| match entry {
                Entry::Node(node) => Some(*node),
                _ => None,
            }));
        }
        false
    }

    /// Sets the mode; follows symbolic links.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn set_mode(&mut self, path: &[u8], mode: u32) -> Verdict {
        let place = self.resolve(path, true)?;
        self.check_changeable(place)?;
        self.node_mut(place).mode = mode;
        Ok(())
    }

    /// Sets owner and group, which clears privileges; does not follow symbolic links.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn set_owner(&mut self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Verdict {
        let place = self.resolve(path, false)?;
        self.check_changeable(place)?;
        let node = self.node_mut(place);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        if !matches!(node.kind, NodeKind::Directory(_)) {
            node.mode &= !SET_USER_ID;
            if node.mode & GROUP_EXECUTE != 0 {
                node.mode &= !SET_GROUP_ID;
            }
            node.xattrs.remove(b"security.capability".as_slice());
        }
        Ok(())
    }

    /// Sets times, which the model does not track.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn set_times(&mut self, path: &[u8]) -> Verdict {
        let place = self.resolve(path, false)?;
        self.check_changeable(place)
    }

    fn check_xattr(&self, path: &[u8], name: &[u8]) -> Verdict<Place> {
        let place = self.resolve(path, false)?;
        self.check_changeable(place)?;
        let plain = !matches!(self.node(place).kind, NodeKind::File(_) | NodeKind::Directory(_));
        if plain && name.starts_with(b"user.") {
            return Err(PathError::NotPermitted.into());
        }
        Ok(place)
    }

    /// Sets an attribute; does not follow symbolic links.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8], how: XattrSet) -> Verdict {
        let place = self.check_xattr(path, name)?;
        let xattrs = &mut self.node_mut(place).xattrs;
        match (how, xattrs.contains_key(name)) {
            (XattrSet::Create, true) => return Err(PathError::Exists.into()),
            (XattrSet::Replace, false) => return Err(PathError::NoAttribute.into()),
            _ => {}
        }
        xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    /// Removes an attribute; does not follow symbolic links.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Verdict {
        let place = self.check_xattr(path, name)?;
        self.node_mut(place).xattrs.remove(name).map(drop).ok_or(PathError::NoAttribute.into())
    }

    /// Sets or clears overwriting in place, which takes effect on empty files and directories only.
    /// `compress` requests compression, which excludes it.
    ///
    /// # Errors
    /// The POSIX error; also compression on a file that is overwritten in place.
    pub fn set_flags(&mut self, path: &[u8], nodatacow: bool, compress: bool) -> Verdict {
        let place = self.resolve(path, false)?;
        self.check_changeable(place)?;
        let node = self.node_mut(place);
        let changes = match &node.kind {
            NodeKind::File(content) => content.size() == 0,
            NodeKind::Directory(_) => true,
            _ => return Err(PathError::NotSupported.into()),
        };
        let new = if changes { nodatacow } else { node.nodatacow };
        if compress && new {
            return Err(super::Refusal::Invalid);
        }
        node.nodatacow = new;
        Ok(())
    }

    /// Creates an empty subvolume. It inherits no flags of the directory that it is in.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn create_subvolume(&mut self, path: &[u8]) -> Verdict {
        self.add_subvolume(path, |_| Subvolume::new(0o755))
    }

    /// Copies a whole subvolume, with its limits. Nested subvolumes become stubs.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn snapshot(&mut self, source: &[u8], path: &[u8], read_only: bool) -> Verdict {
        let place = self.resolve(source, true)?;
        self.add_subvolume(path, |model| {
            let mut copy = model.subvolumes[&place.subvolume].clone();
            copy.read_only = read_only;
            if model.quotas == Some(super::Quotas::Simple) {
                // The kernel (6.18) copies limits with full quotas only.
                copy.limits = super::Limits::default();
            }
            copy.nodes.retain(|_, node| node.nlink > 0);
            for node in copy.nodes.values_mut() {
                if let NodeKind::Directory(entries) = &node.kind
                    && entries.values().any(|entry| matches!(entry, Entry::Subvolume(_)))
                    && let NodeKind::Directory(entries) = &mut Arc::make_mut(node).kind
                {
                    for entry in entries.values_mut() {
                        if matches!(entry, Entry::Subvolume(_)) {
                            *entry = Entry::Stub;
                        }
                    }
                }
            }
            copy
        })
    }

    fn add_subvolume(&mut self, path: &[u8], make: impl FnOnce(&Self) -> Subvolume) -> Verdict {
        let (parent, name) = self.parent(path)?;
        self.check_changeable(parent)?;
        check_name(name)?;
        if self.node(parent).entries().is_some_and(|entries| entries.contains_key(name)) {
            return Err(PathError::Exists.into());
        }
        let mut subvolume = make(self);
        // Its root directory has one name, whatever the original's link count.
        Arc::make_mut(subvolume.nodes.get_mut(&ROOT).expect("every subvolume has a root directory")).nlink =
            1;
        let number = self.number();
        self.subvolumes.insert(number, subvolume);
        self.entries_mut(parent).insert(name.to_vec(), Entry::Subvolume(number));
        Ok(())
    }

    /// Deletes a subvolume and its content; refuses one with nested subvolumes.
    ///
    /// # Errors
    /// The POSIX error.
    pub fn delete_subvolume(&mut self, path: &[u8]) -> Verdict {
        let (parent, name) = self.parent(path)?;
        self.check_changeable(parent)?;
        let entries = self.node(parent).entries().expect("`parent` returns a directory");
        let Entry::Subvolume(number) = *entries.get(name).ok_or(PathError::NotFound)? else {
            return Err(super::Refusal::Invalid);
        };
        let nodes = self.subvolumes[&number].nodes.values();
        if nodes
            .filter_map(|node| node.entries())
            .flat_map(BTreeMap::values)
            .any(|entry| matches!(entry, Entry::Subvolume(_)))
        {
            return Err(PathError::NotEmpty.into());
        }
        self.entries_mut(parent).remove(name);
        match self.has_open(number) {
            true => self.subvolumes.get_mut(&number).expect("it has a name").deleted = true,
            false => drop(self.subvolumes.remove(&number)),
        }
        Ok(())
    }
}

//! Owners and permissions of a mount that differ from those in the image.
//!
//! Owns [`Ownership`] and [`IdMap`], which the options `uid=`, `gid=`, `umask=`, `fmask=`, `dmask=`
//! and `idmap=` fill in. The server applies them at its edge: to attributes and access control
//! lists that it shows, and to owners that it stores.
//!
//! **Invariants**
//! - The library and the image only ever see ids of the image.
//! - An id that a map does not have is shown as the kernel's overflow id, and is never stored.
//! - Where all files show one owner, a new inode gets the owner of its directory in the image.
//!
//! Kernel counterparts: `struct uid_gid_map` (`kernel/user_namespace.c`), the options of the same
//! names in `fs/fat/inode.c`.

use papilio::FileKind;
use papilio_ioctl::Errno;
use std::fmt;

/// The id that the kernel shows for one that it cannot map.
const OVERFLOW: u32 = 65534;
/// The id that means "none", for example in entries of access control lists.
const NONE: u32 = u32::MAX;
/// Permissions that a mask leaves open: set-user-id, set-group-id and sticky are dropped.
const PERMISSIONS: u32 = 0o777;
/// Bytes before the entries of an access control list, and bytes of an entry.
const LIST_HEADER: usize = 4;
const LIST_ENTRY: usize = 8;
/// Tags of entries that name a user or a group.
const NAMED_USER: u16 = 0x02;
const NAMED_GROUP: u16 = 0x08;

/// A range of ids in the image, and the ids that the mount shows for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdRange {
    image: u32,
    mount: u32,
    count: u32,
}

/// A one-to-one map between ids of the image and ids of the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    ranges: Vec<IdRange>,
}

/// Reasons why an id map is refused; each message is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdMapError {
    /// The text is not a list of ranges.
    #[error("{0:?} is not [u:|g:|b:]IMAGE:MOUNT:COUNT")]
    Syntax(String),
    /// A range ends past the last id.
    #[error("{0:?} goes past the last id")]
    TooLong(String),
    /// An id has two counterparts.
    #[error("{0:?} overlaps an earlier range")]
    Overlap(String),
}

impl IdMap {
    fn add(&mut self, range: IdRange, text: &str) -> Result<(), IdMapError> {
        let ends = |start: u32| start.checked_add(range.count - 1).filter(|&last| last != NONE);
        let (Some(last_image), Some(last_mount)) = (ends(range.image), ends(range.mount)) else {
            return Err(IdMapError::TooLong(text.to_owned()));
        };
        let overlaps = self.ranges.iter().any(|other| {
            let meets = |start: u32, last: u32, other_start: u32| {
                start <= other_start + (other.count - 1) && other_start <= last
            };
            meets(range.image, last_image, other.image) || meets(range.mount, last_mount, other.mount)
        });
        if overlaps {
            return Err(IdMapError::Overlap(text.to_owned()));
        }
        self.ranges.push(range);
        Ok(())
    }

    /// Returns the mount's id for one of the image.
    pub fn to_mount(&self, id: u32) -> Option<u32> {
        self.ranges.iter().find_map(|range| {
            let offset = id.checked_sub(range.image).filter(|&offset| offset < range.count)?;
            Some(range.mount + offset)
        })
    }

    /// Returns the image's id for one of the mount.
    pub fn to_image(&self, id: u32) -> Option<u32> {
        self.ranges.iter().find_map(|range| {
            let offset = id.checked_sub(range.mount).filter(|&offset| offset < range.count)?;
            Some(range.image + offset)
        })
    }
}

/// How ids of one kind, users or groups, are shown and stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Ids {
    /// As they are in the image.
    #[default]
    AsStored,
    /// All files show this id.
    All(u32),
    /// Through a map.
    Mapped(IdMap),
}

impl Ids {
    fn shown(&self, id: u32) -> u32 {
        match self {
            Self::AsStored => id,
            Self::All(shown) => *shown,
            Self::Mapped(map) => map.to_mount(id).unwrap_or(OVERFLOW),
        }
    }

    /// Returns the id for a new inode of a caller, in a directory with this stored id.
    fn stored_new(&self, caller: u32, directory: u32) -> Result<u32, Errno> {
        match self {
            Self::AsStored => Ok(caller),
            Self::All(_) => Ok(directory),
            Self::Mapped(map) => map.to_image(caller).ok_or(Errno(libc::EOVERFLOW)),
        }
    }

    /// Returns the id that `chown` to `id` stores; `None` if nothing changes.
    fn stored_change(&self, id: u32) -> Result<Option<u32>, Errno> {
        match self {
            Self::AsStored => Ok(Some(id)),
            Self::All(shown) if *shown == id => Ok(None),
            Self::All(_) => Err(Errno(libc::EPERM)),
            Self::Mapped(map) => map.to_image(id).map(Some).ok_or(Errno(libc::EOVERFLOW)),
        }
    }

    fn stored_in_list(&self, id: u32) -> Result<u32, Errno> {
        match self {
            Self::AsStored | Self::All(_) => Ok(id),
            Self::Mapped(map) => map.to_image(id).ok_or(Errno(libc::EOVERFLOW)),
        }
    }

    fn shown_in_list(&self, id: u32) -> u32 {
        match self {
            Self::AsStored | Self::All(_) => id,
            Self::Mapped(map) => map.to_mount(id).unwrap_or(OVERFLOW),
        }
    }

    fn map(&mut self) -> &mut IdMap {
        if !matches!(self, Self::Mapped(_)) {
            *self = Self::Mapped(IdMap::default());
        }
        match self {
            Self::Mapped(map) => map,
            Self::AsStored | Self::All(_) => unreachable!("the line above made it a map"),
        }
    }
}

/// The owners and permissions that a mount shows and stores. The default leaves all as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    users: Ids,
    groups: Ids,
    file_mask: Option<u32>,
    directory_mask: Option<u32>,
}

impl Ownership {
    /// Shows one owner for all files.
    pub fn set_user(&mut self, id: u32) {
        self.users = Ids::All(id);
    }

    /// Shows one group for all files.
    pub fn set_group(&mut self, id: u32) {
        self.groups = Ids::All(id);
    }

    /// Shows all permissions but these for files that are not directories.
    pub fn set_file_mask(&mut self, mask: u32) {
        self.file_mask = Some(mask);
    }

    /// Shows all permissions but these for directories.
    pub fn set_directory_mask(&mut self, mask: u32) {
        self.directory_mask = Some(mask);
    }

    /// Adds ranges to the maps: `[u:|g:|b:]IMAGE:MOUNT:COUNT`, separated by blanks. Without a
    /// letter a range is for users and groups.
    ///
    /// # Errors
    /// Another syntax, ids past the last one, or ranges that overlap.
    pub fn add_map(&mut self, text: &str) -> Result<(), IdMapError> {
        let mut any = false;
        for part in text.split_ascii_whitespace() {
            any = true;
            let bad = || IdMapError::Syntax(part.to_owned());
            let (users, groups, numbers) = match part.split_at_checked(2) {
                Some(("u:", rest)) => (true, false, rest),
                Some(("g:", rest)) => (false, true, rest),
                Some(("b:", rest)) => (true, true, rest),
                _ => (true, true, part),
            };
            let numbers: Vec<u32> =
                numbers.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| bad())?;
            let &[image, mount, count] = &*numbers else { return Err(bad()) };
            if count == 0 {
                return Err(bad());
            }
            let range = IdRange { image, mount, count };
            for (wanted, ids) in [(users, &mut self.users), (groups, &mut self.groups)] {
                if wanted {
                    ids.map().add(range, part)?;
                }
            }
        }
        if any { Ok(()) } else { Err(IdMapError::Syntax(text.to_owned())) }
    }

    /// Returns the owner that the mount shows for one in the image.
    pub fn shown_user(&self, id: u32) -> u32 {
        self.users.shown(id)
    }

    /// Returns the group that the mount shows for one in the image.
    pub fn shown_group(&self, id: u32) -> u32 {
        self.groups.shown(id)
    }

    /// Returns the permissions that the mount shows. Those of symbolic links have no meaning.
    pub fn shown_permissions(&self, kind: FileKind, stored: u32) -> u32 {
        let mask = match kind {
            FileKind::Symlink => None,
            FileKind::Directory => self.directory_mask,
            _ => self.file_mask,
        };
        mask.map_or(stored, |mask| PERMISSIONS & !mask)
    }

    /// Returns the owner and group to store for a new inode of a caller, in a directory with the
    /// given owner and group in the image.
    ///
    /// # Errors
    /// EOVERFLOW for a caller whose ids the map does not have.
    pub fn stored_new(&self, caller: (u32, u32), directory: (u32, u32)) -> Result<(u32, u32), Errno> {
        let user = self.users.stored_new(caller.0, directory.0)?;
        Ok((user, self.groups.stored_new(caller.1, directory.1)?))
    }

    /// Returns the owner that `chown` to `id` stores; `None` if nothing changes.
    ///
    /// # Errors
    /// EPERM if all files show another owner, EOVERFLOW if the map does not have the id.
    pub fn stored_user(&self, id: u32) -> Result<Option<u32>, Errno> {
        self.users.stored_change(id)
    }

    /// Like [`Ownership::stored_user`], for groups.
    ///
    /// # Errors
    /// As for [`Ownership::stored_user`].
    pub fn stored_group(&self, id: u32) -> Result<Option<u32>, Errno> {
        self.groups.stored_change(id)
    }

    /// Returns whether access control lists have no effect, because masks decide on permissions.
    pub fn hides_lists(&self) -> bool {
        self.file_mask.is_some() || self.directory_mask.is_some()
    }

    /// Returns an access control list of the image with the ids of the mount.
    pub fn shown_list(&self, mut list: Vec<u8>) -> Vec<u8> {
        let shown = self.translate_list(&mut list, |ids, id| Ok(ids.shown_in_list(id)));
        debug_assert!(shown.is_ok(), "showing an id cannot fail");
        list
    }

    /// Returns an access control list of a caller with the ids of the image.
    ///
    /// # Errors
    /// EOVERFLOW if the map does not have one of its ids.
    pub fn stored_list(&self, list: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut list = list.to_vec();
        self.translate_list(&mut list, Ids::stored_in_list)?;
        Ok(list)
    }

    fn translate_list(
        &self,
        list: &mut [u8],
        translate: impl Fn(&Ids, u32) -> Result<u32, Errno>,
    ) -> Result<(), Errno> {
        for entry in list.get_mut(LIST_HEADER..).unwrap_or_default().chunks_exact_mut(LIST_ENTRY) {
            let ids = match u16::from_le_bytes([entry[0], entry[1]]) {
                NAMED_USER => &self.users,
                NAMED_GROUP => &self.groups,
                _ => continue,
            };
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&translate(ids, id)?.to_le_bytes());
        }
        Ok(())
    }
}

/// Formats what differs from the default, in the syntax of mount options.
impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = Vec::new();
        for (ids, all, letter) in [(&self.users, "uid", 'u'), (&self.groups, "gid", 'g')] {
            match ids {
                Ids::AsStored => {}
                Ids::All(id) => options.push(format!("{all}={id}")),
                Ids::Mapped(map) => {
                    options.extend(map.ranges.iter().map(|range| {
                        format!("idmap={letter}:{}:{}:{}", range.image, range.mount, range.count)
                    }))
                }
            }
        }
        for (mask, name) in [(self.file_mask, "fmask"), (self.directory_mask, "dmask")] {
            options.extend(mask.map(|mask| format!("{name}={mask:03o}")));
        }
        f.write_str(&options.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(text: &str) -> Ownership {
        let mut ownership = Ownership::default();
        ownership.add_map(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        ownership
    }

    #[test]
    fn default_changes_nothing() {
        let ownership = Ownership::default();
        assert_eq!((ownership.shown_user(7), ownership.shown_group(8)), (7, 8));
        assert_eq!(ownership.shown_permissions(FileKind::Regular, 0o4751), 0o4751);
        assert_eq!(ownership.stored_new((1, 2), (3, 4)), Ok((1, 2)));
        assert_eq!(ownership.stored_user(5), Ok(Some(5)));
        assert!(!ownership.hides_lists() && ownership.to_string().is_empty());
    }

    #[test]
    fn one_owner_for_all_files() {
        let mut ownership = Ownership::default();
        ownership.set_user(1000);
        assert_eq!((ownership.shown_user(0), ownership.shown_group(7)), (1000, 7));
        // New files belong to the owner of the directory, so that its user can reach them.
        assert_eq!(ownership.stored_new((1000, 50), (33, 34)), Ok((33, 50)));
        assert_eq!(ownership.stored_user(1000), Ok(None));
        assert_eq!(ownership.stored_user(0), Err(Errno(libc::EPERM)));
        assert_eq!(ownership.stored_group(9), Ok(Some(9)));
        ownership.set_group(100);
        assert_eq!(ownership.shown_group(7), 100);
        assert_eq!(ownership.to_string(), "uid=1000,gid=100");
    }

    #[test]
    fn masks_replace_permissions() {
        let mut ownership = Ownership::default();
        ownership.set_file_mask(0o133);
        ownership.set_directory_mask(0o022);
        assert_eq!(ownership.shown_permissions(FileKind::Regular, 0o4700), 0o644);
        assert_eq!(ownership.shown_permissions(FileKind::Directory, 0o1000), 0o755);
        assert_eq!(ownership.shown_permissions(FileKind::Symlink, 0o777), 0o777);
        assert!(ownership.hides_lists());
        assert_eq!(ownership.to_string(), "fmask=133,dmask=022");
    }

    #[test]
    fn maps_translate_both_ways() {
        let ownership = mapped("u:0:1000:1 u:1:100001:65535 g:5:50:2");
        for (image, mount) in [(0, 1000), (1, 100_001), (65535, 165_535)] {
            assert_eq!(ownership.shown_user(image), mount);
            assert_eq!(ownership.stored_user(mount), Ok(Some(image)));
        }
        assert_eq!(ownership.shown_group(6), 51);
        // Neither 65536 in the image nor 0 in the mount has a counterpart.
        assert_eq!(ownership.shown_user(65536), OVERFLOW);
        assert_eq!(ownership.stored_user(0), Err(Errno(libc::EOVERFLOW)));
        assert_eq!(ownership.stored_new((1000, 50), (9, 9)), Ok((0, 5)));
        assert_eq!(ownership.stored_new((1000, 52), (9, 9)), Err(Errno(libc::EOVERFLOW)));
        assert_eq!(mapped("0:1:2").to_string(), "idmap=u:0:1:2,idmap=g:0:1:2");
        assert_eq!(mapped("0:1:2"), mapped("b:0:1:2"));
        let both = mapped("0:0:4294967295");
        assert_eq!((both.shown_user(4_294_967_294), both.shown_user(NONE)), (4_294_967_294, OVERFLOW));
    }

    #[test]
    fn malformed_maps_are_refused() {
        for text in
            ["", "1", "1:2", "1:2:0", "1:2:3:4", "x:1:2:3", "u:1:2", "u:-1:2:3", "é:1:1", "1:2:3,4:5:6"]
        {
            let error = Ownership::default().add_map(text).unwrap_err();
            assert!(matches!(error, IdMapError::Syntax(_)), "{text}: {error}");
        }
        for text in ["4294967295:0:1", "0:4294967294:2", "1:1:4294967295"] {
            let error = Ownership::default().add_map(text).unwrap_err();
            assert!(matches!(error, IdMapError::TooLong(_)), "{text}: {error}");
        }
        for text in ["0:10:5 4:100:1", "0:10:5 100:14:1", "0:0:1 0:0:1", "10:10:1 0:20:100"] {
            let error = Ownership::default().add_map(text).unwrap_err();
            assert!(matches!(error, IdMapError::Overlap(_)), "{text}: {error}");
        }
        assert!(Ownership::default().add_map("u:0:1:2 g:0:1:2").is_ok());
    }

    #[test]
    fn access_control_lists_are_translated() {
        let list = |user: u32, group: u32| {
            let mut bytes = 2_u32.to_le_bytes().to_vec();
            for (tag, id) in [
                (1_u16, NONE),
                (NAMED_USER, user),
                (4, NONE),
                (NAMED_GROUP, group),
                (0x10, NONE),
                (0x20, NONE),
            ] {
                bytes.extend(tag.to_le_bytes());
                bytes.extend(7_u16.to_le_bytes());
                bytes.extend(id.to_le_bytes());
            }
            bytes
        };
        let ownership = mapped("u:0:1000:10 g:0:2000:10");
        assert_eq!(ownership.shown_list(list(3, 4)), list(1003, 2004));
        assert_eq!(ownership.shown_list(list(30, 4)), list(OVERFLOW, 2004));
        assert_eq!(ownership.stored_list(&list(1003, 2004)), Ok(list(3, 4)));
        assert_eq!(ownership.stored_list(&list(3, 2004)), Err(Errno(libc::EOVERFLOW)));
        // A list that is cut off stays as it is, for the library to refuse.
        assert_eq!(ownership.stored_list(&[1, 2]), Ok(vec![1, 2]));
        let mut one = Ownership::default();
        one.set_user(5);
        assert_eq!(one.shown_list(list(3, 4)), list(3, 4));
    }
}

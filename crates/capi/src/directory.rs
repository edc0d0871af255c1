//! Directories: reading their entries, and walking all that is below one.

use crate::arguments::{
    Extensible, check_flags, check_result, check_structure, store, store_structure, text, zeroed,
};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::file_system::{User, count, fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::stat::{describe, papilio_stat};
use libc::{c_char, c_int, size_t};
use papilio::{DirEntry, Entries, EntryTarget, FileKind, Walk};
use parking_lot::Mutex;

/// The bytes of papilio_dirent.name: the longest name, 255 bytes, and a NUL.
pub const PAPILIO_NAME_SIZE: usize = 256;

/// Flag of papilio_opendir(): reads inodes along with entries, for papilio_readdir() with a
/// papilio_stat.
pub const PAPILIO_WITH_STAT: u32 = 0x2;

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_dirent {
    /// The number of the inode; of a subvolume, that of its root directory, 256.
    pub inode: u64,
    /// The id of the subvolume that the entry leads to; 0 if it is the directory's own.
    pub subvolume: u64,
    /// The index of the entry. Later entries have larger ones; papilio_seekdir() takes it.
    pub index: u64,
    /// The type, as d_type: DT_REG, DT_DIR, DT_LNK and so on of <dirent.h>.
    pub file_type: u32,
    /// The bytes of the name.
    pub name_length: u32,
    /// The name, with a NUL after it.
    pub name: [c_char; PAPILIO_NAME_SIZE],
}

// SAFETY: it consists of integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_dirent {
    const FIRST_SIZE: usize = 288;
}
const _: () = assert!(size_of::<papilio_dirent>() == 3 * 8 + 2 * 4 + PAPILIO_NAME_SIZE);

/// An open directory.
pub(crate) struct Directory {
    state: Mutex<Reading>,
    user: User,
}

struct Reading {
    path: Vec<u8>,
    entries: Entries,
    with_inodes: bool,
    /// The index after that of the entry returned last.
    next: u64,
}

/// A directory that is being read. Opened by papilio_opendir(), closed by papilio_closedir().
#[allow(non_camel_case_types)]
pub struct papilio_dir {
    _incomplete: (),
}

handle!(papilio_dir for Directory);

fn entries(user: &User, path: &[u8], with_inodes: bool, from: u64) -> Result<Entries> {
    let entries = user.fs().read_dir(path)?.starting_at(from);
    Ok(if with_inodes { entries.with_inodes() } else { entries })
}

/// Opens the directory at `path`, NUL-terminated, for reading its entries. `flags` is 0 or
/// PAPILIO_WITH_STAT. The handle goes to `*dir`, which is unchanged if the call fails.
///
/// Returns 0 or a negative errno: -ENOTDIR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_opendir(
    fs: *mut papilio_fs,
    path: *const c_char,
    flags: u32,
    dir: *mut *mut papilio_dir,
) -> c_int {
    guard_unit(|| {
        check_result(dir, "dir")?;
        check_flags(flags, PAPILIO_WITH_STAT)?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?.to_vec();
        let user = User::new(&fs_of(fs)?)?;
        let with_inodes = flags & PAPILIO_WITH_STAT != 0;
        let entries = entries(&user, &path, with_inodes, 0)?;
        let state = Reading { path, entries, with_inodes, next: 0 };
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(dir, handles::insert(Directory { state: Mutex::new(state), user })) };
        Ok(())
    })
}

/// Reads the next entry of a directory, in the order of creation and without "." and "..". `entry`
/// points to a papilio_dirent, and `entry_size` is its sizeof. `stat` is NULL, or points to a
/// papilio_stat of `stat_size` bytes that gets the metadata of the entry's inode.
///
/// Returns 1 for an entry, 0 at the end, or a negative errno. The directory ends with its first
/// error of reading; an entry whose inode cannot be read fails alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_readdir(
    dir: *mut papilio_dir,
    entry: *mut papilio_dirent,
    entry_size: size_t,
    stat: *mut papilio_stat,
    stat_size: size_t,
) -> c_int {
    guard(|| {
        check_structure(entry, entry_size, "entry")?;
        if !stat.is_null() {
            check_structure(stat, stat_size, "stat")?;
        }
        let directory = handles::get::<Directory>(dir)?;
        let mut reading = directory.state.lock();
        let Some(found) = reading.entries.next().transpose()? else { return Ok(0) };
        reading.next = found.index().saturating_add(1);
        let value = describe_entry(&found)?;
        // SAFETY: the structure was checked, and the caller promises its size.
        unsafe { store_structure(entry, entry_size, &value) };
        if !stat.is_null() {
            let inode = found.inode()?;
            // SAFETY: as above.
            unsafe { store_structure(stat, stat_size, &describe(&inode, inode.metadata())) };
        }
        Ok(1)
    })
}

fn describe_entry(entry: &DirEntry) -> Result<papilio_dirent> {
    let name = entry.file_name();
    let (inode, subvolume) = match entry.target() {
        EntryTarget::Inode(number) => (number.0, 0),
        EntryTarget::Subvolume(id) => (256, id.0),
    };
    let mut value = papilio_dirent {
        inode,
        subvolume,
        index: entry.index(),
        file_type: d_type(entry.file_type()).into(),
        name_length: name.len() as u32,
        ..zeroed()
    };
    let Some(to) = value.name.get_mut(..name.len()).filter(|to| to.len() < PAPILIO_NAME_SIZE) else {
        return Err(Failure::new(libc::EIO, "a name of more than 255 bytes"));
    };
    for (to, from) in to.iter_mut().zip(name) {
        *to = *from as c_char;
    }
    Ok(value)
}

fn d_type(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => libc::DT_REG,
        FileKind::Directory => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
        FileKind::CharacterDevice => libc::DT_CHR,
        FileKind::BlockDevice => libc::DT_BLK,
        FileKind::Fifo => libc::DT_FIFO,
        FileKind::Socket => libc::DT_SOCK,
    }
}

/// Returns the index that papilio_seekdir() takes to continue after the entry that was read last,
/// or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_telldir(dir: *mut papilio_dir) -> i64 {
    guard(|| Ok(count(handles::get::<Directory>(dir)?.state.lock().next)))
}

/// Lets the next papilio_readdir() return the first entry whose index is not below `index`. 0
/// starts again, and shows entries that were created meanwhile.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_seekdir(dir: *mut papilio_dir, index: u64) -> c_int {
    guard_unit(|| {
        let directory = handles::get::<Directory>(dir)?;
        let mut reading = directory.state.lock();
        reading.entries = entries(&directory.user, &reading.path, reading.with_inodes, index)?;
        reading.next = index;
        Ok(())
    })
}

/// Closes a directory.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_closedir(dir: *mut papilio_dir) -> c_int {
    guard_unit(|| handles::remove::<Directory>(dir).map(drop))
}

/// A walk through a tree of directories.
pub(crate) struct Walking {
    state: Mutex<(Walk, Vec<u8>)>,
    _user: User,
}

/// A walk through a tree of directories. Begun by papilio_walk_open(), ended by
/// papilio_walk_close().
#[allow(non_camel_case_types)]
pub struct papilio_walk {
    _incomplete: (),
}

handle!(papilio_walk for Walking);

/// Begins a walk at `path`, NUL-terminated: over it and all that is below it, each directory before
/// its content. The walk does not follow symbolic links, and crosses into subvolumes. The handle
/// goes to `*walk`, which is unchanged if the call fails.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_walk_open(
    fs: *mut papilio_fs,
    path: *const c_char,
    walk: *mut *mut papilio_walk,
) -> c_int {
    guard_unit(|| {
        check_result(walk, "walk")?;
        let user = User::new(&fs_of(fs)?)?;
        // SAFETY: the caller promises a NUL-terminated text.
        let begun = user.fs().walk(unsafe { text(path, "path") }?)?;
        let object = Walking { state: Mutex::new((begun, Vec::new())), _user: user };
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(walk, handles::insert(object)) };
        Ok(())
    })
}

/// Returns the next file of a walk. `*path` gets its path from the start of the walk, without a
/// leading slash and with a NUL after its `*length` bytes; empty for the start itself. It stays
/// valid until the next call for this walk. `length` may be NULL. `stat` is NULL, or points to a
/// papilio_stat of `size` bytes.
///
/// Returns 1 for a file, 0 at the end, or a negative errno. An error concerns one file or
/// directory, and the walk goes on after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_walk_next(
    walk: *mut papilio_walk,
    path: *mut *const c_char,
    length: *mut size_t,
    stat: *mut papilio_stat,
    size: size_t,
) -> c_int {
    guard(|| {
        check_result(path, "path")?;
        if !stat.is_null() {
            check_structure(stat, size, "stat")?;
        }
        let object = handles::get::<Walking>(walk)?;
        let mut state = object.state.lock();
        let Some(found) = state.0.next().transpose()? else { return Ok(0) };
        state.1 = found.path;
        let bytes = state.1.len();
        state.1.push(0);
        // SAFETY: the pointers were checked or are NULL, and the caller promises memory for
        // results.
        unsafe {
            store(path, state.1.as_ptr().cast());
            if !length.is_null() {
                length.write(bytes);
            }
            if !stat.is_null() {
                store_structure(stat, size, &describe(&found.inode, found.inode.metadata()));
            }
        }
        Ok(1)
    })
}

/// Leaves out the content of the directory that the walk returned last.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_walk_skip(walk: *mut papilio_walk) -> c_int {
    guard_unit(|| {
        handles::get::<Walking>(walk)?.state.lock().0.skip_directory();
        Ok(())
    })
}

/// Ends a walk.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_walk_close(walk: *mut papilio_walk) -> c_int {
    guard_unit(|| handles::remove::<Walking>(walk).map(drop))
}

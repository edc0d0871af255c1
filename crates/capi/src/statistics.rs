//! Statistics: space on the devices, memory, and caches.

use crate::arguments::{Extensible, check_result, check_structure, store, store_structure};
use crate::failure::{guard, guard_unit};
use crate::file_system::{fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::subvolumes::past_end;
use libc::{c_char, c_int, size_t};
use papilio::Usage;
use std::ffi::CString;

/// The sizes that statfs shows, in bytes, and the sums of the devices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_statfs {
    /// Data that would fit on the empty devices.
    pub total: u64,
    /// The unused part of `total`.
    pub free: u64,
    /// Space for files.
    pub available: u64,
    /// Bytes of new data that can certainly be written now; 0 if the file system is open for
    /// reading only.
    pub writable: u64,
    /// The bytes of all devices.
    pub device_size: u64,
    /// Bytes of devices that chunks take.
    pub allocated: u64,
    /// Used bytes of devices, all copies included.
    pub used: u64,
    /// Bytes of missing devices.
    pub missing: u64,
}

// SAFETY: it consists of integers of one size.
unsafe impl Extensible for papilio_statfs {
    const FIRST_SIZE: usize = 64;
}

/// The space of all chunks of one type and one profile.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_space {
    /// The type: "Data", "Metadata", "System" or "Data+Metadata". It belongs to the usage object.
    pub kind: *const c_char,
    /// The profile, such as "RAID1". It belongs to the usage object.
    pub profile: *const c_char,
    /// Capacity in bytes.
    pub total: u64,
    /// Used bytes.
    pub used: u64,
    /// Bytes of devices that the chunks take.
    pub raw_total: u64,
    /// Bytes of devices that the used bytes take.
    pub raw_used: u64,
}

// SAFETY: it consists of pointers and integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_space {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_space>() == 2 * size_of::<*const u8>() + 4 * 8);

/// A device of a file system.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_device {
    /// Its path; NULL if it is missing. It belongs to the usage object.
    pub path: *const c_char,
    /// Its id.
    pub devid: u64,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes of it that belong to the file system.
    pub total: u64,
    /// Its actual size in bytes; 0 if it is missing.
    pub size: u64,
    /// Bytes that chunks take.
    pub allocated: u64,
}

// SAFETY: it consists of a pointer and integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_device {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_device>() == size_of::<*const u8>() + 8 + 16 + 3 * 8);

/// How the space of a file system is used, with its texts for the program.
pub(crate) struct SpaceTable {
    usage: Usage,
    names: Vec<(CString, CString)>,
    paths: Vec<Option<CString>>,
}

/// How the space of a file system is used. Made by papilio_usage(), freed by papilio_usage_free().
#[allow(non_camel_case_types)]
pub struct papilio_usage {
    _incomplete: (),
}

handle!(papilio_usage for SpaceTable);

/// Returns the sizes of a file system. `statfs` points to a papilio_statfs, and `size` is its
/// sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_statfs(
    fs: *mut papilio_fs,
    statfs: *mut papilio_statfs,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(statfs, size, "statfs")?;
        let fs = fs_of(fs)?;
        let usage = fs.usage()?;
        let sizes = usage.statfs();
        let value = papilio_statfs {
            total: sizes.total,
            free: sizes.free,
            available: sizes.available,
            writable: fs.writable_bytes(),
            device_size: usage.device_size(),
            allocated: usage.allocated(),
            used: usage.used(),
            missing: usage.missing(),
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(statfs, size, &value) };
        Ok(())
    })
}

/// Tells how the space of a file system is used now, by type, profile and device. The object goes
/// to `*usage`. Free it with papilio_usage_free().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_usage(fs: *mut papilio_fs, usage: *mut *mut papilio_usage) -> c_int {
    guard_unit(|| {
        check_result(usage, "usage")?;
        let found = fs_of(fs)?.usage()?;
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let names = found.spaces.iter().map(|space| (text(space.kind_name()), text(space.profile.name())));
        let names = names.collect();
        let paths = found.devices.iter().map(|device| device.path.as_deref().map(text)).collect();
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(usage, handles::insert(SpaceTable { usage: found, names, paths })) };
        Ok(())
    })
}

/// Returns the number of types and profiles, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_usage_space_count(usage: *mut papilio_usage) -> i64 {
    guard(|| Ok(handles::get::<SpaceTable>(usage)?.usage.spaces.len() as i64))
}

/// Describes the space at `index`, counted from 0. `space` points to a papilio_space, and `size` is
/// its sizeof. Its texts are valid until the usage object is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_usage_space(
    usage: *mut papilio_usage,
    index: size_t,
    space: *mut papilio_space,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(space, size, "space")?;
        let object = handles::get::<SpaceTable>(usage)?;
        let spaces = &object.usage.spaces;
        let found = spaces.get(index).ok_or_else(|| past_end(index, spaces.len()))?;
        let (kind, profile) = &object.names[index];
        let value = papilio_space {
            kind: kind.as_ptr(),
            profile: profile.as_ptr(),
            total: found.total,
            used: found.used,
            raw_total: found.raw_total,
            raw_used: found.raw_used,
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(space, size, &value) };
        Ok(())
    })
}

/// Returns the number of devices, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_usage_device_count(usage: *mut papilio_usage) -> i64 {
    guard(|| Ok(handles::get::<SpaceTable>(usage)?.usage.devices.len() as i64))
}

/// Describes the device at `index`, counted from 0. `device` points to a papilio_device, and `size`
/// is its sizeof. Its path is valid until the usage object is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_usage_device(
    usage: *mut papilio_usage,
    index: size_t,
    device: *mut papilio_device,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(device, size, "device")?;
        let object = handles::get::<SpaceTable>(usage)?;
        let devices = &object.usage.devices;
        let found = devices.get(index).ok_or_else(|| past_end(index, devices.len()))?;
        let value = papilio_device {
            path: object.paths[index].as_ref().map_or(std::ptr::null(), |path| path.as_ptr()),
            devid: found.devid.0,
            uuid: *found.uuid.as_bytes(),
            total: found.total,
            size: found.size.unwrap_or(0),
            allocated: found.allocated,
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(device, size, &value) };
        Ok(())
    })
}

/// Frees a usage object, and its texts.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_usage_free(usage: *mut papilio_usage) -> c_int {
    guard_unit(|| handles::remove::<SpaceTable>(usage).map(drop))
}

/// The memory that a file system uses now, in bytes, and the counters of its cache of tree blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_memory {
    /// Pages of the page cache and their descriptions.
    pub pages: u64,
    /// The dirty pages among `pages`.
    pub dirty_pages: u64,
    /// Clean tree blocks.
    pub tree_blocks: u64,
    /// Tree blocks that no commit has written yet.
    pub dirty_tree_blocks: u64,
    /// Changes of references that are not in the extent tree yet.
    pub delayed_refs: u64,
    /// Cached checksums of data.
    pub checksums: u64,
    /// Data written whose extents are not in the trees yet.
    pub ordered_extents: u64,
    /// Look-ups of tree blocks that memory answered.
    pub cache_hits: u64,
    /// Look-ups of tree blocks that had to read.
    pub cache_misses: u64,
    /// Tree blocks read from devices; each copy counts.
    pub blocks_read: u64,
    /// Number of times that a copy was bad while another was good.
    pub bad_copies: u64,
}

// SAFETY: it consists of integers of one size.
unsafe impl Extensible for papilio_memory {
    const FIRST_SIZE: usize = 11 * 8;
}

/// Tells how much memory a file system uses. `memory` points to a papilio_memory, and `size` is its
/// sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_memory(
    fs: *mut papilio_fs,
    memory: *mut papilio_memory,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(memory, size, "memory")?;
        let fs = fs_of(fs)?;
        let (bytes, cache) = (fs.memory_use(), fs.cache_statistics());
        let value = papilio_memory {
            pages: bytes.pages,
            dirty_pages: bytes.dirty_pages,
            tree_blocks: bytes.tree_blocks,
            dirty_tree_blocks: bytes.dirty_tree_blocks,
            delayed_refs: bytes.delayed_refs,
            checksums: bytes.checksums,
            ordered_extents: bytes.ordered_extents,
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            blocks_read: cache.blocks_read,
            bad_copies: cache.bad_copies,
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(memory, size, &value) };
        Ok(())
    })
}

/// Drops all clean tree blocks from memory.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_drop_cache(fs: *mut papilio_fs) -> c_int {
    guard_unit(|| {
        fs_of(fs)?.drop_cache();
        Ok(())
    })
}

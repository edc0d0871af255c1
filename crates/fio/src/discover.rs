//! The layout and the functions of the running fio.
//!
//! Owns [`Fio`], created once, when fio loads the library. fio compares a single interface number
//! before it uses an engine. That number does not pin the layout of fio's structures: builds with
//! equal numbers differ. The engine therefore reads what it can from the running program instead of
//! a table of versions:
//!
//! - The interface number and the layout of the function table come from fio's built-in engines. A
//!   stand-in entry joins fio's list of engines for a moment, which leads to all of them.
//! - Offsets of a job's options come from fio's own option table, by name.
//! - The pointer from a job to the engine's options is found by a mark in those options
//!   ([`Fio::engine_options`]).
//! - The fields of `io_u` are checked against one another at a job's first I/O.
//!
//! `memory.rs` follows everything that may be a pointer, because it cannot fault.

use crate::abi::{self, IoUnit, OpsLayout, ThreadData};
use crate::engine_options::{EngineOptions, MARK};
use crate::error::EngineError;
use crate::memory;
use crate::option_table::{OptionOffsets, OptionRecords};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The oldest supported minor version of fio 3.
const OLDEST: u32 = 28;
/// Number of bytes of a `thread_data` that are searched for the pointer to the engine's options.
/// The pointer follows fio's own options, which hold patterns of up to 64 KiB.
const SEARCHED: usize = 1 << 20;

/// The running fio.
#[derive(Debug)]
pub struct Fio {
    /// fio's version string, such as `fio-3.33`.
    pub version: String,
    /// Layout of the engine's function table.
    pub ops: OpsLayout,
    /// Shift of the later fields of `io_u`, in bytes.
    pub io_unit_shift: isize,
    /// Shape of the records in fio's option table.
    pub records: OptionRecords,
    /// Offsets of fio's options in a job's options.
    pub offsets: OptionOffsets,
    /// Address of fio's `--readonly` flag. fio may set it after it has loaded the library.
    read_only: Option<usize>,
    gettime: GetTime,
    io_unit_queued: Queued,
    fill_buffer: FillBuffer,
    /// Id of the process that loaded the library.
    process: c_int,
    /// Offset in a `thread_data` of the pointer to the engine's options; 0 until found.
    engine_options: AtomicUsize,
}

type GetTime = unsafe extern "C" fn(*mut libc::timespec, *mut c_void);
type Queued = unsafe extern "C" fn(*mut c_void, *mut c_void);
type FillBuffer = unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64);
type Register = unsafe extern "C" fn(*mut c_void);

static FIO: OnceLock<Result<Fio, EngineError>> = OnceLock::new();

/// Returns the running fio.
///
/// # Errors
/// Says why this fio cannot be supported.
pub fn fio() -> Result<&'static Fio, &'static EngineError> {
    FIO.get_or_init(Fio::discover).as_ref()
}

impl Fio {
    fn discover() -> Result<Self, EngineError> {
        let version = symbol(c"fio_version_string").ok_or(EngineError::NotFio("fio_version_string"))?;
        // SAFETY: fio's version is an array of characters that ends with a NUL.
        let version = unsafe { abi::owned_text(version as *const c_char) }.unwrap_or_default();
        Self::of_version(&version).map_err(|reason| EngineError::Version { version, reason })
    }

    fn of_version(version: &str) -> Result<Self, String> {
        check_version(version)?;
        let ops = find_ops_layout()?;
        let table = symbol(c"fio_options").ok_or("it has no option table")?;
        let records = OptionRecords::find(table).ok_or("its option table has an unknown layout")?;
        let offsets = OptionOffsets::find(records, table)?;
        let function =
            |name: &CStr| symbol(name).ok_or_else(|| format!("it has no {}", name.to_string_lossy()));
        // SAFETY: fio's functions of these names have had these signatures in all versions from
        // 3.28 on.
        let (gettime, io_unit_queued, fill_buffer) = unsafe {
            (
                std::mem::transmute::<usize, GetTime>(function(c"fio_gettime")?),
                std::mem::transmute::<usize, Queued>(function(c"io_u_queued")?),
                std::mem::transmute::<usize, FillBuffer>(function(c"fill_io_buffer")?),
            )
        };
        Ok(Self {
            version: version.to_owned(),
            ops,
            io_unit_shift: io_unit_shift(ops.version),
            records,
            offsets,
            read_only: symbol(c"read_only"),
            gettime,
            io_unit_queued,
            fill_buffer,
            // SAFETY: getpid has no preconditions.
            process: unsafe { libc::getpid() },
            engine_options: AtomicUsize::new(0),
        })
    }

    /// Returns whether fio runs with `--readonly`.
    pub fn is_read_only(&self) -> bool {
        // A C int or bool, depending on the version. Both are little-endian.
        self.read_only.and_then(memory::int).is_some_and(|value| value & 0xff != 0)
    }

    /// Returns whether this is the process that loaded the library, and not a forked job.
    pub fn is_main_process(&self) -> bool {
        // SAFETY: getpid has no preconditions.
        self.process == unsafe { libc::getpid() }
    }

    /// Stores fio's current time as the issue time of an I/O.
    pub fn stamp(&self, unit: IoUnit) {
        // SAFETY: the unit is the engine's and has space for a time there; fio allows NULL as the
        // caller.
        unsafe { (self.gettime)(unit.issue_time_place(), std::ptr::null_mut()) }
    }

    /// Tells fio that an I/O was issued.
    pub fn queued(&self, job: ThreadData, unit: IoUnit) {
        // SAFETY: the job runs in this thread, and the I/O is one of its own that is not completed.
        unsafe { (self.io_unit_queued)(job.pointer(), unit.pointer()) }
    }

    /// Fills a buffer with the pattern that the job's options ask for.
    pub fn fill(&self, job: ThreadData, buffer: &mut [u8]) {
        let length = buffer.len() as u64;
        // SAFETY: the job is fio's and does not run yet; the buffer has that many bytes.
        unsafe { (self.fill_buffer)(job.pointer(), buffer.as_mut_ptr().cast(), length, length) }
    }

    /// Returns the engine's options of a job.
    ///
    /// # Errors
    /// The pointer to the options is not found.
    pub fn engine_options(&self, job: ThreadData) -> Result<&EngineOptions, EngineError> {
        let mut offset = self.engine_options.load(Ordering::Relaxed);
        if offset == 0 {
            offset = find_engine_options(job).ok_or_else(|| EngineError::Version {
                version: self.version.clone(),
                reason: "the engine's options were not found in its job structure".to_owned(),
            })?;
            self.engine_options.store(offset, Ordering::Relaxed);
        }
        let options = job.word(offset) as *const EngineOptions;
        // SAFETY: this word of a job points to the job's copy of the engine's options. The mark was
        // found behind it in the first job, and fio lays all jobs out alike. The options live as
        // long as the job.
        Ok(unsafe { &*options })
    }
}

/// Returns the address of a symbol that fio exports.
fn symbol(name: &CStr) -> Option<usize> {
    // SAFETY: `name` ends with a NUL; looking up a name has no other preconditions.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address as usize)
}

/// Refuses versions that are too old or not fio 3.
fn check_version(version: &str) -> Result<(), String> {
    let numbers = version.strip_prefix("fio-").unwrap_or(version);
    let mut numbers = numbers.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(3)), Some(Ok(minor))) if minor >= OLDEST => Ok(()),
        (Some(Ok(_)), Some(Ok(_))) => Err(format!("this engine supports 3.{OLDEST} and later 3.x")),
        _ => Err("the version number has an unknown form".to_owned()),
    }
}

/// Returns the shift of the later fields of `io_u` for an interface number.
fn io_unit_shift(interface: c_int) -> isize {
    match interface {
        ..=30 => -8,
        31..=38 => 0,
        39.. => 8,
    }
}

/// Determines the layout of function tables from fio's built-in engines.
fn find_ops_layout() -> Result<OpsLayout, String> {
    let missing = |name: &str| format!("it has no {name}");
    let register = symbol(c"register_ioengine").ok_or_else(|| missing("register_ioengine"))?;
    let unregister = symbol(c"unregister_ioengine").ok_or_else(|| missing("unregister_ioengine"))?;
    let open_file = symbol(c"generic_open_file").ok_or_else(|| missing("generic_open_file"))?;
    // SAFETY: both take a function table, in all versions from 3.28 on.
    let (register, unregister) = unsafe {
        (std::mem::transmute::<usize, Register>(register), std::mem::transmute::<usize, Register>(unregister))
    };
    let mut standin = [0_usize; abi::OPS_WORDS];
    standin[2] = c"papilio-looks".as_ptr() as usize;
    let entry = standin.as_mut_ptr();
    // fio keeps its engines in a circular list with one head and appends new entries. SAFETY: the
    // entry is a table with a name that lives until it is unregistered. No job runs yet, so no
    // other thread walks the list. The links are read through the pointer by which fio wrote them.
    let (head, last) = unsafe {
        register(entry.cast());
        (entry.read(), entry.add(1).read())
    };
    let mut engines = Vec::new();
    let mut at = last;
    while at != head && engines.len() < 200 {
        engines.push(at);
        let Some(before) = memory::word(at + 8) else { break };
        at = before;
    }
    // SAFETY: this is the entry that was registered above.
    unsafe { unregister(entry.cast()) };
    let words = |engine: usize| {
        let mut bytes = [0; abi::OPS_WORDS * 8];
        let read = memory::peek(engine, &mut bytes);
        bytes[..read].chunks_exact(8).map(|word| word.try_into().map_or(0, usize::from_ne_bytes)).collect()
    };
    OpsLayout::of_engines(&engines.into_iter().map(words).collect::<Vec<_>>(), open_file)
}

impl OpsLayout {
    /// Derives the layout from the function tables of engines, given as words. Most of them contain
    /// `generic_open_file`.
    fn of_engines(engines: &[Vec<usize>], generic_open_file: usize) -> Result<Self, String> {
        let versions: Vec<_> = engines.iter().filter_map(|engine| Some(*engine.get(3)? as c_int)).collect();
        let version = *versions.first().ok_or("it has no built-in engines")?;
        if versions.iter().any(|other| *other != version) || !(20..200).contains(&version) {
            return Err("its engines do not agree on a version".to_owned());
        }
        let places = |engine: &Vec<usize>| engine.iter().position(|word| *word == generic_open_file);
        let mut open_files: Vec<_> = engines.iter().filter_map(places).collect();
        open_files.dedup();
        let [open_file @ (15 | 16)] = open_files[..] else {
            return Err("the function tables of its engines have an unknown layout".to_owned());
        };
        // After the last function come the size of the options and a pointer to their table, whose
        // first entry starts with a name. Both are zero in engines without options.
        let has_options = |engine: &&Vec<usize>, at: usize| {
            let (Some(size), Some(table)) = (engine.get(at), engine.get(at + 1)) else { return false };
            let size = size & 0xffff_ffff;
            (16..=8192).contains(&size)
                && memory::word(*table).and_then(memory::text).is_some_and(|name| is_option_name(&name))
        };
        let votes = |at: usize| engines.iter().filter(|engine| has_options(engine, at)).count();
        let options = (open_file + 12..open_file + 25).max_by_key(|at| (votes(*at), usize::MAX - at));
        match options {
            Some(at) if votes(at) >= 2 => Ok(Self { version, open_file: open_file * 8, options: at * 8 }),
            _ => Err("the options of its engines were not found".to_owned()),
        }
    }
}

fn is_option_name(name: &str) -> bool {
    name.len() >= 2 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Searches a job for its pointer to the engine's options and returns the pointer's offset.
fn find_engine_options(job: ThreadData) -> Option<usize> {
    let start = job.pointer() as usize;
    let magic = memory::int(start + abi::OPTIONS_OFFSET)?;
    if magic as c_uint != abi::OPTIONS_MAGIC {
        return None;
    }
    let mut bytes = vec![0; SEARCHED];
    let read = memory::peek(start, &mut bytes);
    let words = bytes[..read].chunks_exact(8).map(|word| word.try_into().map_or(0, usize::from_ne_bytes));
    let is_ours = |address: usize| {
        // fio's own word at the front holds the job while fio parses options, and zero afterwards.
        address > 4096
            && address.is_multiple_of(8)
            && address < 1 << 47
            && memory::word(address).is_some_and(|word| word == 0 || word == start)
            && memory::int(address + size_of::<usize>()) == Some(MARK)
    };
    words
        .enumerate()
        .skip(abi::OPTIONS_OFFSET / 8)
        .find(|(_, word)| is_ours(*word))
        .map(|(index, _)| index * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_unknown_versions_are_refused() {
        for version in ["fio-3.28", "fio-3.33", "fio-3.39-12-g0123abc", "fio-3.100", "3.40"] {
            assert_eq!(check_version(version), Ok(()), "{version}");
        }
        for version in ["fio-3.27", "fio-2.21", "fio-4.0", "fio-3", "", "strange"] {
            assert!(check_version(version).is_err(), "{version}");
        }
        assert_eq!(
            (io_unit_shift(30), io_unit_shift(31), io_unit_shift(37), io_unit_shift(39)),
            (-8, 0, 0, 8)
        );
    }

    /// Builds a function table with its options at word `options` and `open_file` at word
    /// `open_file`.
    fn engine(version: usize, open_file: usize, options: usize, table: usize) -> Vec<usize> {
        let mut words = vec![0; abi::OPS_WORDS];
        words[3] = version;
        words[open_file] = 0xabcd00;
        if table != 0 {
            words[options] = 48;
            words[options + 1] = table;
        }
        words
    }

    #[test]
    fn layout_is_derived_from_built_in_engines() {
        let names = [c"hipri".as_ptr() as usize, c"cpuload".as_ptr() as usize, c"Not one".as_ptr() as usize];
        let tables: Vec<_> = names.iter().map(|name| name as *const usize as usize).collect();
        for (version, open_file, options) in [(31, 16, 31), (33, 16, 34), (37, 16, 35), (39, 15, 34)] {
            let engines = [
                engine(version, open_file, options, tables[0]),
                engine(version, open_file, options, 0),
                engine(version, open_file, options, tables[1]),
            ];
            let expected =
                OpsLayout { version: version as c_int, open_file: open_file * 8, options: options * 8 };
            assert_eq!(OpsLayout::of_engines(&engines, 0xabcd00), Ok(expected));
            // A single engine with options is not enough evidence, nor is a word that points to no
            // option.
            assert!(OpsLayout::of_engines(&engines[..2], 0xabcd00).is_err());
            let strange = [engines[0].clone(), engine(version, open_file, options, tables[2])];
            assert!(OpsLayout::of_engines(&strange, 0xabcd00).is_err());
            assert!(OpsLayout::of_engines(&engines, 0xabcd01).is_err());
        }
        let mixed = [engine(31, 16, 31, tables[0]), engine(32, 16, 31, tables[1])];
        assert!(OpsLayout::of_engines(&mixed, 0xabcd00).is_err());
        assert!(OpsLayout::of_engines(&[], 0xabcd00).is_err());
    }

    #[test]
    fn discovery_fails_outside_fio() {
        assert!(matches!(Fio::discover(), Err(EngineError::NotFio("fio_version_string"))));
    }
}

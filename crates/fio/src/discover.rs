//! What the running fio is like.
//!
//! Owns [`Fio`], made once, when fio loads the library. fio compares one number before it uses an engine,
//! and that number does not protect the layout of its structures: builds with the same number differ. So
//! nothing is taken from tables of versions that can be looked up in the running program:
//! - the number, and where its table of functions has what, is read from the engines that fio has built
//!   in. They are in a list that a stand-in entry of ours joins for a moment;
//! - offsets of a job's options come from fio's own table of options, by name;
//! - where a job keeps the engine's options is found by a mark in them ([`Fio::engine_options`]);
//! - the fields of `io_u` are compared with one another at a job's first I/O.
//!
//! Everything that may be a pointer is followed by [`crate::memory`], which cannot fault.

use crate::abi::{self, IoUnit, OpsLayout, ThreadData};
use crate::error::EngineError;
use crate::memory;
use crate::options::{EngineOptions, MARK};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The oldest minor version of fio 3 that is served.
const OLDEST: u32 = 28;
/// Bytes of a `thread_data` in which the engine's options are looked for: they follow fio's own, which hold
/// patterns of up to 64 KiB.
const SEARCHED: usize = 1 << 20;

/// The running fio.
#[derive(Debug)]
pub struct Fio {
    /// As it says itself: `fio-3.33`.
    pub version: String,
    /// The table of functions.
    pub ops: OpsLayout,
    /// By how much the later fields of `io_u` are shifted.
    pub io_unit_shift: isize,
    /// The table of options.
    pub records: OptionRecords,
    /// Offsets of options.
    pub offsets: OptionOffsets,
    /// Where fio keeps `--readonly`, which it may read later than the option that loads the library.
    read_only: Option<usize>,
    gettime: GetTime,
    io_unit_queued: Queued,
    fill_buffer: FillBuffer,
    /// The process that loaded the library.
    process: c_int,
    /// Where a `thread_data` points to the engine's options; 0 until known.
    engine_options: AtomicUsize,
}

type GetTime = unsafe extern "C" fn(*mut libc::timespec, *mut c_void);
type Queued = unsafe extern "C" fn(*mut c_void, *mut c_void);
type FillBuffer = unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64);
type Register = unsafe extern "C" fn(*mut c_void);

/// How fio's options are described: size of a record, and the numbers of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionRecords {
    /// Bytes of a record.
    pub size: usize,
    /// Type of a text.
    pub text: c_int,
    /// Type of an integer.
    pub int: c_int,
    /// Type of 0 or 1.
    pub bool: c_int,
}

/// Offset of `type` in a record.
pub const RECORD_TYPE: usize = 24;
/// Offset of `off1` in a record.
pub const RECORD_OFFSET: usize = 28;

macro_rules! option_offsets {
    ($($field:ident = $name:literal),* $(,)?) => {
        /// Offsets of fio's options in a job's options.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)] // Named as fio names them.
        pub struct OptionOffsets {
            $(pub $field: usize,)*
        }

        impl OptionOffsets {
            fn find(records: &[(String, usize)]) -> Result<Self, String> {
                Ok(Self {
                    $($field: records
                        .iter()
                        .find(|(name, _)| name == $name)
                        .map(|(_, offset)| *offset)
                        .ok_or_else(|| format!("its option table has no {}", $name))?,)*
                })
            }
        }
    };
}

option_offsets! {
    name = "name",
    thread = "thread",
    rw = "rw",
    iodepth = "iodepth",
    direct = "direct",
    fallocate = "fallocate",
    overwrite = "overwrite",
    file_append = "file_append",
    allow_file_create = "allow_file_create",
    create_on_open = "create_on_open",
    create_fsync = "create_fsync",
    fsync_on_close = "fsync_on_close",
    invalidate = "invalidate",
    pre_read = "pre_read",
    verify_state_save = "verify_state_save",
}

static FIO: OnceLock<Result<Fio, EngineError>> = OnceLock::new();

/// The running fio.
///
/// # Errors
/// What makes it one that cannot be served.
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
        let table = symbol(c"fio_options").ok_or("it has no table of options")?;
        let records = OptionRecords::find(table).ok_or("its table of options is not as expected")?;
        let offsets = OptionOffsets::find(&records.all(table))?;
        let function =
            |name: &CStr| symbol(name).ok_or_else(|| format!("it has no {}", name.to_string_lossy()));
        // SAFETY: fio's functions of these names have had these signatures in all versions from 3.28 on.
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
            // SAFETY: getpid has no conditions.
            process: unsafe { libc::getpid() },
            engine_options: AtomicUsize::new(0),
        })
    }

    /// Whether fio runs with `--readonly`.
    pub fn is_read_only(&self) -> bool {
        // An int or a bool of C, by version; both are little-endian.
        self.read_only.and_then(memory::int).is_some_and(|value| value & 0xff != 0)
    }

    /// Whether this process is the one that loaded the library, and not a job's own.
    pub fn is_main_process(&self) -> bool {
        // SAFETY: getpid has no conditions.
        self.process == unsafe { libc::getpid() }
    }

    /// Writes fio's time into an I/O as that of its issue.
    pub fn stamp(&self, unit: IoUnit) {
        // SAFETY: the unit is the engine's, and has a place for a time there; NULL for who asks is allowed.
        unsafe { (self.gettime)(unit.issue_time_place(), std::ptr::null_mut()) }
    }

    /// Tells fio that an I/O was issued.
    pub fn queued(&self, job: ThreadData, unit: IoUnit) {
        // SAFETY: a job that runs in this thread, and an I/O of it that is not completed yet.
        unsafe { (self.io_unit_queued)(job.pointer(), unit.pointer()) }
    }

    /// Fills a buffer as the job's options say.
    pub fn fill(&self, job: ThreadData, buffer: &mut [u8]) {
        let length = buffer.len() as u64;
        // SAFETY: a job of fio's that does not run yet, and a buffer of that many bytes.
        unsafe { (self.fill_buffer)(job.pointer(), buffer.as_mut_ptr().cast(), length, length) }
    }

    /// The engine's options of a job.
    ///
    /// # Errors
    /// When they are not found.
    pub fn engine_options(&self, job: ThreadData) -> Result<&EngineOptions, EngineError> {
        let mut offset = self.engine_options.load(Ordering::Relaxed);
        if offset == 0 {
            offset = find_engine_options(job).ok_or_else(|| EngineError::Version {
                version: self.version.clone(),
                reason: "the engine's options are not where they should be".to_owned(),
            })?;
            self.engine_options.store(offset, Ordering::Relaxed);
        }
        let options = job.word(offset) as *const EngineOptions;
        // SAFETY: this word of a job points to its own copy of our options: the mark in them was found there in
        // the first job, and fio makes them alike for all. They live as long as the job.
        Ok(unsafe { &*options })
    }
}

/// The address of what fio exports under a name.
fn symbol(name: &CStr) -> Option<usize> {
    // SAFETY: `name` ends with a NUL; looking up a name has no other conditions.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address as usize)
}

/// Refuses versions that are too old, or not of fio 3.
fn check_version(version: &str) -> Result<(), String> {
    let numbers = version.strip_prefix("fio-").unwrap_or(version);
    let mut numbers = numbers.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(3)), Some(Ok(minor))) if minor >= OLDEST => Ok(()),
        (Some(Ok(_)), Some(Ok(_))) => Err(format!("it is not one of 3.{OLDEST} and later 3.x")),
        _ => Err("its version is none that is known".to_owned()),
    }
}

/// The shift of the fields of `io_u`, by the number of the interface.
fn io_unit_shift(interface: c_int) -> isize {
    match interface {
        ..=30 => -8,
        31..=38 => 0,
        39.. => 8,
    }
}

/// Looks at the engines that fio has built in.
fn find_ops_layout() -> Result<OpsLayout, String> {
    let missing = |name: &str| format!("it has no {name}");
    let register = symbol(c"register_ioengine").ok_or_else(|| missing("register_ioengine"))?;
    let unregister = symbol(c"unregister_ioengine").ok_or_else(|| missing("unregister_ioengine"))?;
    let open_file = symbol(c"generic_open_file").ok_or_else(|| missing("generic_open_file"))?;
    // SAFETY: these take a table of functions, in all versions from 3.28 on.
    let (register, unregister) = unsafe {
        (std::mem::transmute::<usize, Register>(register), std::mem::transmute::<usize, Register>(unregister))
    };
    let mut standin = [0_usize; abi::OPS_WORDS];
    standin[2] = c"papilio-looks".as_ptr() as usize;
    let entry = standin.as_mut_ptr();
    // fio's list is a ring of entries and one head; a new entry goes to its end.
    // SAFETY: a table with a name, which lives until it is taken out again; jobs do not run yet, so that nobody
    // else walks the list. The links are read by the pointer that fio wrote them by.
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
    // SAFETY: the entry that was put in.
    unsafe { unregister(entry.cast()) };
    let words = |engine: usize| {
        let mut bytes = [0; abi::OPS_WORDS * 8];
        let read = memory::peek(engine, &mut bytes);
        bytes[..read].chunks_exact(8).map(|word| word.try_into().map_or(0, usize::from_ne_bytes)).collect()
    };
    OpsLayout::of_engines(&engines.into_iter().map(words).collect::<Vec<_>>(), open_file)
}

impl OpsLayout {
    /// From the tables of engines, in words; `generic_open_file` is a function that most of them use.
    fn of_engines(engines: &[Vec<usize>], generic_open_file: usize) -> Result<Self, String> {
        let versions: Vec<_> = engines.iter().filter_map(|engine| Some(*engine.get(3)? as c_int)).collect();
        let version = *versions.first().ok_or("it has no engines of its own")?;
        if versions.iter().any(|other| *other != version) || !(20..200).contains(&version) {
            return Err("its engines do not agree on a version".to_owned());
        }
        let places = |engine: &Vec<usize>| engine.iter().position(|word| *word == generic_open_file);
        let mut open_files: Vec<_> = engines.iter().filter_map(places).collect();
        open_files.dedup();
        let [open_file @ (15 | 16)] = open_files[..] else {
            return Err("its engines do not open files where expected".to_owned());
        };
        // After the last function: the size of the options and a pointer to their table, whose first entry has a
        // name. Zero in engines without options.
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
            _ => Err("none of its engines has options where expected".to_owned()),
        }
    }
}

fn is_option_name(name: &str) -> bool {
    name.len() >= 2 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl OptionRecords {
    /// Measures fio's table by names that it starts with and by options whose types are known.
    fn find(table: usize) -> Option<Self> {
        let name_at = |address| memory::word(address).and_then(memory::text);
        if name_at(table)? != "description" {
            return None;
        }
        let size = (256..4096).step_by(8).find(|size| name_at(table + size).as_deref() == Some("name"))?;
        let mut records = Self { size, text: 0, int: 0, bool: 0 };
        let kind_of = |wanted: &str| {
            records
                .addresses(table)
                .find(|(name, _)| name == wanted)
                .and_then(|(_, at)| memory::int(at + RECORD_TYPE))
        };
        let (text, int, bool) = (kind_of("name")?, kind_of("iodepth")?, kind_of("direct")?);
        (records.text, records.int, records.bool) = (text, int, bool);
        Some(records)
    }

    /// Names and addresses of records.
    fn addresses(self, table: usize) -> impl Iterator<Item = (String, usize)> {
        (0..2000).map_while(move |index| {
            let at = table + index * self.size;
            Some((memory::word(at).and_then(memory::text)?, at))
        })
    }

    /// Names and offsets of options. A name may stand twice: the first counts.
    fn all(self, table: usize) -> Vec<(String, usize)> {
        let offset = |at: usize| Some(memory::int(at + RECORD_OFFSET)? as usize);
        self.addresses(table).filter_map(|(name, at)| Some((name, offset(at)?))).collect()
    }
}

/// Where a job points to our options.
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
        // fio's word in front is the job while options are read, and then zero.
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
    fn versions_that_are_too_old_or_unknown_are_refused() {
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

    /// A table of functions that has its options at word `options` and opens files at word `open_file`.
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
    fn layouts_are_read_from_the_built_in_engines() {
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
            // One engine alone proves nothing, nor do words that lead to no option.
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
    fn outside_of_fio_there_is_nothing_to_serve() {
        assert!(matches!(Fio::discover(), Err(EngineError::NotFio("fio_version_string"))));
    }
}

//! Checking file systems.
//!
//! A check reads all trees and every copy of their blocks and compares them with one another, and
//! on demand reads and verifies all data. It never writes. The report is an object of its own,
//! which outlives the file system.

use crate::arguments::{
    Extensible, check_flags, check_result, check_structure, host_path, store, store_structure, zeroed,
};
use crate::failure::{Result, guard, guard_unit};
use crate::file_system::{count, fs_of, papilio_fs};
use crate::handles::{self, handle};
use crate::open_options::{options_or_default, papilio_options};
use crate::report_text::json;
use crate::subvolumes::past_end;
use libc::{c_char, c_int, c_void, size_t};
use papilio::{CheckOptions, CheckProgress, CheckReport, CheckStage, Severity};
use std::ffi::CString;
use std::sync::OnceLock;

/// Flag of a check: reads and verifies all data as well.
pub const PAPILIO_CHECK_DATA: u32 = 0x1;

/// Value of papilio_finding.severity and of papilio_report_verdict(): a remark.
pub const PAPILIO_SEVERITY_NOTE: u32 = 1;
/// Value of papilio_finding.severity and of papilio_report_verdict(): no data is at risk.
pub const PAPILIO_SEVERITY_WARNING: u32 = 2;
/// Value of papilio_finding.severity and of papilio_report_verdict(): data is at risk, or the
/// kernel refuses the file system.
pub const PAPILIO_SEVERITY_ERROR: u32 = 3;

/// Stage of a check: the trees are walked; the counts are tree blocks.
pub const PAPILIO_CHECK_STAGE_TREES: u32 = 0;
/// Stage of a check: references are compared; there are no counts.
pub const PAPILIO_CHECK_STAGE_SPACE: u32 = 1;
/// Stage of a check: data is read; the counts are bytes.
pub const PAPILIO_CHECK_STAGE_DATA: u32 = 2;

/// A function that a check reports to, from the thread that checks. `user` is the pointer that the
/// program gave, `stage` is one of PAPILIO_CHECK_STAGE_*, `done` of `total` is how much of it is
/// done; `total` is 0 if it is not known. The function must return: no longjmp, no exception.
#[allow(non_camel_case_types)]
pub type papilio_check_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, stage: u32, done: u64, total: u64)>;

/// A fault that a check found. The texts belong to the report.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_finding {
    /// A short name of the rule that is broken, which stays the same between versions.
    pub kind: *const c_char,
    /// A description in one line, without the place.
    pub message: *const c_char,
    /// The place in words.
    pub place: *const c_char,
    /// The id of the tree; 0 if there is none.
    pub tree: u64,
    /// The inode number; 0 if there is none.
    pub inode: u64,
    /// The logical address of a tree block or extent; UINT64_MAX if there is none.
    pub address: u64,
    /// PAPILIO_SEVERITY_*.
    pub severity: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it consists of pointers and integers without padding, as the assertion verifies.
unsafe impl Extensible for papilio_finding {
    const FIRST_SIZE: usize = size_of::<Self>();
}
const _: () = assert!(size_of::<papilio_finding>() == 3 * size_of::<*const u8>() + 3 * 8 + 2 * 4);

/// The numbers of a report.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_check_statistics {
    /// Errors, including those that the report did not keep.
    pub errors: u64,
    /// Warnings, including those that the report did not keep.
    pub warnings: u64,
    /// Findings that were counted but not kept.
    pub dropped: u64,
    /// Trees walked.
    pub trees: u64,
    /// Distinct tree blocks.
    pub blocks: u64,
    /// Bytes of those blocks, one copy of each.
    pub metadata_bytes: u64,
    /// Data extents.
    pub data_extents: u64,
    /// Bytes of those extents, one copy of each.
    pub data_bytes: u64,
    /// Subvolumes and snapshots.
    pub subvolumes: u64,
    /// Inodes in them, each counted in every snapshot that has it.
    pub inodes: u64,
    /// Regular files among them.
    pub files: u64,
    /// Bytes of data that have checksums.
    pub csum_bytes: u64,
    /// Bytes of data that were read and compared with their checksums, each copy counted.
    pub data_bytes_read: u64,
}

// SAFETY: it consists of integers of one size.
unsafe impl Extensible for papilio_check_statistics {
    const FIRST_SIZE: usize = 13 * 8;
}

/// The report of a check, with its texts for the program.
pub(crate) struct Report {
    report: CheckReport,
    texts: Vec<[CString; 3]>,
    json: OnceLock<CString>,
}

/// The report of a check. Made by papilio_check(), freed by papilio_report_free().
#[allow(non_camel_case_types)]
pub struct papilio_report {
    _incomplete: (),
}

handle!(papilio_report for Report);

/// The program's function and its argument.
struct Callback(papilio_check_fn, *mut c_void);

// SAFETY: the program promises a function that works in the thread that checks, with its argument.
// Only that thread calls it.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Callback {
    fn call(&self, progress: CheckProgress) {
        let Some(function) = self.0 else { return };
        let stage = match progress.stage {
            CheckStage::Trees => PAPILIO_CHECK_STAGE_TREES,
            CheckStage::Space => PAPILIO_CHECK_STAGE_SPACE,
            CheckStage::Data => PAPILIO_CHECK_STAGE_DATA,
        };
        // SAFETY: the program gave the function and its argument for this call.
        unsafe { function(self.1, stage, progress.done, progress.total.unwrap_or(0)) };
    }
}

fn check_options(
    flags: u32,
    max_findings: size_t,
    progress: papilio_check_fn,
    user: *mut c_void,
) -> Result<CheckOptions> {
    check_flags(flags, PAPILIO_CHECK_DATA)?;
    let mut options = CheckOptions::new().data_csum(flags & PAPILIO_CHECK_DATA != 0);
    if max_findings > 0 {
        options = options.max_findings(max_findings);
    }
    let callback = Callback(progress, user);
    Ok(options.progress(move |now| callback.call(now)))
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}

fn wrap(report: CheckReport) -> *mut papilio_report {
    let texts = report.findings.iter().map(|finding| {
        [c_text(finding.kind.name()), c_text(&finding.message), c_text(&finding.place.to_string())]
    });
    let texts = texts.collect();
    handles::insert(Report { report, texts, json: OnceLock::new() })
}

/// Checks the file system on the image or block device at `path`, NUL-terminated, which may be too
/// damaged to be opened. `options` names further devices, and may be NULL. `flags` is 0 or
/// PAPILIO_CHECK_DATA. The report keeps at most `max_findings`; 0 means 10,000. `progress` is NULL
/// or called with `user`. The report goes to `*report`. Free it with papilio_report_free().
///
/// Returns 0 or a negative errno. Faults of the file system are in the report, and no errors of the
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_check(
    path: *const c_char,
    options: *const papilio_options,
    flags: u32,
    max_findings: size_t,
    progress: papilio_check_fn,
    user: *mut c_void,
    report: *mut *mut papilio_report,
) -> c_int {
    guard_unit(|| {
        check_result(report, "report")?;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { host_path(path, "path") }?;
        let check = check_options(flags, max_findings, progress, user)?;
        let options = options_or_default(options)?;
        crate::failure::used();
        let found = papilio::check(path, &options, &check)?;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(report, wrap(found)) };
        Ok(())
    })
}

/// Checks the open file system `fs`, as of its last commit: call papilio_sync() first to include
/// the latest changes. The other arguments are those of papilio_check().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_check_open(
    fs: *mut papilio_fs,
    flags: u32,
    max_findings: size_t,
    progress: papilio_check_fn,
    user: *mut c_void,
    report: *mut *mut papilio_report,
) -> c_int {
    guard_unit(|| {
        check_result(report, "report")?;
        let check = check_options(flags, max_findings, progress, user)?;
        let found = fs_of(fs)?.check(&check)?;
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(report, wrap(found)) };
        Ok(())
    })
}

fn level(severity: Option<Severity>) -> u32 {
    match severity {
        None => 0,
        Some(Severity::Note) => PAPILIO_SEVERITY_NOTE,
        Some(Severity::Warning) => PAPILIO_SEVERITY_WARNING,
        // An unknown severity of a later version counts as the worst.
        Some(_) => PAPILIO_SEVERITY_ERROR,
    }
}

/// Returns the worst severity of a report, PAPILIO_SEVERITY_*; 0 if there is nothing to report; or
/// a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_report_verdict(report: *mut papilio_report) -> c_int {
    guard(|| Ok(level(handles::get::<Report>(report)?.report.verdict()) as c_int))
}

/// Returns the number of findings that a report kept, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_report_count(report: *mut papilio_report) -> i64 {
    guard(|| Ok(count(handles::get::<Report>(report)?.report.findings.len() as u64)))
}

/// Describes the finding at `index` of a report, counted from 0. `finding` points to a
/// papilio_finding, and `size` is its sizeof. Its texts are NUL-terminated UTF-8, and valid until
/// the report is freed.
///
/// Returns 0 or a negative errno: -ERANGE past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_report_finding(
    report: *mut papilio_report,
    index: size_t,
    finding: *mut papilio_finding,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(finding, size, "finding")?;
        let object = handles::get::<Report>(report)?;
        let findings = &object.report.findings;
        let found = findings.get(index).ok_or_else(|| past_end(index, findings.len()))?;
        let [kind, message, place] = &object.texts[index];
        let value = papilio_finding {
            kind: kind.as_ptr(),
            message: message.as_ptr(),
            place: place.as_ptr(),
            tree: found.place.tree.map_or(0, |tree| tree.0),
            inode: found.place.inode.map_or(0, |inode| inode.0),
            address: found.place.address.map_or(u64::MAX, |address| address.0),
            severity: level(Some(found.severity)),
            ..zeroed()
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(finding, size, &value) };
        Ok(())
    })
}

/// Returns the numbers of a report. `statistics` points to a papilio_check_statistics, and `size`
/// is its sizeof.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_report_statistics(
    report: *mut papilio_report,
    statistics: *mut papilio_check_statistics,
    size: size_t,
) -> c_int {
    guard_unit(|| {
        check_structure(statistics, size, "statistics")?;
        let object = handles::get::<Report>(report)?;
        let seen = &object.report.statistics;
        let value = papilio_check_statistics {
            errors: object.report.errors(),
            warnings: object.report.warnings(),
            dropped: object.report.dropped(),
            trees: seen.trees,
            blocks: seen.blocks,
            metadata_bytes: seen.metadata_bytes,
            data_extents: seen.data_extents,
            data_bytes: seen.data_bytes,
            subvolumes: seen.subvolumes,
            inodes: seen.inodes,
            files: seen.files,
            csum_bytes: seen.csum_bytes,
            data_bytes_read: seen.data_bytes_read,
        };
        // SAFETY: the structure was checked, and the caller promises `size` bytes.
        unsafe { store_structure(statistics, size, &value) };
        Ok(())
    })
}

/// Returns a report as JSON, as `papilio check --json` prints it. `*text` gets the NUL-terminated
/// text, which is valid until the report is freed.
///
/// Returns the length of the text or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_report_json(report: *mut papilio_report, text: *mut *const c_char) -> i64 {
    guard(|| {
        check_result(text, "text")?;
        let object = handles::get::<Report>(report)?;
        let made = object.json.get_or_init(|| c_text(&format!("{:#}\n", json(&object.report))));
        // SAFETY: the pointer was checked, and the caller promises memory for a pointer.
        unsafe { store(text, made.as_ptr()) };
        Ok(made.as_bytes().len() as i64)
    })
}

/// Frees a report, and its texts.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_report_free(report: *mut papilio_report) -> c_int {
    guard_unit(|| handles::remove::<Report>(report).map(drop))
}

//! The functions that fio calls.
//!
//! Owns [`get_ioengine`], the function table and each thread's [`Job`]. Set-up (`get_file_size`,
//! `prepopulate_file`) runs in fio's main process for all jobs, before the first job starts.
//! Everything else runs in the job's own thread. An error prints one line on standard error and
//! returns a value that makes fio stop the job and exit with an error.

use crate::abi::{self, FioFile, Functions, IoUnit, ThreadData};
use crate::discover::{Fio, fio};
use crate::engine_options::{self, EngineOptions};
use crate::error::EngineError;
use crate::files::Files;
use crate::job::Job;
use crate::message::say;
use crate::mount;
use crate::options::JobOptions;
use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

thread_local! {
    /// The job that runs in this thread.
    static JOB: RefCell<Option<Job>> = const { RefCell::new(None) };
}

/// Address of the function table. An address and not a reference, because fio writes into the
/// table.
static OPS: OnceLock<Option<usize>> = OnceLock::new();

/// Stores the engine's function table in `ops`. If this fio is not supported, prints why and stores
/// NULL.
///
/// # Safety
/// `ops` is valid for writing a pointer, which fio guarantees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_ioengine(ops: *mut *mut c_void) {
    let table = OPS.get_or_init(|| match fio() {
        Ok(fio) => Some(make_ops(fio) as usize),
        Err(error) => {
            say(error);
            None
        }
    });
    // SAFETY: the caller upholds this function's contract.
    unsafe { ops.write(table.unwrap_or(0) as *mut c_void) };
}

fn make_ops(fio: &Fio) -> *mut c_void {
    let functions = Functions {
        init,
        cleanup,
        queue,
        commit,
        getevents,
        event,
        open_file,
        close_file,
        invalidate,
        unlink_file,
        get_file_size,
        prepopulate_file,
    };
    let table = engine_options::table(fio.records);
    abi::make_ops(fio.ops, c"papilio", functions, size_of::<EngineOptions>(), table)
}

/// Returns the running fio. Functions of the table are only called if there is one.
fn this_fio() -> &'static Fio {
    fio().expect("fio only calls the engine once it has its function table")
}

/// Prints an error, and returns the errno for fio or 0.
fn report(result: Result<(), EngineError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            // The earlier job that failed to mount has printed the reason.
            if !matches!(error, EngineError::MountFailed { .. }) {
                say(&error);
            }
            error.errno()
        }
    }
}

/// Runs `run` on this thread's job; returns `None` if there is no job.
fn with_job<R>(run: impl FnOnce(&mut Job) -> R) -> Option<R> {
    JOB.with_borrow_mut(|job| job.as_mut().map(run))
}

extern "C" fn init(td: *mut c_void) -> c_int {
    // SAFETY: fio passes its job.
    let thread = unsafe { ThreadData::new(td) };
    report(Job::start(this_fio(), thread).map(|job| JOB.with_borrow_mut(|place| *place = Some(job))))
}

extern "C" fn cleanup(_td: *mut c_void) {
    JOB.with_borrow_mut(|job| *job = None);
}

extern "C" fn queue(_td: *mut c_void, io_u: *mut c_void) -> c_int {
    // SAFETY: fio passes an I/O that it has just prepared.
    let unit = unsafe { IoUnit::new(io_u, this_fio().io_unit_shift) };
    with_job(|job| job.queue(unit)).unwrap_or_else(|| {
        unit.finish(0, libc::EINVAL);
        abi::COMPLETED
    })
}

extern "C" fn commit(td: *mut c_void) -> c_int {
    // SAFETY: fio passes its job.
    let thread = unsafe { ThreadData::new(td) };
    with_job(|job| job.commit(thread));
    0
}

extern "C" fn getevents(_td: *mut c_void, min: c_uint, max: c_uint, _: *const libc::timespec) -> c_int {
    let events = with_job(|job| job.wait(min as usize, max.max(min) as usize));
    events.map_or(-libc::EINVAL, |events| events as c_int)
}

extern "C" fn event(_td: *mut c_void, index: c_int) -> *mut c_void {
    with_job(|job| job.event(index as usize)).unwrap_or(std::ptr::null_mut())
}

extern "C" fn open_file(_td: *mut c_void, file: *mut c_void) -> c_int {
    // SAFETY: fio passes one of its job's files.
    let file = unsafe { FioFile::new(file) };
    let opened = with_job(|job| job.open(file.number(), &file.name()));
    match opened {
        Some(Ok(size)) => {
            // fio has not laid out the file if it replays a log or creates files on open. The size
            // is then still unknown.
            if file.size() == u64::MAX {
                file.set_size(size);
            }
            0
        }
        Some(Err(error)) => report(Err(error)),
        None => libc::EINVAL,
    }
}

extern "C" fn close_file(_td: *mut c_void, file: *mut c_void) -> c_int {
    // SAFETY: fio passes one of its job's files.
    let file = unsafe { FioFile::new(file) };
    with_job(|job| job.close(file.number()));
    0
}

/// Does nothing: a job drops cached pages when it opens a file. fio calls this after it has laid
/// out a file, and would act on a host file if the function were missing.
extern "C" fn invalidate(_td: *mut c_void, _file: *mut c_void) -> c_int {
    0
}

extern "C" fn unlink_file(td: *mut c_void, file: *mut c_void) -> c_int {
    // SAFETY: fio passes its job and one of the job's files.
    let (thread, file) = unsafe { (ThreadData::new(td), FioFile::new(file)) };
    let removed = set_up(thread).and_then(|(options, fs)| {
        let files = Files { fs: &fs, options: &options };
        if files.find(&file.name())?.is_some() { files.remove(&file.name()) } else { Ok(()) }
    });
    report(removed)
}

/// Resolves a job's options and mounts its file system.
fn set_up(thread: ThreadData) -> Result<(JobOptions, papilio::FileSystem), EngineError> {
    let fio = this_fio();
    let options = JobOptions::of(fio, thread)?;
    if !fio.is_main_process() {
        return Err(EngineError::Forked { job: options.name });
    }
    // All jobs share the mount, so they must be threads. fio calls this before it starts any job,
    // except with create_serialize=0.
    thread.set_option(fio.offsets.thread, 1);
    // fio would save its verification state in the host's working directory, where runs overwrite
    // each other's files.
    thread.set_option(fio.offsets.verify_state_save, 0);
    let fs = mount::mount(&options.mount)?;
    Ok((options, fs))
}

extern "C" fn get_file_size(td: *mut c_void, file: *mut c_void) -> c_int {
    // SAFETY: fio passes its job and one of the job's files.
    let (thread, file) = unsafe { (ThreadData::new(td), FioFile::new(file)) };
    let sized = set_up(thread).and_then(|(options, fs)| {
        file.set_regular();
        let (files, name) = (Files { fs: &fs, options: &options }, file.name());
        if let Some(found) = files.find(&name)? {
            file.set_size(files.size(&found, &name)?);
        }
        Ok(())
    });
    report(sized)
}

extern "C" fn prepopulate_file(td: *mut c_void, file: *mut c_void) -> c_int {
    // SAFETY: fio passes its job and one of the job's files.
    let (thread, file) = unsafe { (ThreadData::new(td), FioFile::new(file)) };
    let laid_out = set_up(thread).and_then(|(options, fs)| {
        let size = match file.io_size().checked_add(file.offset()) {
            Some(size) if file.io_size() != u64::MAX => size,
            _ => {
                return Err(EngineError::Missing {
                    job: options.name,
                    option: "size",
                    what: "without it fio takes the host's free space, which says nothing about the image",
                });
            }
        };
        let mut fill = |buffer: &mut [u8]| this_fio().fill(thread, buffer);
        if !options.create_on_open {
            (Files { fs: &fs, options: &options }).lay_out(&file.name(), size, &mut fill)?;
        }
        if file.size() == u64::MAX || file.size() < size {
            file.set_size(size);
        }
        Ok(())
    });
    report(laid_out)
}

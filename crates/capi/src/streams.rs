//! Sending snapshots to a descriptor, and receiving them from one.
//!
//! The streams are those of `btrfs send` and `btrfs receive`. A descriptor may be a file, a pipe or
//! a socket. Writing to a pipe without a reader raises SIGPIPE, unless the program ignores it.

use crate::arguments::{check_flags, check_result, descriptor, host_path, store, text};
use crate::failure::{Failure, guard, guard_unit};
use crate::file_system::{User, count, fs_of, papilio_fs};
use crate::handles::{self, handle};
use libc::{c_char, c_int, c_void};
#[cfg(target_os = "linux")]
use papilio::HostDirectory;
use papilio::{
    Error, Receive, ReceiveObserver, ReceivedSubvolume, SendObserver, SendOptions, SendProtocol, TreeId,
};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};

/// A function that a long call reports to. `user` is the pointer that the program gave. A result
/// other than 0 ends the call with -ECANCELED. The function must return: no longjmp, no exception.
#[allow(non_camel_case_types)]
pub type papilio_progress_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64, bytes: u64) -> c_int>;

/// A function that hears of a failure after which the call goes on: of a command of a stream, or of
/// a file that is not copied. `message` is valid during the call. The function must return: no
/// longjmp, no exception.
#[allow(non_camel_case_types)]
pub type papilio_message_fn = Option<unsafe extern "C" fn(user: *mut c_void, message: *const c_char)>;

/// The options of a send.
pub(crate) struct Sending(Mutex<SendOptions>);

/// Options of a send. Made by papilio_send_options_new().
#[allow(non_camel_case_types)]
pub struct papilio_send_options {
    _incomplete: (),
}

handle!(papilio_send_options for Sending);

fn change(options: *const papilio_send_options, set: impl FnOnce(SendOptions) -> SendOptions) -> c_int {
    guard_unit(|| {
        let object = handles::get::<Sending>(options)?;
        let mut held = object.0.lock();
        *held = set(std::mem::take(&mut *held));
        Ok(())
    })
}

/// Makes an options object with the defaults: a full stream in protocol 1, with data. It goes to
/// `*options`. Free it with papilio_send_options_free().
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_send_options_new(options: *mut *mut papilio_send_options) -> c_int {
    guard_unit(|| {
        check_result(options, "options")?;
        let object = handles::insert(Sending(Mutex::new(SendOptions::new())));
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(options, object) };
        Ok(())
    })
}

/// Frees an options object.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_send_options_free(options: *mut papilio_send_options) -> c_int {
    guard_unit(|| handles::remove::<Sending>(options).map(drop))
}

/// Sends the difference from the snapshot with the id `parent`, which the receiver has. 0, the
/// default, sends everything.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_send_options_set_parent(options: *mut papilio_send_options, parent: u64) -> c_int {
    change(options, |held| held.parent((parent != 0).then_some(TreeId(parent))))
}

/// Lets the stream clone from the snapshot with the id `source`, which the receiver has.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_send_options_add_clone_source(
    options: *mut papilio_send_options,
    source: u64,
) -> c_int {
    change(options, |held| held.clone_source(TreeId(source)))
}

/// Sets whether the stream says which ranges changed in place of their data. The default is false.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_send_options_set_no_data(
    options: *mut papilio_send_options,
    no_data: bool,
) -> c_int {
    change(options, |held| held.no_data(no_data))
}

/// Chooses the protocol, 1 or 2. The default is 1.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_send_options_set_protocol(
    options: *mut papilio_send_options,
    protocol: u32,
) -> c_int {
    guard_unit(|| {
        let protocol = match protocol {
            1 => SendProtocol::V1,
            2 => SendProtocol::V2,
            _ => return Err(Failure::invalid(format!("protocol {protocol}: there are 1 and 2"))),
        };
        let object = handles::get::<Sending>(options)?;
        let mut held = object.0.lock();
        *held = std::mem::take(&mut *held).protocol(protocol);
        Ok(())
    })
}

/// Sets whether compressed extents are sent as they lie, which needs protocol 2. The default is
/// false.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_send_options_set_compressed_data(
    options: *mut papilio_send_options,
    compressed: bool,
) -> c_int {
    change(options, |held| held.compressed_data(compressed))
}

/// The program's function, and what it answered.
pub(crate) struct Progress {
    function: papilio_progress_fn,
    user: *mut c_void,
    canceled: bool,
}

impl Progress {
    pub(crate) fn new(function: papilio_progress_fn, user: *mut c_void) -> Self {
        Self { function, user, canceled: false }
    }

    pub(crate) fn is_canceled(&self) -> bool {
        self.canceled
    }

    pub(crate) fn call(&mut self, done: u64, total: u64, bytes: u64) {
        if let Some(function) = self.function.filter(|_| !self.canceled) {
            // SAFETY: the program gave the function and its argument for this call.
            self.canceled = unsafe { function(self.user, done, total, bytes) } != 0;
        }
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        if self.canceled { Err(io::Error::from_raw_os_error(libc::ECANCELED)) } else { Ok(()) }
    }
}

/// A stream, and the progress that may cancel it: two objects of a run share it.
pub(crate) struct Canceled<'a, T>(pub(crate) T, pub(crate) &'a RefCell<Progress>);

impl<T: Write> Write for Canceled<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.borrow().check()?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<T: Read> Read for Canceled<'_, T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.1.borrow().check()?;
        self.0.read(bytes)
    }
}

struct Watch<'a> {
    progress: &'a RefCell<Progress>,
    failed: papilio_message_fn,
    user: *mut c_void,
}

impl SendObserver for Watch<'_> {
    fn progress(&mut self, done: u64, all: u64, bytes: u64) {
        self.progress.borrow_mut().call(done, all, bytes);
    }
}

impl ReceiveObserver for Watch<'_> {
    fn begins(&mut self, _name: &[u8], _snapshot: bool) {}

    fn progress(&mut self, bytes: u64) {
        self.progress.borrow_mut().call(0, 0, bytes);
    }

    fn failed(&mut self, error: &Error) {
        if let Some(function) = self.failed {
            let text = std::ffi::CString::new(error.to_string().replace('\0', "\\0")).unwrap_or_default();
            // SAFETY: the program gave the function and its argument for this call.
            unsafe { function(self.user, text.as_ptr()) };
        }
    }
}

/// The failure of a call that the program's progress function canceled.
pub(crate) fn canceled() -> Failure {
    Failure::new(libc::ECANCELED, "the program's progress function canceled the call")
}

/// Returns the failure of a run, which the program may have canceled.
pub(crate) fn failure(error: Error, progress: &RefCell<Progress>) -> Failure {
    if progress.borrow().canceled { canceled() } else { error.into() }
}

/// Writes the stream of the read-only subvolume with the id `subvolume` to the descriptor `fd`.
/// `options` may be NULL for the defaults. `progress` is NULL or a function that is called with
/// `user`, the inodes that are sent, their total, and the bytes of the stream.
///
/// Returns the bytes of the stream, or a negative errno: -EBADF for a descriptor that is not open,
/// -ECANCELED if `progress` returns other than 0, the errno of writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_send(
    fs: *mut papilio_fs,
    subvolume: u64,
    fd: c_int,
    options: *const papilio_send_options,
    progress: papilio_progress_fn,
    user: *mut c_void,
) -> i64 {
    guard(|| {
        let user_of = User::new(&fs_of(fs)?)?;
        let options = match options.is_null() {
            true => SendOptions::new(),
            false => handles::get::<Sending>(options)?.0.lock().clone(),
        };
        // A duplicate, so that the program's descriptor stays open.
        let out = File::from(descriptor(fd)?.try_clone_to_owned()?);
        let shared = RefCell::new(Progress::new(progress, user));
        let mut out = BufWriter::with_capacity(256 << 10, Canceled(out, &shared));
        let mut watch = Watch { progress: &shared, failed: None, user };
        let sent = options.send(user_of.fs(), TreeId(subvolume), &mut out, &mut watch);
        let sent = sent.and_then(|sent| match out.flush() {
            Ok(()) => Ok(sent),
            Err(source) => Err(Error::Host { path: format!("descriptor {fd}").into(), source }),
        });
        let sent = sent.map_err(|error| failure(error, &shared));
        // Bytes that a failed send left must not be written after it.
        drop(out.into_parts());
        Ok(count(sent?.bytes))
    })
}

/// Flag of papilio_receive() and papilio_receive_directory(): ends after the first stream, and
/// reads nothing behind it.
pub const PAPILIO_RECEIVE_ONE: u32 = 0x1;

/// Applies the streams that the descriptor `fd` gives to the directory at `path`, NUL-terminated,
/// until the end of the input. `flags` is 0 or PAPILIO_RECEIVE_ONE. The call ends after
/// `max_errors` commands that failed; 0 means never, and 1 is usual. `failed` is NULL or hears of
/// each. `progress` is NULL or a function that is called with `user`, 0, 0, and the bytes of the
/// stream.
///
/// Returns the number of complete subvolumes, or a negative errno: -EINVAL for an invalid stream,
/// -ENOENT for a parent that is missing, -ECANCELED if `progress` returns other than 0. After an
/// error, subvolumes that were complete before stay, and an incomplete one stays writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_receive(
    fs: *mut papilio_fs,
    path: *const c_char,
    fd: c_int,
    flags: u32,
    max_errors: u64,
    progress: papilio_progress_fn,
    failed: papilio_message_fn,
    user: *mut c_void,
) -> i64 {
    guard(|| {
        check_flags(flags, PAPILIO_RECEIVE_ONE)?;
        let one = flags & PAPILIO_RECEIVE_ONE != 0;
        // SAFETY: the caller promises a NUL-terminated text.
        let path = unsafe { text(path, "path") }?;
        let user_of = User::new(&fs_of(fs)?)?;
        let watch = Watch { progress: &RefCell::new(Progress::new(progress, user)), failed, user };
        let receive = Receive::new().stop_at_end(one).max_errors(max_errors);
        receive_with(fd, one, watch, |input, received, watch| {
            receive.receive(user_of.fs(), path, input, received, watch)
        })
    })
}

/// Runs a receive from the descriptor `fd`, and returns the number of complete subvolumes.
fn receive_with(
    fd: c_int,
    one: bool,
    mut watch: Watch<'_>,
    run: impl FnOnce(&mut dyn Read, &mut Vec<ReceivedSubvolume>, &mut Watch<'_>) -> papilio::Result<()>,
) -> crate::failure::Result<i64> {
    let shared = watch.progress;
    let input = Canceled(File::from(descriptor(fd)?.try_clone_to_owned()?), shared);
    let mut received = Vec::new();
    // A buffer would read past the end of the stream.
    let result = match one {
        true => run(&mut { input }, &mut received, &mut watch),
        false => run(&mut BufReader::with_capacity(256 << 10, input), &mut received, &mut watch),
    };
    result.map_err(|error| failure(error, shared))?;
    Ok(received.iter().filter(|subvolume| subvolume.complete).count() as i64)
}

/// As papilio_receive(), into the directory `directory` of the host, NUL-terminated. In a mount of
/// Papilio or of the kernel's Btrfs, subvolumes become subvolumes. Elsewhere they become plain
/// directories, and a snapshot is a copy of its parent, which must have been received into the same
/// directory. Linux only.
///
/// Returns as papilio_receive(); -EINVAL for a program under fakeroot, which would not see the
/// owners, and -EOPNOTSUPP on other hosts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_receive_directory(
    directory: *const c_char,
    fd: c_int,
    flags: u32,
    max_errors: u64,
    progress: papilio_progress_fn,
    failed: papilio_message_fn,
    user: *mut c_void,
) -> i64 {
    guard(|| {
        check_flags(flags, PAPILIO_RECEIVE_ONE)?;
        let one = flags & PAPILIO_RECEIVE_ONE != 0;
        // SAFETY: the caller promises a NUL-terminated text.
        let directory = unsafe { host_path(directory, "directory") }?;
        let watch = Watch { progress: &RefCell::new(Progress::new(progress, user)), failed, user };
        let receive = Receive::new().stop_at_end(one).max_errors(max_errors);
        #[cfg(target_os = "linux")]
        {
            let mut target = HostDirectory::open(directory)?;
            receive_with(fd, one, watch, |input, received, watch| {
                receive.receive_into(&mut target, input, received, watch)
            })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (directory, fd, watch, receive);
            Err(Failure::new(libc::EOPNOTSUPP, "only Linux confines a stream to a directory"))
        }
    })
}

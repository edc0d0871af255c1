//! Runs the `papilio` command, for all integration tests.

// Not every test binary uses every helper.
#![allow(dead_code)]

use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Returns the path of the binary: the command of the package that is tested.
pub fn binary() -> &'static Path {
    let command = option_env!("CARGO_BIN_EXE_papilio").or(option_env!("CARGO_BIN_EXE_papilio-store"));
    Path::new(command.expect("cargo names the binary of the package"))
}

/// Links names of other programs to the binary.
pub fn link_names(folder: &Path, names: &[&str]) {
    for name in names {
        std::os::unix::fs::symlink(binary(), folder.join(name)).unwrap();
    }
}

/// Returns a command that runs the binary in UTC, without arguments yet.
pub fn command() -> Command {
    let mut command = Command::new(binary());
    command.env("TZ", "UTC");
    // A system call that is not in the list of the command's job ends it.
    if std::env::var_os("PAPILIO_SANDBOX").is_none() {
        command.env("PAPILIO_SANDBOX", "kill");
    }
    command
}

/// Runs the command without standard input.
pub fn papilio<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    command().args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Runs the command, which must succeed with an empty standard error, and returns its output.
pub fn succeed<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Vec<u8> {
    let output = papilio(arguments);
    let stderr = text(&output.stderr);
    let (status, stdout) = (output.status, &output.stdout);
    assert!(status.success() && stderr.is_empty(), "{status}: {stderr}{}", text(stdout));
    output.stdout
}

/// Like [`succeed`], and returns the output as text.
pub fn succeed_text<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    text(&succeed(arguments))
}

/// Like [`succeed`], and returns the output as JSON.
pub fn succeed_json<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> serde_json::Value {
    serde_json::from_slice(&succeed(arguments)).unwrap()
}

/// Runs the command, which must fail with `code` and one line on standard error that contains
/// `part`. Returns that line.
pub fn fail<S: AsRef<OsStr>>(code: i32, part: &str, arguments: impl IntoIterator<Item = S>) -> String {
    check_failure(&papilio(arguments), code, part)
}

/// Like [`fail`], for a command that has ended.
pub fn check_failure(output: &Output, code: i32, part: &str) -> String {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(part), "{part:?} is not in {stderr:?}");
    assert!(stderr.starts_with("papilio: "), "{stderr:?}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr:?}");
    stderr
}

/// Unmounts Papilio's mount on a directory.
pub fn unmount(directory: &Path) {
    let output = try_unmount(directory);
    let stderr = text(&output.stderr);
    // On a busy machine the server may take its time.
    let is_quiet = stderr.lines().all(|line| line.contains("waiting for the server to write"));
    assert!(output.status.success() && is_quiet, "{}: {stderr}", output.status);
}

/// Runs the command that unmounts Papilio's mount on a directory, where no program of the test has
/// a file open.
pub fn try_unmount(directory: &Path) -> Output {
    unmount_by(|| papilio([OsStr::new("umount"), directory.as_os_str()]))
}

/// Runs a command that unmounts, again while the mount is busy. A command that another test starts
/// holds copies of this process's open files between its fork and its exec.
pub fn unmount_by(command: impl Fn() -> Output) -> Output {
    let start = Instant::now();
    loop {
        let output = command();
        let stderr = text(&output.stderr);
        let is_busy = stderr.contains("in use") || stderr.contains("busy");
        if !is_busy || start.elapsed() > Duration::from_secs(10) {
            return output;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns a dump of a send stream as btrfs-progs 6.2 prints it: names and values of extended
/// attributes, and the sources of clones, are not escaped there. Later versions escape them.
pub fn with_plain_strings(dump: &[u8]) -> Vec<u8> {
    let plain = |line: &[u8]| -> Vec<u8> {
        let mark: &[u8] = match line.split(|byte| *byte == b' ').next() {
            Some(b"set_xattr" | b"remove_xattr") => b" name=",
            Some(b"clone") => b" from=",
            _ => return line.to_vec(),
        };
        let at =
            line.windows(mark.len()).position(|part| part == mark).map_or(line.len(), |at| at + mark.len());
        let (mut out, mut rest) = (line[..at].to_vec(), &line[at..]);
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            let Some((&escaped, after)) = rest.split_first().filter(|_| byte == b'\\') else {
                out.push(byte);
                continue;
            };
            rest = after;
            let letter = b"abefnrtv".iter().position(|letter| *letter == escaped);
            out.push(match letter {
                Some(index) => b"\x07\x08\x1b\x0c\n\r\t\x0b"[index],
                None if escaped.is_ascii_digit() => {
                    let digits = [escaped, rest[0], rest[1]].map(|digit| u32::from(digit - b'0'));
                    rest = &rest[2..];
                    u8::try_from(digits[0] * 64 + digits[1] * 8 + digits[2]).unwrap()
                }
                None => escaped,
            });
        }
        out
    };
    dump.split(|byte| *byte == b'\n').map(plain).collect::<Vec<_>>().join(&b'\n')
}

/// Returns output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks an image with `papilio check` and, where the machine allows it, with `btrfs check`.
pub fn assert_clean(image: &Path) {
    succeed(["check".as_ref(), "--check-data-csum".as_ref(), image.as_os_str()]);
    if require(&[Need::Root, Need::Loop, Need::Command("btrfs")]).is_some() {
        let scratch = Scratch::new(0).unwrap();
        ImageSet::open(&scratch, vec![image.to_path_buf()]).btrfs_check().unwrap();
    }
}

//! Translates the arguments of a mount(8) or umount(8) helper into those of `papilio mount` and
//! `papilio umount`.
//!
//! A helper is a symbolic link `/sbin/mount.TYPE` or `/sbin/umount.TYPE` to this program. mount(8)
//! documents its arguments under "External helpers": `SOURCE DIR [-sfnv] [-N NAMESPACE]
//! [-o OPTIONS] [-t TYPE]` and `DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`. Without such a link,
//! `mount -t fuse.papilio` runs FUSE's helper `mount.fuse`, which runs `papilio SOURCE DIR
//! -o OPTIONS`. A first argument that starts with a slash identifies this form, since no command
//! does.

use crate::usage_error::UsageError;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// mount(8)'s exit code for a wrong invocation.
pub const WRONG_INVOCATION: u8 = 1;
/// mount(8)'s exit code for a mount, or its end, that failed.
pub const MOUNT_FAILED: u8 = 32;

/// Returns whether mount(8), umount(8) or FUSE's helper run the program, and return its exit code.
pub fn is_helper(arguments: &[OsString]) -> bool {
    let name = arguments.first().and_then(|name| Path::new(name).file_name()).and_then(OsStr::to_str);
    matches!(name, Some("mount.fuse.papilio" | "mount.papilio" | "umount.fuse.papilio" | "umount.papilio"))
        || arguments.get(1).is_some_and(|first| first.as_bytes().starts_with(b"/"))
}

/// Returns the arguments of the command, translated if the program was run as a helper.
///
/// # Errors
/// An argument that the helper does not have.
pub fn translate(arguments: Vec<OsString>) -> Result<Vec<OsString>, UsageError> {
    let name = arguments.first().and_then(|name| Path::new(name).file_name()).map(OsStr::to_owned);
    match name.as_deref().and_then(OsStr::to_str) {
        Some("mount.fuse.papilio" | "mount.papilio") => translate_as("mount", arguments),
        Some("umount.fuse.papilio" | "umount.papilio") => translate_as("umount", arguments),
        _ if arguments.get(1).is_some_and(|first| first.as_bytes().starts_with(b"/")) => {
            translate_as("mount", arguments)
        }
        _ => Ok(arguments),
    }
}

fn translate_as(command: &str, arguments: Vec<OsString>) -> Result<Vec<OsString>, UsageError> {
    let mut options: Vec<OsString> = vec!["papilio".into(), command.into()];
    let mut operands = Vec::new();
    let mut arguments = arguments.into_iter().skip(1);
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        let Some(letters) = bytes.strip_prefix(b"-").filter(|letters| !letters.is_empty()) else {
            operands.push(argument);
            continue;
        };
        if bytes == b"--" {
            operands.extend(arguments.by_ref());
            break;
        }
        if bytes == b"--help" || bytes == b"--version" {
            options.push(argument);
            continue;
        }
        for (at, &letter) in letters.iter().enumerate() {
            let mut value = || match &letters[at + 1..] {
                [] => arguments.next(),
                rest => Some(OsStr::from_bytes(rest).to_owned()),
            };
            match letter {
                b'o' | b't' | b'N' => {
                    let Some(value) = value() else {
                        let letter = char::from(letter);
                        return Err(UsageError::new(format_args!("-{letter} needs a value")));
                    };
                    match letter {
                        b'o' => options.extend(["-o".into(), value]),
                        b'N' => {
                            return Err(UsageError::new(
                                "-N: mounting in another namespace is not supported",
                            ));
                        }
                        // The name of the helper already says the type.
                        _ => {}
                    }
                    break;
                }
                b'v' => options.push("-v".into()),
                // There is no mtab to write.
                b'n' => {}
                b's' if command == "mount" => options.push("--sloppy".into()),
                b'f' if command == "mount" => options.push("--fake".into()),
                b'r' if command == "mount" => options.push("-r".into()),
                b'w' if command == "mount" => {}
                b'l' if command == "umount" => options.push("--lazy".into()),
                b'f' if command == "umount" => options.push("--force".into()),
                // Remounting a busy file system read-only is impossible with FUSE.
                b'r' if command == "umount" => {}
                other => {
                    let other = char::from(other);
                    return Err(UsageError::new(format_args!("{command} helper: unknown option -{other}")));
                }
            }
        }
    }
    options.push("--".into());
    options.append(&mut operands);
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<String, String> {
        let arguments = line.split(' ').map(OsString::from).collect();
        let translated = translate(arguments).map_err(|error| error.to_string())?;
        Ok(translated.join(OsStr::new(" ")).into_string().unwrap())
    }

    #[test]
    fn helper_arguments_are_translated() {
        let expectations = [
            ("papilio mount a b -o ro", "papilio mount a b -o ro"),
            (
                "/sbin/mount.fuse.papilio a.img /mnt -o rw,noatime",
                "papilio mount -o rw,noatime -- a.img /mnt",
            ),
            (
                "mount.papilio a /mnt -sfnv -t papilio -oro",
                "papilio mount --sloppy --fake -v -o ro -- a /mnt",
            ),
            ("mount.fuse.papilio a /mnt", "papilio mount -- a /mnt"),
            ("/sbin/umount.fuse.papilio /mnt -l -v", "papilio umount --lazy -v -- /mnt"),
            ("umount.papilio /mnt -fnr -t fuse.papilio", "papilio umount --force -- /mnt"),
            ("papilio /a.img /mnt -o rw,dev,suid", "papilio mount -o rw,dev,suid -- /a.img /mnt"),
            ("umount.papilio -- -odd", "papilio umount -- -odd"),
        ];
        for (line, expected) in expectations {
            assert_eq!(translated(line).as_deref(), Ok(expected));
        }
        for wrong in
            ["mount.papilio a /mnt -x", "mount.papilio a /mnt -o", "umount.papilio -N /proc/1/ns/mnt m"]
        {
            assert!(translated(wrong).is_err(), "{wrong}");
        }
        let is_helper =
            |line: &str| super::is_helper(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(is_helper("/sbin/umount.papilio /mnt") && is_helper("papilio /a.img /mnt"));
        assert!(!is_helper("papilio mount /a.img /mnt") && !is_helper("papilio"));
    }
}

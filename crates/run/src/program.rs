//! The way in which a program's system calls can be answered.
//!
//! Owns [`Kind`] and [`kind_of`]. A preloaded library answers the calls that go through the C
//! library. Go makes its calls itself, and a static program loads no library.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The way in which a program calls the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Through a shared C library.
    Dynamic,
    /// By itself: a static program, or one that is written in Go.
    Direct,
}

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Bytes of an ELF header, and of a header of a segment, on 64-bit processors.
const HEADER: usize = 64;
const SEGMENT: usize = 56;
/// Most bytes of notes that are looked at.
const MOST_NOTES: u64 = 1 << 16;

/// Finds a program as a shell does.
///
/// # Errors
/// `NotFound`, or `PermissionDenied` if there are only files that cannot be run.
pub fn find(name: &OsStr) -> io::Result<PathBuf> {
    let mut denied = false;
    let mut is_program = |path: &Path| match path.metadata() {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => true,
        Ok(_) => {
            denied = true;
            false
        }
        Err(_) => false,
    };
    let paths: Vec<PathBuf> = match name.as_bytes().contains(&b'/') {
        true => vec![PathBuf::from(name)],
        false => {
            let folders = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
            std::env::split_paths(&folders).map(|folder| folder.join(name)).collect()
        }
    };
    match paths.into_iter().find(|path| is_program(path)) {
        Some(path) => Ok(path),
        None if denied => Err(io::ErrorKind::PermissionDenied.into()),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Returns the kind of a program. A script has that of its interpreter.
///
/// # Errors
/// The file cannot be read.
pub fn kind_of(path: &Path) -> io::Result<Kind> {
    let mut path = path.to_path_buf();
    // `BINPRM_MAX_RECURSION` (`fs/exec.c`) is less.
    for _ in 0..8 {
        let file = File::open(&path)?;
        let mut start = Vec::new();
        (&file).take(4096).read_to_end(&mut start)?;
        match interpreter_of(&start) {
            Some(interpreter) => path = interpreter,
            None => return kind_of_elf(&file, &start),
        }
    }
    Ok(Kind::Dynamic)
}

/// Returns the program that runs a script; with `env` the one that it looks for.
fn interpreter_of(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = words.next()?;
    let named = words.find(|word| word[0] != b'-');
    if first.ends_with(b"/env")
        && let Some(name) = named
    {
        return find(OsStr::from_bytes(name)).ok();
    }
    Some(PathBuf::from(OsString::from_vec(first.to_vec())))
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(length)?)?;
    Some(part.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte)))
}

fn kind_of_elf(file: &File, start: &[u8]) -> io::Result<Kind> {
    const LITTLE_64: &[u8] = b"\x7fELF\x02\x01";
    if !start.starts_with(LITTLE_64) || start.len() < HEADER {
        return Ok(Kind::Dynamic);
    }
    let (Some(table), Some(count)) = (number(start, 32, 8), number(start, 56, 2)) else {
        return Ok(Kind::Dynamic);
    };
    let mut segments = vec![0; count as usize * SEGMENT];
    if file.read_exact_at(&mut segments, table).is_err() {
        return Ok(Kind::Dynamic);
    }
    let mut has_interpreter = false;
    for segment in segments.chunks_exact(SEGMENT) {
        let field = |at, length| number(segment, at, length).unwrap_or(0);
        match field(0, 4) as u32 {
            PT_INTERP => has_interpreter = true,
            PT_NOTE => {
                let mut notes = vec![0; field(32, 8).min(MOST_NOTES) as usize];
                if file.read_exact_at(&mut notes, field(8, 8)).is_ok() && has_note_of_go(&notes) {
                    return Ok(Kind::Direct);
                }
            }
            _ => {}
        }
    }
    Ok(if has_interpreter { Kind::Dynamic } else { Kind::Direct })
}

/// Returns whether there is a note with the name `Go`, which its linker writes.
fn has_note_of_go(mut notes: &[u8]) -> bool {
    let rounded =
        |length: u64| length.checked_next_multiple_of(4).and_then(|length| usize::try_from(length).ok());
    while let (Some(name), Some(content)) = (number(notes, 0, 4), number(notes, 4, 4)) {
        let name = &notes[12.min(notes.len())..].get(..name as usize).map_or(&[][..], |found| found);
        if name.starts_with(b"Go\0") {
            return true;
        }
        let (Some(first), Some(second)) = (rounded(number(notes, 0, 4).unwrap_or(0)), rounded(content))
        else {
            return false;
        };
        let Some(next) = 12_usize.checked_add(first).and_then(|at| at.checked_add(second)) else {
            return false;
        };
        match notes.get(next..) {
            Some(rest) => notes = rest,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_this_machine_are_dynamic() {
        for name in ["sh", "cat"] {
            assert_eq!(kind_of(&find(OsStr::new(name)).unwrap()).unwrap(), Kind::Dynamic);
        }
        let script = tempfile::NamedTempFile::new().unwrap();
        for line in ["#!/bin/sh -e\n", "#! /usr/bin/env -S sh\n", "#!/usr/bin/env\n", "text", ""] {
            std::fs::write(script.path(), line).unwrap();
            assert_eq!(kind_of(script.path()).unwrap(), Kind::Dynamic, "{line:?}");
        }
        assert_eq!(find(OsStr::new("no such program")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let denied = find(script.path().as_os_str()).unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
    }

    /// An ELF file with these segments: type and content.
    fn elf(segments: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(HEADER, 0);
        bytes[32] = HEADER as u8;
        bytes[56] = segments.len() as u8;
        let mut at = HEADER + segments.len() * SEGMENT;
        for (kind, content) in segments {
            let mut header = vec![0; SEGMENT];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&(at as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend(header);
            at += content.len();
        }
        segments.iter().for_each(|(_, content)| bytes.extend(*content));
        bytes
    }

    #[test]
    fn static_programs_and_those_in_go_call_by_themselves() {
        let note = |name: &[u8]| {
            let mut note = Vec::new();
            for number in [name.len() as u32, 5, 4] {
                note.extend(number.to_le_bytes());
            }
            note.extend(name);
            note.resize(note.len().next_multiple_of(4), 0);
            note.extend(b"12345\0\0\0");
            note
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let kind = |segments: &[(u32, &[u8])]| {
            std::fs::write(file.path(), elf(segments)).unwrap();
            kind_of(file.path()).unwrap()
        };
        let (go, gnu) = (note(b"Go\0\0"), note(b"GNU\0"));
        assert_eq!(kind(&[(1, b"code")]), Kind::Direct);
        assert_eq!(kind(&[(PT_INTERP, b"/lib/ld.so\0"), (PT_NOTE, &gnu)]), Kind::Dynamic);
        let both = [&gnu[..], &go].concat();
        assert_eq!(kind(&[(PT_INTERP, b"/lib/ld.so\0"), (PT_NOTE, &both)]), Kind::Direct);
        // Damaged notes end the search.
        assert_eq!(kind(&[(PT_INTERP, b"/lib\0"), (PT_NOTE, &[0xff; 40])]), Kind::Dynamic);
        std::fs::write(file.path(), &elf(&[(1, b"x")])[..70]).unwrap();
        assert_eq!(kind_of(file.path()).unwrap(), Kind::Dynamic);
    }
}

//! `papilio receive --dump`: one line for each command, as btrfs-progs prints it.
//!
//! Counterpart: btrfs-progs' `cmds/receive-dump.c`.

use crate::output::Output;
use crate::time;
use papilio::{SendCommand as Command, StreamReader};
use std::io::Read;

/// Columns of the command's name.
const NAME_COLUMNS: usize = 16;
/// Columns of the path.
const PATH_COLUMNS: usize = 32;

/// Prints the commands of the streams in `input`.
pub fn dump(input: &mut dyn Read, output: &mut Output, stop_at_end: bool) -> anyhow::Result<()> {
    let mut reader = StreamReader::new(input);
    let mut subvolume = Vec::new();
    while let Some(command) = reader.next_command()? {
        if let Command::Subvol { path, .. } | Command::Snapshot { path, .. } = &command {
            subvolume = [b"./", &path[..]].concat();
        }
        if command == Command::End {
            if stop_at_end {
                break;
            }
            continue;
        }
        output.bytes(&line(&command, &subvolume))?;
    }
    Ok(())
}

fn line(command: &Command, subvolume: &[u8]) -> Vec<u8> {
    let full = |path: &[u8]| match path {
        b"" => [subvolume, b"/"].concat(),
        path => [subvolume, b"/", path].concat(),
    };
    let (path, rest) = describe(command, subvolume, &full);
    let mut text = format!("{:<NAME_COLUMNS$}", command.kind().name()).into_bytes();
    let path = quoted(&path);
    let padding = PATH_COLUMNS.saturating_sub(path.len()).max(1);
    text.extend(&path);
    if !rest.is_empty() {
        text.extend(std::iter::repeat_n(b' ', padding));
        text.extend(rest);
    }
    text.push(b'\n');
    text
}

/// Returns the path of a command and the rest of its line.
fn describe(command: &Command, subvolume: &[u8], full: &dyn Fn(&[u8]) -> Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let with = |label: &[u8], value: &[u8]| [label, value].concat();
    match command {
        Command::Subvol { uuid, ctransid, .. } => {
            (subvolume.to_vec(), format!("uuid={uuid} transid={ctransid}").into_bytes())
        }
        Command::Snapshot { uuid, ctransid, clone_uuid, clone_ctransid, .. } => {
            let rest = format!(
                "uuid={uuid} transid={ctransid} parent_uuid={clone_uuid} parent_transid={clone_ctransid}"
            );
            (subvolume.to_vec(), rest.into_bytes())
        }
        Command::Mkfile { path, .. }
        | Command::Mkdir { path, .. }
        | Command::Mkfifo { path, .. }
        | Command::Mksock { path, .. }
        | Command::Unlink { path }
        | Command::Rmdir { path } => (full(path), Vec::new()),
        Command::Mknod { path, rdev, mode, .. } => {
            (full(path), format!("mode={mode:o} dev=0x{rdev:x}").into_bytes())
        }
        Command::Symlink { path, target, .. } => (full(path), with(b"dest=", &quoted(target))),
        Command::Rename { from, to } => (full(from), with(b"dest=", &quoted(&full(to)))),
        Command::Link { path, existing } => (full(path), with(b"dest=", &quoted(existing))),
        Command::SetXattr { path, name, value } => {
            let length = format!(" len={}", value.len());
            // btrfs-progs prints the value as a string, up to its first NUL.
            let text = quoted(value.split(|byte| *byte == 0).next().unwrap_or_default());
            let name = quoted(name);
            let rest: [&[u8]; 5] = [b"name=", &name, b" data=", &text, length.as_bytes()];
            (full(path), rest.concat())
        }
        Command::RemoveXattr { path, name } => (full(path), with(b"name=", &quoted(name))),
        Command::Chmod { path, mode } => (full(path), format!("mode={mode:o}").into_bytes()),
        Command::Chown { path, uid, gid } => (full(path), format!("gid={gid} uid={uid}").into_bytes()),
        Command::Utimes { path, atime, mtime, ctime, .. } => {
            let rest = format!(
                "atime={} mtime={} ctime={}",
                time::with_zone(*atime),
                time::with_zone(*mtime),
                time::with_zone(*ctime)
            );
            (full(path), rest.into_bytes())
        }
        other => describe_data(other, full),
    }
}

/// As [`describe`], for commands about data.
fn describe_data(command: &Command, full: &dyn Fn(&[u8]) -> Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let (path, rest) = match command {
        Command::Write { path, offset, data } => (full(path), format!("offset={offset} len={}", data.len())),
        Command::Clone { path, offset, length, clone_path, clone_offset, .. } => {
            let from = quoted(&full(clone_path));
            let before = format!("offset={offset} len={length} from=").into_bytes();
            let after = format!(" clone_offset={clone_offset}").into_bytes();
            return (full(path), [before, from, after].concat());
        }
        Command::Truncate { path, size } => (full(path), format!("size={size}")),
        Command::UpdateExtent { path, offset, size } => (full(path), format!("offset={offset} len={size}")),
        Command::Fallocate { path, mode, offset, size } => {
            (full(path), format!("mode={mode} offset={offset} len={size}"))
        }
        // The number is decimal, as btrfs-progs prints it behind the prefix.
        Command::Fileattr { path, attributes } => (full(path), format!("fileattr=0x{attributes}")),
        Command::EncodedWrite(write) => {
            let rest = format!(
                "offset={} len={}, unencoded_file_len={}, unencoded_len={}, unencoded_offset={}, \
                 compression={}, encryption={}",
                write.offset,
                write.data.len(),
                write.file_length,
                write.unencoded_length,
                write.unencoded_offset,
                write.compression,
                write.encryption.unwrap_or(0)
            );
            (full(&write.path), rest)
        }
        _ => (Vec::new(), String::new()),
    };
    (path, rest.into_bytes())
}

/// Escapes a path as btrfs-progs does.
fn quoted(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            0x07 => text.extend(b"\\a"),
            0x08 => text.extend(b"\\b"),
            0x1b => text.extend(b"\\e"),
            0x0c => text.extend(b"\\f"),
            b'\n' => text.extend(b"\\n"),
            b'\r' => text.extend(b"\\r"),
            b'\t' => text.extend(b"\\t"),
            0x0b => text.extend(b"\\v"),
            b' ' => text.extend(b"\\ "),
            b'\\' => text.extend(b"\\\\"),
            0x21..=0x7e => text.push(byte),
            other => text.extend(format!("\\{other:03o}").into_bytes()),
        }
    }
    text
}

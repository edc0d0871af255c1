//! Hard links, symbolic links, and inodes without content.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::content::{Data, Writer, numbered};
use super::tree_spec::TreeSpec;

/// Writes all cases.
pub fn write(writer: &mut Writer, folder: &Path, _spec: &TreeSpec) -> anyhow::Result<()> {
    hard_links(writer, folder)?;
    symbolic_links(writer, folder)?;
    special(writer, folder)
}

/// Creates hard links with names so long and so many that no inode reference item can hold them
/// (the largest leaf is 64 KiB). The rest become extended references.
fn hard_links(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    let origin = folder.join("origin");
    writer.file(&origin, 12_345, Data::Text)?;
    let many = folder.join("many");
    writer.directory(&many)?;
    for number in 0..320 {
        let name = format!("{number:04}-{}", "x".repeat(240));
        match std::fs::hard_link(&origin, many.join(name)) {
            Ok(()) => {}
            // Without extended references the item size is the limit, which is reached here.
            Err(error) if error.raw_os_error() == Some(libc::EMLINK) => break,
            Err(error) => return Err(error.into()),
        }
    }
    for number in 0..8 {
        let inner = numbered(folder, "directory-", number);
        writer.directory(&inner)?;
        for link in 0..=number {
            let path = numbered(&inner, "link-", link);
            match std::fs::hard_link(&origin, path) {
                Err(error) if error.raw_os_error() != Some(libc::EMLINK) => return Err(error.into()),
                _ => {}
            }
        }
    }
    // A link whose first name was removed.
    let (first, second) = (folder.join("first-name"), folder.join("second-name"));
    writer.file(&first, 99, Data::Text)?;
    std::fs::hard_link(&first, second)?;
    Ok(std::fs::remove_file(first)?)
}

fn symbolic_links(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    let mut add = |name: &str, target: &[u8]| -> anyhow::Result<()> {
        match symlink(OsStr::from_bytes(target), folder.join(name)) {
            // A target must fit inline into a leaf; a 4 KiB leaf cannot hold the longest.
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => return Ok(()),
            result => result?,
        }
        writer.count();
        Ok(())
    };
    add("symlink-short", b"origin")?;
    add("symlink-one-byte", b"x")?;
    add("symlink-dangling", b"no/such/../thing")?;
    add("symlink-absolute", b"/origin")?;
    add("symlink-loop", b"symlink-loop")?;
    add("symlink-to-directory", b"many")?;
    add("symlink-odd", b"new\nline \xff\xfe")?;
    for length in [255, 1000, 2000, 3000, 3900, 4095] {
        let target: Vec<u8> = b"component/".iter().copied().cycle().take(length).collect();
        add(&format!("symlink-{length}"), &target)?;
    }
    Ok(())
}

fn special(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("block", FileType::BlockDevice, makedev(7, 200)),
        // Minor and major numbers over 255 show whether their encoding is understood.
        ("wide-minor", FileType::BlockDevice, makedev(259, 70_000)),
        ("wide-major", FileType::CharacterDevice, makedev(4000, 1_000_000)),
        ("whiteout", FileType::CharacterDevice, makedev(0, 0)),
    ] {
        mknodat(CWD, folder.join(name), kind, Mode::from_raw_mode(0o640), device)?;
        writer.count();
    }
    Ok(())
}

//! Modes, owners, extended attributes and access control lists.

use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

use anyhow::Context;

use super::content::{Data, Writer, numbered};
use super::names;
use super::tree_spec::TreeSpec;

/// Writes all cases.
pub fn write(writer: &mut Writer, folder: &Path, _spec: &TreeSpec) -> anyhow::Result<()> {
    modes_and_owners(writer, folder)?;
    xattrs(writer, folder)?;
    access_control_lists(writer, folder)
}

fn modes_and_owners(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    let modes = [0, 0o400, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4755, 0o6711, 0o7777];
    let owners = [(0, 0), (1000, 1000), (65534, 12), (4_000_000_000, 3_000_000_000), (1, u32::MAX - 1)];
    for (number, mode) in (0..).zip(modes) {
        let (uid, gid) = owners[number as usize % owners.len()];
        let (file, inner) = (numbered(folder, "file-", number), numbered(folder, "directory-", number));
        writer.file(&file, number, Data::Text)?;
        writer.directory(&inner)?;
        for path in [file, inner] {
            // Set the owner first: a change of owner clears a file's set-id bits.
            lchown(&path, Some(uid), Some(gid))?;
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
        }
    }
    let link = folder.join("owned-symlink");
    symlink("file-0", &link)?;
    writer.count();
    Ok(lchown(&link, Some(1234), Some(4321))?)
}

fn set(path: &Path, name: impl AsRef<std::ffi::OsStr>, value: &[u8]) -> anyhow::Result<bool> {
    let name = name.as_ref();
    match xattr::set(path, name, value) {
        Ok(()) => Ok(true),
        // The name and the value must fit into one leaf together.
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("{} {name:?}", path.display())),
    }
}

fn xattrs(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    let some = folder.join("xattr-some");
    writer.file(&some, 10, Data::Text)?;
    for (name, value) in [
        ("user.empty", &b""[..]),
        ("user.text", b"value"),
        ("user.binary", b"\0\xff\n\0"),
        ("trusted.secret", b"only root sees it"),
        ("security.papilio", b"no module owns this"),
        // struct vfs_cap_data, revision 2: CAP_NET_RAW permitted and effective.
        ("security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
    ] {
        set(&some, name, value)?;
    }
    let many = folder.join("xattr-many");
    writer.directory(&many)?;
    for number in 0..200 {
        let length = number % 97;
        set(&many, format!("user.number-{number}"), "v".repeat(length).as_bytes())?;
    }
    let large = folder.join("xattr-large");
    writer.file(&large, 0, Data::Text)?;
    let mut random = writer.random(&large);
    for length in [1000, 3000, 3700, 8000, 15_000, 30_000, 60_000] {
        let mut value = vec![0; length];
        random.fill(&mut value);
        set(&large, format!("user.large-{length}"), &value)?;
    }
    set(&large, format!("user.{}", "n".repeat(250)), b"the longest name")?;
    let colliding = folder.join("xattr-colliding");
    writer.file(&colliding, 0, Data::Text)?;
    for name in names::colliding_names("user.hash-", 0x0bad_cafe, 12) {
        use std::os::unix::ffi::OsStrExt;
        set(&colliding, std::ffi::OsStr::from_bytes(&name), &name)?;
    }
    let link = folder.join("xattr-symlink");
    symlink("xattr-some", &link)?;
    writer.count();
    set(&link, "trusted.on-a-link", b"yes")?;
    Ok(())
}

/// One entry of an access control list: (tag, permissions, id).
type AclEntry = (u16, u16, u32);

/// Encodes a list in the format of `system.posix_acl_*` (`include/uapi/linux/posix_acl_xattr.h`).
fn acl(entries: &[AclEntry]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn access_control_lists(writer: &mut Writer, folder: &Path) -> anyhow::Result<()> {
    const NO_ID: u32 = u32::MAX;
    let (owner, user, group_owner, group, mask, other) = (1, 2, 4, 8, 16, 32);
    let access = acl(&[
        (owner, 7, NO_ID),
        (user, 5, 1000),
        (user, 6, 4_000_000_000),
        (group_owner, 5, NO_ID),
        (group, 4, 50),
        (mask, 7, NO_ID),
        (other, 1, NO_ID),
    ]);
    let file = folder.join("acl-file");
    writer.file(&file, 5, Data::Text)?;
    set(&file, "system.posix_acl_access", &access)?;
    let inner = folder.join("acl-directory");
    writer.directory(&inner)?;
    set(&inner, "system.posix_acl_access", &access)?;
    set(&inner, "system.posix_acl_default", &access)?;
    // These two inherit the default list.
    writer.file(&inner.join("inherits"), 5, Data::Text)?;
    writer.directory(&inner.join("inherits-too"))
}

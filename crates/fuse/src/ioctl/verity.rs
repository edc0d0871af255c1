//! Ioctls of fs-verity.
//!
//! The kernel passes a salt and a signature behind the argument since 6.10; before, they are read
//! in the caller's memory.
//!
//! Kernel counterparts: `fs/verity/enable.c`, `fs/verity/measure.c`, `fs/verity/read_metadata.c`;
//! `fuse_setup_enable_verity` (`fs/fuse/ioctl.c`).

use super::access::WRITE;
use super::call::{Changed, IoctlCall, IoctlReply, Result, done};
use super::caller;
use super::caller_memory::BlockedCaller;
use papilio::format::items::fsverity_descriptor::{FsverityAlgorithm, MAX_SALT, MAX_SIGNATURE};
use papilio::{FileKind, FsverityInfo, FsverityMetadata, FsverityOptions};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{VerityDigest, VerityEnable, VerityMetadata};

const INVALID: Errno = Errno(libc::EINVAL);
/// Most bytes of metadata that one call copies.
const MOST_BYTES: u64 = 1 << 20;

/// Answers `FS_IOC_ENABLE_VERITY`.
pub(super) fn enable(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let arguments = call.argument::<VerityEnable>()?;
    let reserved = arguments.more_reserved.iter().fold(u64::from(arguments.reserved), |all, one| all | one);
    if arguments.version != 1 || reserved != 0 || !arguments.block_size.is_power_of_two() {
        return Err(INVALID);
    }
    if arguments.salt_size as usize > MAX_SALT || u64::from(arguments.signature_size) > MAX_SIGNATURE {
        return Err(Errno(libc::EMSGSIZE));
    }
    call.must_have(call.inode, WRITE)?;
    match call.inode.file_type() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Errno(libc::EISDIR)),
        _ => return Err(INVALID),
    }
    let number = u8::try_from(arguments.hash_algorithm).unwrap_or(u8::MAX);
    let algorithm = FsverityAlgorithm::of_number(number).ok_or(Errno(libc::ENOPKG))?;
    let (salt, signature) = behind_arguments(call, &arguments)?;
    let options = FsverityOptions::new()
        .algorithm(algorithm)
        .block_size(arguments.block_size)
        .salt(salt)
        .signature(signature);
    let goes_on = |_| !caller::has_signal(&call.caller);
    let enabled = call.inode.open()?.enable_verity(&options, goes_on);
    if enabled.is_err() && caller::has_signal(&call.caller) {
        return Err(Errno(libc::EINTR));
    }
    enabled?;
    done(vec![Changed::Inode(call.inode.tree(), call.inode.number())])
}

/// Returns the salt and the signature.
fn behind_arguments(call: &IoctlCall<'_>, arguments: &VerityEnable) -> Result<(Vec<u8>, Vec<u8>)> {
    let sizes = [arguments.salt_size as usize, arguments.signature_size as usize];
    let behind = &call.input[size_of::<VerityEnable>()..];
    if sizes == [0, 0] {
        return Ok(Default::default());
    }
    if behind.len() >= sizes[0] + sizes[1] {
        let (salt, rest) = behind.split_at(sizes[0]);
        return Ok((salt.to_vec(), rest[..sizes[1]].to_vec()));
    }
    let caller = BlockedCaller::of(call)?;
    let memory = caller.memory()?;
    let (mut salt, mut signature) = (vec![0; sizes[0]], vec![0; sizes[1]]);
    memory.read(arguments.salt, &mut salt)?;
    memory.read(arguments.signature, &mut signature)?;
    Ok((salt, signature))
}

fn info(call: &IoctlCall<'_>) -> Result<FsverityInfo> {
    if call.inode.file_type() != FileKind::Regular {
        return Err(Errno(libc::ENODATA));
    }
    call.inode.open()?.verity()?.ok_or(Errno(libc::ENODATA))
}

/// Answers `FS_IOC_MEASURE_VERITY`.
pub(super) fn measure(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let info = info(call)?;
    let room = call.input.get(2..4).ok_or(INVALID)?;
    if usize::from(u16::from_le_bytes([room[0], room[1]])) < info.digest.len() {
        return Err(Errno(libc::EOVERFLOW));
    }
    let mut reply = VerityDigest {
        hash_algorithm: info.algorithm.number().into(),
        size: info.digest.len() as u16,
        digest: [0; 64],
    };
    reply.digest[..info.digest.len()].copy_from_slice(&info.digest);
    let bytes = zerocopy::IntoBytes::as_bytes(&reply)[..4 + info.digest.len()].to_vec();
    if bytes.len() <= call.output_size {
        return Ok(IoctlReply { output: bytes, ..IoctlReply::default() });
    }
    // A kernel that knows only the size in the command's number.
    BlockedCaller::of(call)?.memory()?.write(call.address, &bytes)?;
    done(Vec::new())
}

/// Answers `FS_IOC_READ_VERITY_METADATA`.
pub(super) fn read_metadata(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let arguments = call.argument::<VerityMetadata>()?;
    if arguments.reserved != 0 || arguments.offset.checked_add(arguments.length).is_none() {
        return Err(INVALID);
    }
    let kind = match arguments.kind {
        1 => FsverityMetadata::MerkleTree,
        2 => FsverityMetadata::Descriptor,
        3 => FsverityMetadata::Signature,
        _ => return Err(INVALID),
    };
    info(call)?;
    let mut bytes = vec![0; arguments.length.min(MOST_BYTES) as usize];
    let read = call.inode.open()?.read_verity(kind, arguments.offset, &mut bytes)?;
    let read = read.ok_or(Errno(libc::ENODATA))?;
    BlockedCaller::of(call)?.memory()?.write(arguments.buffer, &bytes[..read])?;
    Ok(IoctlReply { result: read as i32, ..IoctlReply::default() })
}

//! Fuzzes receiving: a stream of any commands is applied to a file system in memory. Lengths and
//! checksums are repaired, so that every input reaches the interpreter. Afterwards the file system
//! must be consistent, and a subvolume must be complete only after its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio::device::{Device, MemoryDevice};
use papilio::{
    CheckOptions, Error, FileSystem, MkfsOptions, OpenOptions, Receive, ReceiveObserver, SendCommand,
    SendProtocol, Uuid,
};
use papilio_format::send_stream::{Command, CommandHeader, CommandKind};
use std::sync::Arc;

struct Quiet;

impl ReceiveObserver for Quiet {
    fn begins(&mut self, _: &[u8], _: bool) {}
    fn progress(&mut self, _: u64) {}
    fn failed(&mut self, _: &Error) {}
}

/// Names that commands share, so that they meet.
fn shortened(path: &mut Vec<u8>) {
    path.truncate(3);
    for byte in path.iter_mut() {
        *byte = match *byte % 6 {
            0 => b'/',
            1 => b'.',
            other => b'a' + other,
        };
    }
}

fn paths(command: &mut SendCommand) {
    use SendCommand as C;
    match command {
        C::Mkfile { path, .. }
        | C::Mkdir { path, .. }
        | C::Mknod { path, .. }
        | C::Mkfifo { path, .. }
        | C::Mksock { path, .. }
        | C::Symlink { path, .. }
        | C::Unlink { path }
        | C::Rmdir { path }
        | C::SetXattr { path, .. }
        | C::RemoveXattr { path, .. }
        | C::Write { path, .. }
        | C::Truncate { path, .. }
        | C::Chmod { path, .. }
        | C::Chown { path, .. }
        | C::Utimes { path, .. }
        | C::Fallocate { path, .. } => shortened(path),
        C::Rename { from, to } => {
            shortened(from);
            shortened(to);
        }
        C::Link { path, existing } => {
            shortened(path);
            shortened(existing);
        }
        C::Clone { path, clone_path, clone_uuid, .. } => {
            shortened(path);
            shortened(clone_path);
            *clone_uuid = Uuid::from_u128(1);
        }
        C::EncodedWrite(write) => shortened(&mut write.path),
        _ => {}
    }
}

fuzz_target!(|input: (bool, Vec<(u8, Vec<u8>)>)| {
    let (second, commands) = input;
    let protocol = if second { SendProtocol::V2 } else { SendProtocol::V1 };
    let mut stream = protocol.header().to_vec();
    let first = Command::Subvol { path: b"s".to_vec(), uuid: Uuid::from_u128(1), ctransid: 1 };
    first.append_to(protocol, &mut stream).expect("a valid command");
    let mut ends = 0;
    for (raw, attributes) in commands.iter().take(64) {
        let Some(kind) = CommandKind::from_raw(u16::from(raw % 26), protocol) else { continue };
        let mut header = CommandHeader { length: attributes.len(), kind, crc: 0 };
        header.crc = header.checksum(attributes);
        let Ok(mut command) = Command::parse(protocol, &header, attributes, 0) else { continue };
        paths(&mut command);
        ends += u64::from(command == Command::End);
        drop(command.append_to(protocol, &mut stream));
    }
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
    papilio::mkfs_device(&device, &MkfsOptions::new()).expect("an empty device");
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options).expect("a new file system");
    let mut received = Vec::new();
    let receive = Receive::new().max_errors(0);
    drop(receive.receive(&fs, "/", &mut &stream[..], &mut received, &mut Quiet));
    assert!(received.iter().filter(|subvolume| subvolume.complete).count() as u64 <= ends);
    fs.close().expect("a device in memory");
    let checked = papilio::check_devices(vec![device], &OpenOptions::new(), &CheckOptions::new());
    assert!(checked.expect("the check runs").findings.is_empty());
});

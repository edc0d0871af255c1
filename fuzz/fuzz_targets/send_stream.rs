//! Fuzzes the commands of send streams. The checksum is repaired, so that every input reaches the
//! parser of its attributes. A command that parses must be written to bytes that parse to it again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_format::send_stream::{COMMAND_HEADER_SIZE, Command, CommandHeader, CommandKind, Protocol};

fuzz_target!(|input: (bool, u16, &[u8])| {
    let (second, raw, attributes) = input;
    let protocol = if second { Protocol::V2 } else { Protocol::V1 };
    let Some(kind) = CommandKind::from_raw(raw % 32, protocol) else { return };
    let mut header = CommandHeader { length: attributes.len(), kind, crc: 0 };
    header.crc = header.checksum(attributes);
    let Ok(command) = Command::parse(protocol, &header, attributes, 0) else { return };
    let mut bytes = Vec::new();
    if command.append_to(protocol, &mut bytes).is_err() {
        return;
    }
    let head = bytes.first_chunk::<COMMAND_HEADER_SIZE>().expect("a command has a header");
    let header = CommandHeader::parse(head, protocol, 0).expect("our header");
    let again = Command::parse(protocol, &header, &bytes[COMMAND_HEADER_SIZE..], 0).expect("our command");
    assert_eq!(again, command);
});

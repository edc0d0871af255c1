//! Pieces of requests in flight, addresses of elements, and discards: each covers exactly its
//! range, in every profile.

use super::super::pieces::Pieces;
use super::super::testing::{TestVolume, content};
use super::reading::LAYOUTS;
use crate::errors::Error;
use papilio_device::{Access, Device, MemoryDevice};
use papilio_format::items::chunk::{RaidProfile, STRIPE_LENGTH};
use papilio_format::{LogicalAddress, PhysicalAddress};
use std::io;
use std::sync::Arc;

/// Bytes of the buffer before the part that a request fills.
const BEFORE: usize = 5000;

#[test]
fn pieces_read_the_range() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::new(profile, stripes);
        let volume = test.open(0, false).unwrap();
        // From inside an element, over several, and into the second chunk.
        let (start, length) = (test.range().0, test.range().1 / 2);
        for (from, bytes) in [(4096, 4096), (61_440, 12_288), (8192, 200_000), (length - 9000, 80_000)] {
            let at = LogicalAddress(start.0 + from as u64);
            let mut pieces = Pieces::new();
            assert!(volume.read_pieces(at, bytes, BEFORE, &mut pieces));
            let mut buffer = vec![0; BEFORE + bytes];
            let mut next = BEFORE;
            for piece in &pieces {
                assert_eq!(piece.range.start, next, "{profile} on {stripes}");
                next = piece.range.end;
                piece.device.read_at(&mut buffer[piece.range.clone()], piece.offset).unwrap();
            }
            assert_eq!(next, BEFORE + bytes);
            assert!(buffer[BEFORE..] == content(at, bytes), "{profile} on {stripes}: {from}");
        }
    }
}

#[test]
fn pieces_write_every_copy_of_the_range() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::blank(profile, stripes);
        let volume = test.open(0, false).unwrap();
        let (start, length) = test.range();
        let (at, bytes) = (LogicalAddress(start.0 + 8192), 200_000.min(length - 8192));
        let mut pieces = Pieces::new();
        let written = volume.write_pieces(at, bytes, BEFORE, &mut pieces);
        assert_eq!(written, profile.parity() == 0, "{profile}");
        if !written {
            continue;
        }
        let buffer = [vec![0; BEFORE], content(at, bytes)].concat();
        for piece in &pieces {
            piece.device.write_at(&buffer[piece.range.clone()], piece.offset).unwrap();
        }
        let mut read = vec![0; length];
        for copy in 0..volume.copies(start).unwrap() {
            volume.read_copy(start, &mut read, copy).unwrap();
            assert!(read[8192..][..bytes] == buffer[BEFORE..], "{profile} on {stripes}, copy {copy}");
            assert!(read[..8192].iter().chain(&read[8192 + bytes..]).all(|byte| *byte == 0));
        }
    }
}

#[test]
fn elements_have_their_addresses() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::blank(profile, stripes);
        let volume = test.open(0, false).unwrap();
        let chunks = volume.chunk_map();
        for chunk in chunks.iter() {
            let mut at = LogicalAddress(chunk.start().0 + 8192);
            for element in chunk.elements(at, (chunk.length() - 8192) as usize) {
                assert_eq!(chunk.address_of(&element), at, "{profile} on {stripes}");
                at.0 += element.length as u64;
            }
            assert_eq!(at, chunk.end());
        }
    }
}

#[test]
fn discards_zero_the_range_except_in_chunks_with_parity() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::new(profile, stripes);
        let volume = test.open(0, false).unwrap();
        let (start, length) = test.range();
        // The end of the first chunk and the start of the second.
        let (from, bytes) = (length / 2 - STRIPE_LENGTH as usize, 2 * STRIPE_LENGTH as usize);
        volume.discard(LogicalAddress(start.0 + from as u64), bytes as u64).unwrap();
        let mut expected = content(start, length);
        if profile.parity() == 0 {
            expected[from..from + bytes].fill(0);
        }
        let mut read = vec![0; length];
        for copy in 0..volume.copies(start).unwrap() {
            volume.read_copy(start, &mut read, copy).unwrap();
            assert!(read == expected, "{profile} on {stripes}, copy {copy}");
        }
    }
}

#[test]
fn a_failing_discard_is_an_error() {
    let (profile, stripes) = LAYOUTS[0];
    let test = TestVolume::new(profile, stripes);
    let volume = test.open(0, false).unwrap();
    // The stripes lie behind its end now.
    test.devices[0].resize(128 << 10);
    let error = volume.discard(test.range().0, STRIPE_LENGTH).unwrap_err();
    assert!(matches!(error, Error::Device { operation: "discard", .. }), "{error}");
}

/// A device that knows no discards.
#[derive(Debug)]
struct NoDiscard(Arc<MemoryDevice>);

impl Device for NoDiscard {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn access(&self) -> Access {
        self.0.access()
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.0.write_at(buffer, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, _offset: PhysicalAddress, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[test]
fn a_device_need_not_know_discards() {
    let test = TestVolume::new(RaidProfile::Raid1, 2);
    let devices = test.devices.iter().map(|device| Arc::new(NoDiscard(device.clone())) as Arc<dyn Device>);
    let volume = test.open_on(devices, 0, false).unwrap();
    let start = test.range().0;
    volume.discard(start, STRIPE_LENGTH).unwrap();
    let mut read = vec![0; STRIPE_LENGTH as usize];
    volume.read(start, &mut read).unwrap();
    assert!(read == content(start, read.len()));
}

#[test]
fn bad_copies_are_taken_once() {
    let (profile, stripes) = LAYOUTS[5];
    let volume = TestVolume::blank(profile, stripes).open(0, false).unwrap();
    volume.note_bad_copy(LogicalAddress(77));
    assert_eq!(volume.take_bad_copies().into_iter().collect::<Vec<_>>(), [LogicalAddress(77)]);
    assert!(volume.take_bad_copies().is_empty());
}

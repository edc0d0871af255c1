//! Fuzzes the decoder of FUSE messages. Each input is a sequence of messages. Those that the kernel
//! could have sent must decode; all others must be refused or decode.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use papilio_fuse::fuzzing::{Decoded, decode};
use papilio_fuzz::fuse::Message;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of messages of an input.
const MESSAGES: usize = 16;
/// Number of messages so far, printed each time that it has grown by a hundred million.
static DECODED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static MESSAGE: RefCell<Message> = const { RefCell::new(Message::new()) };
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    MESSAGE.with_borrow_mut(|message| {
        for count in 0..MESSAGES {
            if input.is_empty() || message.generate(&mut input, &[1, 256, 257], &[0, 1]).is_err() {
                note(count as u64);
                return;
            }
            let decoded = decode(&message.bytes);
            assert!(!(message.valid && decoded == Decoded::Malformed), "{:?}", message.bytes);
        }
        note(MESSAGES as u64);
    });
});

fn note(count: u64) {
    const STEP: u64 = 10_000_000;
    let before = DECODED.fetch_add(count, Ordering::Relaxed);
    if before / STEP != (before + count) / STEP {
        eprintln!("fuse_message: {} messages", before + count);
    }
}

//! Fuzzes the records of clients of `papilio serve --nfs`, on a file system in memory. Words `@H@`
//! with a number become handles, so that calls reach files. No reply has what lies outside of the
//! export.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_nfs::fuzzing::Records;
use std::cell::RefCell;

thread_local! {
    static RECORDS: RefCell<Records> = RefCell::new(Records::new());
}

fuzz_target!(|data: &[u8]| RECORDS.with_borrow_mut(|records| records.answer(data)));

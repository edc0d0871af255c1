//! Fuzzes the requests of clients of `papilio serve --http`: request lines, headers, targets,
//! ranges, conditions and forms. No decoded path leads upwards, and no name breaks a header.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| papilio_web::fuzzing::request(data));

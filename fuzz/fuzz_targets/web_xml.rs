//! Fuzzes the XML of WebDAV: bodies of PROPFIND and PROPPATCH. A property that is stored and sent
//! again means the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| papilio_web::fuzzing::dav_xml(data));

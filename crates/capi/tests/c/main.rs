//! C programs with the library: the examples and the programs in `programs/`, with the shared
//! library and the archive, under Valgrind and AddressSanitizer. The kernel judges what they wrote.

mod examples;
mod header;
mod programs;
mod speed;
mod support;

//! Conversions of ext file systems that the kernel filled, judged by the kernel, `btrfs check` and
//! `e2fsck`.

mod back;
mod bad_input;
mod cuts;
mod damage;
mod fill;
mod shapes;
mod world;

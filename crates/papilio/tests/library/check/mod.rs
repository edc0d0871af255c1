//! The check of whole file systems: no findings for file systems of the kernel, and every planted
//! fault is found.

mod bad_repairs;
mod beside_stock;
mod changes;
mod chunk_trees;
mod clean;
mod compressed_paths;
mod corrupt_data;
mod image;
mod logged;
mod new_chunk;
mod planted;
mod planted_fields;
mod planted_verdicts;
mod rebuilt;
mod refused;
mod repair_crashes;
mod repaired;
mod superblocks;
mod undecodable;
mod unread;
mod verdicts;
mod whole_table;

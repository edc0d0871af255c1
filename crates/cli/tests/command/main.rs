//! Tests of the `papilio` command on images: the command shows and copies the same as a kernel
//! mount, and a failure is one line and an exit code.

mod archives;
mod backup;
mod bad_input;
mod balance;
mod change;
mod check_extents;
#[path = "../common/churn.rs"]
mod churn;
#[path = "../common/mod.rs"]
mod common;
mod convert;
mod copy;
mod damaged_past;
mod dedupe;
mod dedupe_by_checksums;
mod devices_over_devices;
mod devices_refused;
mod diff;
mod doctor;
mod drop_in;
mod find_new;
mod fixture;
mod handbook;
mod history;
mod image;
mod images;
mod inspect;
mod kernel_devices;
mod layers;
mod messages;
mod mkfs;
mod mkfs_content;
mod mkfs_features;
mod mkfs_update;
mod mounted_by_kernel;
#[path = "../common/pairs.rs"]
mod pairs;
mod property;
mod quotas;
mod repair;
mod replace;
mod rescue_full;
mod rootdir;
mod sandbox;
mod scripts;
mod scrub;
mod send_flags;
mod send_pairs;
mod send_receive;
mod serve;
mod shell;
mod show;
mod signatures;
mod space_of_images;
mod streams;
mod structures;
mod subvolume_cost;
mod treemap;
mod tune;
mod undecodable;
mod usage;
mod usage_tree;
mod verity;
mod versions;

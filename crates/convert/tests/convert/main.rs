//! Conversions of ext and XFS that the kernel filled, judged by the kernel, `btrfs check`, `e2fsck`
//! and `xfs_repair`.

mod back;
mod bad_input;
mod cuts;
mod damage;
mod fill;
mod hostile;
mod journal;
mod many;
mod shapes;
mod torn;
mod world;
mod xfs_fill;
mod xfs_shapes;

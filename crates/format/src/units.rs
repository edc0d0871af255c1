//! Units: every number that has a meaning has a type.
//!
//! Owns the newtypes for addresses, offsets, generations and identifiers. They exist so that a
//! logical address is never handed to a device, nor a file offset to the chunk map.

use crate::disk::OnDisk;
use zerocopy::little_endian::U64;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The bare number.
            #[inline]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl From<u64> for $name {
            fn from(value: u64) -> Self {
                Self(value)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl OnDisk for $name {
            type Disk = U64;
            #[inline]
            fn from_disk(disk: &U64) -> Self {
                Self(disk.get())
            }
            #[inline]
            fn to_disk(&self) -> U64 {
                U64::new(self.0)
            }
        }
    };
}

macro_rules! address_arithmetic {
    ($($name:ident),*) => { $(
        impl $name {
            /// The address `bytes` further on, or `None` past the end of the 64-bit space.
            #[inline]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }

            /// Bytes from `earlier` to `self`, or `None` where `earlier` lies behind `self`.
            #[inline]
            pub const fn checked_since(self, earlier: Self) -> Option<u64> {
                self.0.checked_sub(earlier.0)
            }

            /// Whether the address is a multiple of `alignment` bytes (which must not be 0).
            #[inline]
            pub const fn is_aligned(self, alignment: u64) -> bool {
                self.0.is_multiple_of(alignment)
            }
        }
    )* };
}

unit! {
    /// A byte address in the file system's own address space, which the chunk map translates to
    /// places on devices. All pointers in trees are logical.
    LogicalAddress
}
unit! {
    /// A byte offset from the start of one device.
    PhysicalAddress
}
unit! {
    /// A byte offset in a file.
    FileOffset
}
unit! {
    /// The number of the transaction that wrote something; larger is later.
    Generation
}
unit! {
    /// The object id of a tree: one of [`crate::objectid`]'s or a subvolume's (256 and up).
    TreeId
}
unit! {
    /// The object id of an inode in one subvolume.
    InodeNumber
}
unit! {
    /// The number by which chunks name a device.
    DeviceId
}

address_arithmetic!(LogicalAddress, PhysicalAddress, FileOffset);

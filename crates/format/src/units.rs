//! Units: a newtype for every number with a meaning.
//!
//! Owns the newtypes for addresses, offsets, generations and identifiers. They keep a logical
//! address from reaching a device, and a file offset from reaching the chunk map.

use crate::disk::OnDisk;
use zerocopy::little_endian::U64;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Returns the bare number.
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
            /// Returns the address `bytes` further on, or `None` past the end of the 64-bit space.
            #[inline]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(value) => Some(Self(value)),
                    None => None,
                }
            }

            /// Returns the bytes from `earlier` to `self`, or `None` if `earlier` is greater.
            #[inline]
            pub const fn checked_since(self, earlier: Self) -> Option<u64> {
                self.0.checked_sub(earlier.0)
            }

            /// Returns whether the address is a multiple of `alignment` bytes (which must not be
            /// 0).
            #[inline]
            pub const fn is_aligned(self, alignment: u64) -> bool {
                self.0.is_multiple_of(alignment)
            }
        }
    )* };
}

unit! {
    /// A byte address in the file system's own address space. The chunk map translates it to device
    /// offsets. All pointers in trees are logical.
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
    /// The number of the transaction that wrote a structure; larger is later.
    Generation
}
unit! {
    /// The object id of a tree: a constant in [`crate::objectid`], or a subvolume's (256 and up).
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

//! The pairing of a memory type with its bytes on disk.
//!
//! Owns [`OnDisk`], which pairs a memory type with its little-endian, unaligned bytes, and
//! `disk_layout!`, which generates both structures, the conversions and a compile-time size check.
//! [`crate::parse`] adds checked parsing.
//!
//! **Invariant:** conversion is lossless both ways: decoding any bytes and encoding the result
//! gives the same bytes. Validators decide whether the values make sense.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A memory type with a fixed-size form on disk.
pub trait OnDisk: Sized {
    /// The on-disk bytes: little-endian, without alignment or padding.
    type Disk: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + 'static;

    /// Decodes; never fails, because every bit pattern is valid at this level.
    fn from_disk(disk: &Self::Disk) -> Self;

    /// Encodes; the exact inverse of [`OnDisk::from_disk`].
    fn to_disk(&self) -> Self::Disk;
}

macro_rules! integer {
    ($($memory:ty => $disk:ty),*) => { $(
        impl OnDisk for $memory {
            type Disk = $disk;
            #[inline]
            fn from_disk(disk: &$disk) -> Self {
                disk.get()
            }
            #[inline]
            fn to_disk(&self) -> $disk {
                <$disk>::new(*self)
            }
        }
    )* };
}
integer!(u16 => U16, u32 => U32, u64 => U64, i64 => I64);

impl OnDisk for u8 {
    type Disk = u8;
    #[inline]
    fn from_disk(disk: &u8) -> Self {
        *disk
    }
    #[inline]
    fn to_disk(&self) -> u8 {
        *self
    }
}

impl OnDisk for uuid::Uuid {
    type Disk = [u8; 16];
    fn from_disk(disk: &[u8; 16]) -> Self {
        uuid::Uuid::from_bytes(*disk)
    }
    fn to_disk(&self) -> [u8; 16] {
        *self.as_bytes()
    }
}

impl<T: OnDisk, const N: usize> OnDisk for [T; N] {
    type Disk = [T::Disk; N];
    fn from_disk(disk: &Self::Disk) -> Self {
        std::array::from_fn(|i| T::from_disk(&disk[i]))
    }
    fn to_disk(&self) -> Self::Disk {
        std::array::from_fn(|i| self[i].to_disk())
    }
}

/// Declares a memory structure, its on-disk twin and the conversions, and asserts the twin's size.
///
/// `disk_struct!` in [`crate::parse`] shows the syntax.
macro_rules! disk_layout {
    (
        $(#[$doc:meta])*
        pub struct $name:ident as $disk:ident = $size:literal {
            $( $(#[$field_doc:meta])* pub $field:ident : $type:ty ),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_doc])* pub $field: $type, )+
        }

        #[doc = concat!("The bytes of [`", stringify!($name), "`] on disk.")]
        #[derive(
            Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $disk {
            $(
                #[doc = concat!("See [`", stringify!($name), "::", stringify!($field), "`].")]
                pub $field: <$type as $crate::disk::OnDisk>::Disk,
            )+
        }
        const _: () = assert!(size_of::<$disk>() == $size);

        impl $crate::disk::OnDisk for $name {
            type Disk = $disk;
            #[inline]
            fn from_disk(disk: &$disk) -> Self {
                Self { $( $field: <$type as $crate::disk::OnDisk>::from_disk(&disk.$field), )+ }
            }
            fn to_disk(&self) -> $disk {
                $disk { $( $field: $crate::disk::OnDisk::to_disk(&self.$field), )+ }
            }
        }

        impl $name {
            /// Size on disk, in bytes.
            pub const SIZE: usize = $size;

            /// Encodes the structure.
            pub fn to_bytes(&self) -> [u8; $size] {
                zerocopy::transmute!($crate::disk::OnDisk::to_disk(self))
            }
        }
    };
}
pub(crate) use disk_layout;

//! The macro behind every fixed-size on-disk structure.
//!
//! Owns [`OnDisk`], which pairs a memory type with its little-endian, unaligned bytes, and
//! `disk_struct!`, which generates both structures, the conversions and a compile-time size check.
//!
//! **Invariant:** conversion is lossless both ways. Parsing any bytes and serialising the result
//! gives the same bytes. Validators, not parsers, decide whether the values make sense.

use crate::error::Corrupt;
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

/// Decodes the structure at the start of `bytes` and returns what follows it.
pub(crate) fn parse_prefix<'a, T: OnDisk>(
    what: &'static str,
    bytes: &'a [u8],
) -> Result<(T, &'a [u8]), Corrupt> {
    match T::Disk::ref_from_prefix(bytes) {
        Ok((disk, rest)) => Ok((T::from_disk(disk), rest)),
        Err(_) => Err(Corrupt::TooShort { what, need: size_of::<T::Disk>(), have: bytes.len() }),
    }
}

/// Declares a memory structure, its on-disk twin and the conversions, and asserts the twin's size.
///
/// ```text
/// disk_struct! {
///     /// Struct docs.
///     pub struct Timespec as TimespecDisk = 12 {
///         /// Field docs.
///         pub seconds: u64,
///         pub nanoseconds: u32,
///     }
/// }
/// ```
macro_rules! disk_struct {
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

            /// Decodes the structure at the start of `bytes` and returns what follows it.
            ///
            /// # Errors
            /// [`Corrupt::TooShort`](crate::Corrupt::TooShort) with fewer than `Self::SIZE` bytes.
            pub fn parse_prefix(bytes: &[u8]) -> Result<(Self, &[u8]), $crate::Corrupt> {
                $crate::disk::parse_prefix(stringify!($name), bytes)
            }

            /// Decodes `bytes`, which must be exactly this structure.
            ///
            /// # Errors
            /// [`Corrupt::WrongSize`](crate::Corrupt::WrongSize) unless there are `Self::SIZE`
            /// bytes.
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::Corrupt> {
                if bytes.len() != Self::SIZE {
                    return Err($crate::Corrupt::WrongSize {
                        what: stringify!($name),
                        expected: Self::SIZE,
                        found: bytes.len(),
                    });
                }
                Ok(Self::parse_prefix(bytes)?.0)
            }

            /// Encodes the structure.
            pub fn to_bytes(&self) -> [u8; $size] {
                zerocopy::transmute!($crate::disk::OnDisk::to_disk(self))
            }
        }

        #[cfg(test)]
        impl $crate::disk::RoundTrip for $name {
            const BYTES: usize = $size;
            fn round_trip(bytes: &[u8]) -> Vec<u8> {
                Self::parse(bytes).expect("the bytes have the structure's size").to_bytes().to_vec()
            }
        }
    };
}
pub(crate) use disk_struct;

/// The operations that round-trip property tests need.
#[cfg(test)]
pub(crate) trait RoundTrip {
    const BYTES: usize;
    fn round_trip(bytes: &[u8]) -> Vec<u8>;
}

/// Asserts, on random bytes, that serialising inverts parsing.
#[cfg(test)]
pub(crate) fn assert_round_trip<T: RoundTrip>() {
    use proptest::prelude::*;
    proptest!(ProptestConfig::with_cases(64), |(bytes in prop::collection::vec(any::<u8>(), T::BYTES))| {
        prop_assert_eq!(T::round_trip(&bytes), bytes);
    });
}

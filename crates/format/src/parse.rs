//! Checked parsing of the fixed-size on-disk structures.
//!
//! Owns `parse_prefix`, and `disk_struct!`, which adds parsing to `disk_layout!`'s structures.
//! [`Key`] is part of [`Corrupt`], so its parsing is implemented here and not in its own file.

use crate::disk::OnDisk;
use crate::error::Corrupt;
use crate::key::Key;
use zerocopy::FromBytes;

/// Decodes the structure at the start of `bytes` and returns it with the remaining bytes.
pub(crate) fn parse_prefix<'a, T: OnDisk>(
    what: &'static str,
    bytes: &'a [u8],
) -> Result<(T, &'a [u8]), Corrupt> {
    match T::Disk::ref_from_prefix(bytes) {
        Ok((disk, rest)) => Ok((T::from_disk(disk), rest)),
        Err(_) => Err(Corrupt::TooShort { what, need: size_of::<T::Disk>(), have: bytes.len() }),
    }
}

/// Implements parsing for a structure that `disk_layout!` declared.
macro_rules! parse_methods {
    ($name:ident) => {
        impl $name {
            /// Decodes the structure at the start of `bytes` and returns it with the remaining
            /// bytes.
            ///
            /// # Errors
            /// [`Corrupt::TooShort`](crate::Corrupt::TooShort) with fewer than `Self::SIZE` bytes.
            pub fn parse_prefix(bytes: &[u8]) -> Result<(Self, &[u8]), $crate::Corrupt> {
                $crate::parse::parse_prefix(stringify!($name), bytes)
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
        }

        #[cfg(test)]
        impl $crate::parse::RoundTrip for $name {
            const BYTES: usize = Self::SIZE;
            fn round_trip(bytes: &[u8]) -> Vec<u8> {
                Self::parse(bytes).expect("the bytes have the structure's size").to_bytes().to_vec()
            }
        }
    };
}
pub(crate) use parse_methods;

parse_methods!(Key);

/// Declares a memory structure, its on-disk twin, the conversions and the parsing, and asserts the
/// twin's size.
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
        pub struct $name:ident as $disk:ident = $size:literal { $($fields:tt)* }
    ) => {
        $crate::disk::disk_layout! {
            $(#[$doc])*
            pub struct $name as $disk = $size { $($fields)* }
        }
        $crate::parse::parse_methods!($name);
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
/// Returns the configuration of a property test with so many cases, or a few of them under Miri.
#[cfg(test)]
pub(crate) fn cases(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config::with_cases(if cfg!(miri) { 4 } else { cases })
}

#[cfg(test)]
pub(crate) fn assert_round_trip<T: RoundTrip>() {
    use proptest::prelude::*;
    proptest!(cases(64), |(bytes in prop::collection::vec(any::<u8>(), T::BYTES))| {
        prop_assert_eq!(T::round_trip(&bytes), bytes);
    });
}

//! fio's own table of options, read from the running program.
//!
//! Owns [`OptionRecords`], the measured shape of a record in that table, and [`OptionOffsets`], the
//! offsets of the options that the engine reads. A record of another build has another size and
//! other type numbers, so both are measured on options whose names and types are known.

use crate::memory;
use std::ffi::c_int;

/// The shape of fio's option records: their size and the numbers of their types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionRecords {
    /// Size of a record in bytes.
    pub size: usize,
    /// Type number of a string option.
    pub text: c_int,
    /// Type number of an integer option.
    pub int: c_int,
    /// Type number of a boolean option.
    pub bool: c_int,
}

/// Offset of `type` in a record.
pub const RECORD_TYPE: usize = 24;
/// Offset of `off1` in a record.
pub const RECORD_OFFSET: usize = 28;

macro_rules! option_offsets {
    ($($field:ident = $name:literal),* $(,)?) => {
        /// Offsets of fio's options in a job's options, in bytes.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)] // Named as fio names them.
        pub struct OptionOffsets {
            $(pub $field: usize,)*
        }

        impl OptionOffsets {
            /// Looks the options up in fio's table at `table`.
            ///
            /// # Errors
            /// Names the first option that the table lacks.
            pub fn find(records: OptionRecords, table: usize) -> Result<Self, String> {
                let records = records.all(table);
                Ok(Self {
                    $($field: records
                        .iter()
                        .find(|(name, _)| name == $name)
                        .map(|(_, offset)| *offset)
                        .ok_or_else(|| format!("its option table has no {}", $name))?,)*
                })
            }
        }
    };
}

option_offsets! {
    name = "name",
    thread = "thread",
    rw = "rw",
    iodepth = "iodepth",
    direct = "direct",
    fallocate = "fallocate",
    overwrite = "overwrite",
    file_append = "file_append",
    allow_file_create = "allow_file_create",
    create_on_open = "create_on_open",
    create_fsync = "create_fsync",
    fsync_on_close = "fsync_on_close",
    invalidate = "invalidate",
    pre_read = "pre_read",
    verify_state_save = "verify_state_save",
}

impl OptionRecords {
    /// Measures the table at `table`: the size by its first two names, the type numbers by options
    /// of known types. Returns `None` for a table that looks otherwise.
    pub fn find(table: usize) -> Option<Self> {
        let name_at = |address| memory::word(address).and_then(memory::text);
        if name_at(table)? != "description" {
            return None;
        }
        let size = (256..4096).step_by(8).find(|size| name_at(table + size).as_deref() == Some("name"))?;
        let mut records = Self { size, text: 0, int: 0, bool: 0 };
        let kind_of = |wanted: &str| {
            records
                .addresses(table)
                .find(|(name, _)| name == wanted)
                .and_then(|(_, at)| memory::int(at + RECORD_TYPE))
        };
        let (text, int, bool) = (kind_of("name")?, kind_of("iodepth")?, kind_of("direct")?);
        (records.text, records.int, records.bool) = (text, int, bool);
        Some(records)
    }

    /// Iterates over the names and addresses of the records at `table`.
    fn addresses(self, table: usize) -> impl Iterator<Item = (String, usize)> {
        (0..2000).map_while(move |index| {
            let at = table + index * self.size;
            Some((memory::word(at).and_then(memory::text)?, at))
        })
    }

    /// Returns the names and offsets of all options. A name may occur twice: its first record
    /// counts.
    fn all(self, table: usize) -> Vec<(String, usize)> {
        let offset = |at: usize| Some(memory::int(at + RECORD_OFFSET)? as usize);
        self.addresses(table).filter_map(|(name, at)| Some((name, offset(at)?))).collect()
    }
}

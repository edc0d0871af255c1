//! `Accounts`: how many blocks of each segment are in use.
//!
//! It owns the values of the `s` keys, all of which a writer has in memory: 24 bytes,
//! little-endian. They are the origin, the blocks, the blocks in use, two bytes of zeros, the
//! manifest of birth, and that of death.
//!
//! **Invariants**
//! - An account and the windows that it counts change in one batch.
//! - The manifest of birth is older than any that names the segment. That of death, if it is not 0,
//!   and all later ones do not name it.
//!
//! **Locks**: `table`, held for changes in memory only.

use super::layout::{SEGMENTS, segment_in, segment_key};
use super::segment::SegmentRef;
use super::source::Source;
use papilio_locks::Mutex;
use slatedb::WriteBatch;
use std::collections::BTreeMap;
use std::io;
use tokio::sync::OnceCell;
use ulid::Ulid;

const ACCOUNT: usize = 24;

/// The account of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) origin: u16,
    pub(super) blocks: u16,
    /// Blocks that the map names.
    pub(super) live: u16,
    /// A manifest from before its birth.
    pub(super) born: u64,
    /// A manifest without it; 0 if none is known.
    pub(super) died: u64,
}

impl Account {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ACCOUNT);
        for short in [self.origin, self.blocks, self.live, 0] {
            bytes.extend_from_slice(&short.to_le_bytes());
        }
        bytes.extend_from_slice(&self.born.to_le_bytes());
        bytes.extend_from_slice(&self.died.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ACCOUNT] = bytes.try_into().ok()?;
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let account =
            Self { origin: short(0), blocks: short(2), live: short(4), born: long(8)?, died: long(16)? };
        (account.live <= account.blocks && short(6) == 0).then_some(account)
    }

    /// Returns the segment, as the map names it.
    pub(super) fn segment(&self, id: Ulid) -> SegmentRef {
        SegmentRef { id, origin: self.origin, blocks: self.blocks }
    }
}

type Table = BTreeMap<Ulid, Account>;

/// The accounts of all segments of a device.
#[derive(Default)]
pub(super) struct Accounts {
    table: OnceCell<Mutex<Table>>,
}

impl Accounts {
    /// Reads all accounts from the database.
    pub(super) async fn read(source: &Source) -> io::Result<Table> {
        let mut end = SEGMENTS.to_vec();
        end[0] += 1;
        let mut scan = source.scan(SEGMENTS.to_vec()..end).await?;
        let mut table = Table::new();
        while let Some((key, value)) = scan.next().await? {
            let found = segment_in(&key).map(Ulid).zip(Account::parse(&value));
            let (id, account) = found.ok_or_else(|| {
                let reason = format!("{}: the account of a segment is not valid", source.name());
                io::Error::new(io::ErrorKind::InvalidData, reason)
            })?;
            table.insert(id, account);
        }
        Ok(table)
    }

    async fn table(&self, source: &Source) -> io::Result<&Mutex<Table>> {
        self.table.get_or_try_init(async || Ok(Mutex::new(Self::read(source).await?))).await
    }

    /// Returns all accounts.
    pub(super) async fn all(&self, source: &Source) -> io::Result<Table> {
        Ok(self.table(source).await?.lock().clone())
    }

    /// Changes accounts, and adds the new values to a batch, which must be written next.
    pub(super) async fn change(
        &self,
        source: &Source,
        changes: &Changes,
        batch: &mut WriteBatch,
    ) -> io::Result<()> {
        let table = self.table(source).await?;
        let mut table = table.lock();
        for (id, account) in &changes.new {
            table.insert(*id, *account);
        }
        let killed = changes.killed.iter().map(|(id, count)| (*id, *count, 0));
        let revived = changes.moved_in.iter().map(|(id, count)| (*id, 0, *count));
        for (id, less, more) in killed.chain(revived) {
            let account = table.get_mut(&id).filter(|account| u32::from(account.live) + more >= less);
            let Some(account) = account else {
                let reason = format!(
                    "{}: the account of segment {id} is wrong; papilio store clean counts anew",
                    source.name()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            };
            account.live = (u32::from(account.live) + more - less) as u16;
        }
        let changed = changes.new.keys().chain(changes.killed.keys()).chain(changes.moved_in.keys());
        for id in changed {
            batch.put(segment_key(id.0), table[id].to_bytes());
        }
        Ok(())
    }

    /// Replaces accounts, or removes those without a new one, and adds that to a batch.
    pub(super) async fn replace(
        &self,
        source: &Source,
        replaced: &BTreeMap<Ulid, Option<Account>>,
        batch: &mut WriteBatch,
    ) -> io::Result<()> {
        let mut table = self.table(source).await?.lock();
        for (id, account) in replaced {
            match account {
                Some(account) => {
                    table.insert(*id, *account);
                    batch.put(segment_key(id.0), account.to_bytes());
                }
                None => {
                    table.remove(id);
                    batch.delete(segment_key(id.0));
                }
            }
        }
        Ok(())
    }
}

/// Changes of accounts by one batch.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Segments that were written.
    pub(super) new: BTreeMap<Ulid, Account>,
    /// Blocks that the map no longer names.
    pub(super) killed: BTreeMap<Ulid, u32>,
    /// Blocks that the map names in addition.
    pub(super) moved_in: BTreeMap<Ulid, u32>,
}

impl Changes {
    pub(super) fn kill(&mut self, id: Ulid, blocks: u32) {
        *self.killed.entry(id).or_default() += blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read_back() {
        let account = Account { origin: 2, blocks: 4096, live: 17, born: 9, died: 1 << 40 };
        assert_eq!(Account::parse(&account.to_bytes()), Some(account));
        assert_eq!(Account::parse(&Account { live: 4097, ..account }.to_bytes()), None);
        assert_eq!(Account::parse(&account.to_bytes()[1..]), None);
    }
}

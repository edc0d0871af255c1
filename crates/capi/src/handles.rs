//! Handles: the pointers that a program holds for objects of the library.
//!
//! Owns [`Handle`] and [`Table`], which finds the object of a handle.
//!
//! **Invariants**
//! - A handle is a number, not an address, and nothing dereferences it. So a wrong one is an error
//!   of the call and never undefined behaviour.
//! - No number is used twice, for objects of any kind. A handle that was closed stays closed.
//! - A call that runs keeps its object, also if another thread closes the handle meanwhile.
//!
//! **Locks:** a shard of a table, for a look-up or a change of the table; nothing is called or
//! dropped under it.

use crate::failure::{Failure, Result, used};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tables are divided so that threads with different handles do not share a lock.
const SHARDS: usize = 16;
/// Handles are multiples of this, as the addresses of structures would be.
const STEP: usize = 16;

/// An object that a program has handles of.
pub(crate) trait Handle: Send + Sync + Sized + 'static {
    /// The incomplete C type that the handle points to.
    type Opaque;
    /// The name of that type.
    const NAME: &'static str;
    /// The objects of this kind.
    fn table() -> &'static Table<Self>;
}

/// Ties the C type of a kind of handles to the objects. The type is declared outside, because
/// cbindgen does not look into macros.
macro_rules! handle {
    ($opaque:ident for $object:ty) => {
        impl $crate::handles::Handle for $object {
            type Opaque = $opaque;
            const NAME: &'static str = stringify!($opaque);
            fn table() -> &'static $crate::handles::Table<Self> {
                static TABLE: $crate::handles::Table<$object> = $crate::handles::Table::new();
                &TABLE
            }
        }
    };
}
pub(crate) use handle;

struct Counted<T> {
    object: Arc<T>,
    /// References that the program holds.
    references: usize,
}

/// The open handles of one kind.
pub(crate) struct Table<T> {
    shards: [RwLock<BTreeMap<usize, Counted<T>>>; SHARDS],
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { shards: [const { RwLock::new(BTreeMap::new()) }; SHARDS] }
    }
}

impl<T: Handle> Table<T> {
    fn shard(&self, handle: usize) -> &RwLock<BTreeMap<usize, Counted<T>>> {
        &self.shards[handle / STEP % SHARDS]
    }
}

/// Makes a handle of an object.
pub(crate) fn insert<T: Handle>(object: T) -> *mut T::Opaque {
    static NEXT: AtomicUsize = AtomicUsize::new(STEP);
    used();
    let handle = NEXT.fetch_add(STEP, Ordering::Relaxed);
    let counted = Counted { object: Arc::new(object), references: 1 };
    T::table().shard(handle).write().insert(handle, counted);
    std::ptr::without_provenance_mut(handle)
}

/// Returns the object of a handle.
///
/// # Errors
/// `EINVAL` for NULL; `EBADF` for a handle that is closed or of another kind.
pub(crate) fn get<T: Handle>(handle: *const T::Opaque) -> Result<Arc<T>> {
    let shard = T::table().shard(number::<T>(handle)?).read();
    shard.get(&handle.addr()).map(|counted| Arc::clone(&counted.object)).ok_or_else(not_open::<T>)
}

/// Adds a reference to a handle.
///
/// # Errors
/// As [`get`].
pub(crate) fn add_reference<T: Handle>(handle: *const T::Opaque) -> Result<()> {
    let mut shard = T::table().shard(number::<T>(handle)?).write();
    let counted = shard.get_mut(&handle.addr()).ok_or_else(not_open::<T>)?;
    counted.references += 1;
    Ok(())
}

/// Drops a reference. With the last one the handle is closed, and its object returned, if
/// `may_close` agrees.
///
/// # Errors
/// As [`get`], and that of `may_close`.
pub(crate) fn drop_reference<T: Handle>(
    handle: *const T::Opaque,
    may_close: impl FnOnce(&T) -> Result<()>,
) -> Result<Option<Arc<T>>> {
    let mut shard = T::table().shard(number::<T>(handle)?).write();
    let Entry::Occupied(mut found) = shard.entry(handle.addr()) else { return Err(not_open::<T>()) };
    if found.get().references > 1 {
        found.get_mut().references -= 1;
        return Ok(None);
    }
    may_close(&found.get().object)?;
    let counted = found.remove();
    // The object is dropped by the caller, when the shard is unlocked.
    Ok(Some(counted.object))
}

/// Closes a handle that has one reference only, and returns its object.
///
/// # Errors
/// As [`get`].
pub(crate) fn remove<T: Handle>(handle: *const T::Opaque) -> Result<Arc<T>> {
    drop_reference(handle, |_| Ok(()))?.ok_or_else(|| unreachable!("handles of this kind are not shared"))
}

fn number<T: Handle>(handle: *const T::Opaque) -> Result<usize> {
    if handle.is_null() {
        return Err(Failure::invalid(format!("the handle ({} *) is NULL", T::NAME)));
    }
    Ok(handle.addr())
}

fn not_open<T: Handle>() -> Failure {
    let message = format!("the handle is no open {}: it was closed, or is of another kind", T::NAME);
    Failure::new(libc::EBADF, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handle for this test.
    #[allow(non_camel_case_types)]
    pub struct test_handle {
        _incomplete: (),
    }

    handle!(test_handle for u32);
    /// A handle of another kind.
    #[allow(non_camel_case_types)]
    pub struct other_handle {
        _incomplete: (),
    }

    handle!(other_handle for u64);

    #[test]
    fn closed_wrong_and_null_handles_are_errors() {
        let handle = insert(5_u32);
        assert_eq!(*get::<u32>(handle).unwrap(), 5);
        assert_eq!(get::<u64>(handle.cast()).unwrap_err().code(), -libc::EBADF);
        assert_eq!(get::<u32>(std::ptr::null()).unwrap_err().code(), -libc::EINVAL);
        assert_eq!(get::<u32>(std::ptr::without_provenance(3)).unwrap_err().code(), -libc::EBADF);
        add_reference::<u32>(handle).unwrap();
        assert!(drop_reference::<u32>(handle, |_| Ok(())).unwrap().is_none());
        let refused = drop_reference::<u32>(handle, |_| Err(Failure::new(libc::EBUSY, "in use")));
        assert_eq!(refused.unwrap_err().code(), -libc::EBUSY);
        assert_eq!(*remove::<u32>(handle).unwrap(), 5);
        assert_eq!(get::<u32>(handle).unwrap_err().code(), -libc::EBADF);
        assert_eq!(remove::<u32>(handle).unwrap_err().code(), -libc::EBADF);
        assert_ne!(insert(5_u32), handle);
    }
}

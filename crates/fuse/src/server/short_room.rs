//! Looking at the room that is left, and telling the kernel that it is short.
//!
//! Owns the order of both:
//! 1. The thread that finds room short drops the kernel's attributes of all files that may be
//!    written, by itself. Other writes that have to look wait for that, and the kernel's limit for
//!    dirty data then holds up its callers. So no more data than the limit is in its cache when it
//!    first asks.
//! 2. The assistant has the kernel write this data back, before it answers the first question. Only
//!    then is space promised to other writes.
//!
//! Locks: `telling`, while a thread looks and tells. The table of nodes and the library's locks on
//! space are acquired below it.

use super::state::Server;

impl Server {
    /// Counts written bytes; returns whether room became short. The kernel was told so, and the
    /// data in its cache is to be written back.
    pub(super) fn room_shrank(&self, bytes: usize) -> bool {
        if !self.room.count(bytes as i64) {
            return false;
        }
        let _turn = self.room.telling.lock();
        // Another thread may have looked meanwhile.
        self.room.count(0) && self.look_and_tell(0)
    }

    /// Looks at the free space. Returns whether room has become short by something other than a
    /// write.
    pub(crate) fn lost_room(&self) -> bool {
        let _turn = self.room.telling.lock();
        self.look_and_tell(0)
    }

    /// Looks at the free space that `taken` bytes will leave, and returns as
    /// [`Server::room_shrank`].
    pub(super) fn make_room(&self, taken: u64) -> bool {
        let _turn = self.room.telling.lock();
        !self.room.is_short() && self.look_and_tell(taken)
    }

    fn look_and_tell(&self, taken: u64) -> bool {
        let became_short = self.room.look_without(&self.fs(), taken);
        if became_short && let Some(tell) = self.room.tell.get() {
            self.may_be_written().into_iter().for_each(tell);
        }
        became_short
    }
}

//! The priority of a thread's reads and writes, as `ionice` sets it.
//!
//! Owns [`IoPriority`]. Threads that a thread starts afterwards have its priority. Some I/O
//! schedulers ignore priorities.
//!
//! Kernel counterpart: `block/ioprio.c`, `include/uapi/linux/ioprio.h`.

use std::io;

/// Where the class begins (`IOPRIO_CLASS_SHIFT`).
const CLASS_SHIFT: u32 = 13;
/// `IOPRIO_WHO_PROCESS`, which means one thread.
#[cfg(target_os = "linux")]
const WHO_THREAD: libc::c_int = 1;
/// The largest level in a class.
const MAX_LEVEL: u8 = 7;
const REALTIME: u8 = 1;
const IDLE: u8 = 3;

/// A class and the level in it. The default is the idle class: I/O only if no other is waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoPriority {
    class: u8,
    level: u8,
}

impl Default for IoPriority {
    fn default() -> Self {
        Self { class: IDLE, level: 0 }
    }
}

impl IoPriority {
    /// Returns the priority with a class (1 for realtime, 2 for best effort, 3 for idle) and a
    /// level from 0, the highest, to 7; `None` for other numbers.
    pub fn new(class: u8, level: u8) -> Option<Self> {
        ((REALTIME..=IDLE).contains(&class) && level <= MAX_LEVEL).then_some(Self { class, level })
    }

    /// Returns the number that the kernel has for it, which is not 0.
    pub fn bits(self) -> u64 {
        u64::from(self.class) << CLASS_SHIFT | u64::from(self.level)
    }

    /// Returns the priority with a number of the kernel; `None` for 0 and numbers without meaning.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let (class, level) = (bits >> CLASS_SHIFT, bits & ((1 << CLASS_SHIFT) - 1));
        Self::new(class.try_into().ok()?, level.try_into().ok()?)
    }

    /// Gives the calling thread this priority.
    ///
    /// # Errors
    /// EPERM for the realtime class without `CAP_SYS_ADMIN` or `CAP_SYS_NICE`.
    #[cfg(target_os = "linux")]
    pub fn apply(self) -> io::Result<()> {
        let bits = self.bits() as libc::c_int;
        // SAFETY: `ioprio_set` takes three numbers and touches no memory of ours. 0 is this thread.
        let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, 0, bits) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the calling thread's priority; `None` if none was set.
    ///
    /// # Errors
    /// The kernel has no priorities.
    #[cfg(target_os = "linux")]
    pub fn current() -> io::Result<Option<Self>> {
        // SAFETY: `ioprio_get` takes two numbers and touches no memory of ours. 0 is this thread.
        let result = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_THREAD, 0) };
        match u64::try_from(result) {
            Ok(bits) => Ok(Self::from_bits(bits)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Hosts other than Linux have no such priorities.
    ///
    /// # Errors
    /// ENOSYS, always.
    #[cfg(not(target_os = "linux"))]
    pub fn apply(self) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }

    /// Hosts other than Linux have no such priorities.
    ///
    /// # Errors
    /// ENOSYS, always.
    #[cfg(not(target_os = "linux"))]
    pub fn current() -> io::Result<Option<Self>> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_inherit_the_priority() {
        std::thread::spawn(|| {
            let wanted = IoPriority::new(2, 6).unwrap();
            wanted.apply().unwrap();
            assert_eq!(IoPriority::current().unwrap(), Some(wanted));
            let below = std::thread::spawn(|| IoPriority::current().unwrap());
            assert_eq!(below.join().unwrap(), Some(wanted));
        })
        .join()
        .unwrap();
        assert_ne!(IoPriority::current().unwrap(), IoPriority::new(2, 6));
    }

    #[test]
    fn numbers_are_checked() {
        for (class, level) in [(1, 0), (2, 7), (3, 0)] {
            let priority = IoPriority::new(class, level).unwrap();
            assert_eq!(IoPriority::from_bits(priority.bits()), Some(priority));
        }
        assert_eq!(IoPriority::default().bits(), 0x6000);
        for (class, level) in [(0, 0), (4, 0), (2, 8)] {
            assert_eq!(IoPriority::new(class, level), None);
        }
        for bits in [0, 7, 1 << 20, u64::MAX] {
            assert_eq!(IoPriority::from_bits(bits), None);
        }
    }
}

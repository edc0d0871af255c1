//! `Squash`: the users that clients' users become.
//!
//! A client names its user, group and supplementary groups in each call (AUTH_UNIX), and nothing
//! proves them. A call without them is that of the anonymous user.
//!
//! Kernel counterpart: `nfsd_setuser` (`fs/nfsd/auth.c`).

use crate::rpc::Credentials;
use papilio::Caller;

/// The id of the anonymous user and group unless chosen otherwise, as in the kernel's server.
const NOBODY: u32 = 65534;

/// The users that the server takes for others than the client says. The default is that of the
/// kernel's server: root becomes the anonymous user 65534, and nobody else changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squash {
    root: bool,
    all: bool,
    uid: u32,
    gid: u32,
}

impl Default for Squash {
    fn default() -> Self {
        Self { root: true, all: false, uid: NOBODY, gid: NOBODY }
    }
}

impl Squash {
    /// Sets whether user 0 and group 0 become the anonymous ones.
    pub fn root(mut self, root: bool) -> Self {
        self.root = root;
        self
    }

    /// Sets whether every user becomes the anonymous one.
    pub fn all(mut self, all: bool) -> Self {
        self.all = all;
        self
    }

    /// Sets the anonymous user and group. User 0 may do everything.
    pub fn anonymous(mut self, uid: u32, gid: u32) -> Self {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    /// Returns the user for whom the server carries a call out.
    pub(crate) fn caller(&self, credentials: &Credentials) -> Caller {
        match credentials {
            Credentials::Unix { uid, gid, groups } if !self.all => {
                let squashed = |id: u32, anonymous| if self.root && id == 0 { anonymous } else { id };
                let groups = groups.iter().map(|&group| squashed(group, self.gid)).collect();
                Caller::new(squashed(*uid, self.uid), squashed(*gid, self.gid), groups)
            }
            _ => Caller::new(self.uid, self.gid, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_squashed() {
        let unix = |uid, gid, groups: &[u32]| Credentials::Unix { uid, gid, groups: groups.to_vec() };
        let caller = |uid, gid, groups: &[u32]| Caller::new(uid, gid, groups.to_vec());
        let squash = Squash::default();
        assert_eq!(squash.caller(&unix(0, 0, &[0, 7])), caller(NOBODY, NOBODY, &[NOBODY, 7]));
        assert_eq!(squash.caller(&unix(5, 0, &[])), caller(5, NOBODY, &[]));
        assert_eq!(squash.caller(&Credentials::None), caller(NOBODY, NOBODY, &[]));
        assert_eq!(squash.root(false).caller(&unix(0, 0, &[7])), caller(0, 0, &[7]));
        assert_eq!(squash.root(false).caller(&Credentials::None), caller(NOBODY, NOBODY, &[]));
        let all = squash.all(true).anonymous(3, 4);
        assert_eq!(all.caller(&unix(5, 6, &[7])), caller(3, 4, &[]));
    }
}

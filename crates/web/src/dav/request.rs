//! `Dav`: a request that names places, with its conditions on locks and states.
//!
//! Source: RFC 4918, 6, 7 and 10.

use crate::conditions::{Validators, Verdict, evaluate};
use crate::dav::if_header::{IfHeader, List, Test};
use crate::dav::locks::{ActiveLock, LONGEST, LockTable, Names};
use crate::export::{Export, Place};
use crate::guard::Guard;
use crate::head::Head;
use crate::reply::Refusal;
use crate::target::Target;
use crate::text::href;
use std::time::Duration;

/// How far a request reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    Zero,
    One,
    Infinity,
}

/// The part of a place that a change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Its content and properties.
    Itself,
    /// It appears or disappears, so that its folder changes, too.
    Entry,
    /// As `Entry`, with everything below it.
    Tree,
}

/// A request on an export.
pub(crate) struct Dav<'s> {
    pub(crate) export: &'s Export,
    pub(crate) locks: &'s LockTable,
    pub(crate) guard: &'s Guard,
    pub(crate) head: &'s Head,
    conditions: IfHeader,
}

impl<'s> Dav<'s> {
    pub(crate) fn new(
        export: &'s Export,
        locks: &'s LockTable,
        guard: &'s Guard,
        head: &'s Head,
    ) -> Result<Self, Refusal> {
        let conditions = match head.one("if")? {
            None => IfHeader::default(),
            Some(value) => {
                IfHeader::parse(value).ok_or_else(|| Refusal::new(400, "the header If is malformed"))?
            }
        };
        Ok(Self { export, locks, guard, head, conditions })
    }

    /// Returns the value of `Depth`.
    pub(crate) fn depth(&self, otherwise: Depth) -> Result<Depth, Refusal> {
        match self.head.one("depth")? {
            None => Ok(otherwise),
            Some("0") => Ok(Depth::Zero),
            Some("1") => Ok(Depth::One),
            Some(value) if value.eq_ignore_ascii_case("infinity") => Ok(Depth::Infinity),
            Some(_) => Err(Refusal::new(400, "Depth is 0, 1 or infinity")),
        }
    }

    /// Returns whether something at the destination may be replaced.
    pub(crate) fn overwrites(&self) -> Result<bool, Refusal> {
        match self.head.one("overwrite")? {
            None | Some("T" | "t") => Ok(true),
            Some("F" | "f") => Ok(false),
            Some(_) => Err(Refusal::new(400, "Overwrite is T or F")),
        }
    }

    /// Returns the destination of a copy or a move.
    pub(crate) fn destination(&self) -> Result<Target, Refusal> {
        let value = self.head.one("destination")?;
        let value = value.ok_or_else(|| Refusal::new(400, "there is no Destination"))?;
        let target = Target::parse(value).map_err(|bad| Refusal::new(400, bad.0))?;
        if target.is_server {
            return Err(Refusal::new(400, "the Destination is no place"));
        }
        match &target.authority {
            Some(authority) if !self.guard.is_own(authority) => {
                Err(Refusal::new(502, "the Destination is on another server"))
            }
            _ => Ok(target),
        }
    }

    /// Returns the time that a client wants a lock for.
    pub(crate) fn timeout(&self) -> Duration {
        let wanted = self.head.get("timeout").unwrap_or_default();
        let seconds = wanted.split(',').find_map(|one| one.trim().strip_prefix("Second-")?.parse().ok());
        seconds.map_or(LONGEST, |seconds: u64| Duration::from_secs(seconds.max(1))).min(LONGEST)
    }

    /// Returns the only token that `If` has, for a lock that is to be prolonged.
    pub(crate) fn only_token(&self) -> Option<&str> {
        let mut tokens = self.conditions.tokens();
        tokens.next().filter(|_| tokens.next().is_none())
    }

    /// Refuses a request whose conditions on a place do not hold: those of HTTP, and those of `If`.
    pub(crate) fn check_conditions(&self, place: &Place) -> Result<(), Refusal> {
        let failed = || Refusal::new(412, "a condition of the request does not hold");
        let validators = place.inode.as_ref().map(|inode| Validators::of(inode.metadata()));
        if evaluate(self.head, validators.as_ref())? == Verdict::Failed {
            return Err(failed());
        }
        if self.conditions.lists.is_empty() {
            return Ok(());
        }
        for list in &self.conditions.lists {
            if self.holds(list, place)? {
                return Ok(());
            }
        }
        Err(failed())
    }

    fn holds(&self, list: &List, place: &Place) -> Result<bool, Refusal> {
        let tagged = match &list.target {
            None => None,
            Some(target) if target.authority.as_deref().is_none_or(|name| self.guard.is_own(name)) => {
                Some(self.export.find(&target.names, true)?)
            }
            Some(_) => return Ok(false),
        };
        let place = tagged.as_ref().unwrap_or(place);
        let locks = self.locks.covering(&place.names);
        let etag = place.inode.as_ref().map(|inode| Validators::of(inode.metadata()).etag);
        Ok(list.tests.iter().all(|(is_not, test)| {
            let is_met = match test {
                Test::Token(token) => locks.iter().any(|lock| lock.token == *token),
                Test::Etag(wanted) => etag.as_ref() == Some(wanted),
            };
            is_met != *is_not
        }))
    }

    /// Refuses a change of a place that others have locked.
    pub(crate) fn check_locks(&self, names: &Names, scope: Scope) -> Result<(), Refusal> {
        self.must_hold(&self.locks.covering(names))?;
        if scope != Scope::Itself
            && let Some((_, folder)) = names.split_last()
        {
            self.must_hold(&self.locks.covering(folder))?;
        }
        if scope == Scope::Tree {
            for lock in self.locks.below(names) {
                self.must_hold(&self.locks.covering(&lock.names))?;
            }
        }
        Ok(())
    }

    /// Refuses a client that shows the token of none of these locks.
    fn must_hold(&self, locks: &[ActiveLock]) -> Result<(), Refusal> {
        let shows = |lock: &ActiveLock| self.conditions.tokens().any(|token| token == lock.token);
        let Some(first) = locks.first() else { return Ok(()) };
        // Several locks on one place are shared ones; one of them is enough.
        if locks.iter().any(shows) {
            return Ok(());
        }
        let place = href(&first.names, first.is_directory);
        Err(Refusal::condition(423, "lock-token-submitted", "the place is locked").of(place))
    }
}

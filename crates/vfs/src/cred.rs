//! Credentials of the process behind a call.

use std::sync::OnceLock;

/// Fetches the supplementary groups of a process; given by the front end.
pub type GroupFetch = fn(pid: u32) -> Vec<u32>;

/// The supplementary groups of a caller, fetched only when a permission check needs them: most
/// checks are decided before.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    known: OnceLock<Vec<u32>>,
    fetch: Option<(u32, GroupFetch)>,
    /// One group that is known without fetching.
    hint: Option<u32>,
}

impl Groups {
    /// No supplementary groups.
    pub const fn none() -> Groups {
        Groups {
            known: OnceLock::new(),
            fetch: None,
            hint: None,
        }
    }

    /// Groups known from the start.
    #[cfg(test)]
    pub(crate) fn known(groups: impl Into<Vec<u32>>) -> Groups {
        Groups {
            known: OnceLock::from(groups.into()),
            fetch: None,
            hint: None,
        }
    }

    /// Groups to be fetched for `pid` when first asked for. Costs nothing until then.
    pub const fn lazy(pid: u32, fetch: GroupFetch) -> Groups {
        Groups {
            known: OnceLock::new(),
            fetch: Some((pid, fetch)),
            hint: None,
        }
    }

    /// The same groups, of which `hint` is known to be one: asking for it fetches nothing.
    pub fn with_hint(self, hint: Option<u32>) -> Groups {
        Groups { hint, ..self }
    }

    /// Is `gid` among the groups?
    pub(crate) fn contains(&self, gid: u32) -> bool {
        self.hint == Some(gid) || self.get().contains(&gid)
    }

    /// The groups, fetched now if they were not before.
    pub(crate) fn get(&self) -> &[u32] {
        match self.fetch {
            Some((pid, fetch)) => self.known.get_or_init(|| fetch(pid)),
            None => self.known.get().map_or(&[], |g| g),
        }
    }
}

/// User, group and supplementary groups. User 0 is privileged: capabilities are not modelled.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// User number by which permissions are checked.
    pub uid: u32,
    /// Group of new nodes, and of permission checks.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl Credentials {
    /// Without supplementary groups.
    pub const fn new(uid: u32, gid: u32) -> Credentials {
        Credentials {
            uid,
            gid,
            groups: Groups::none(),
        }
    }

    /// The superuser without supplementary groups.
    pub const fn root() -> Credentials {
        Credentials::new(0, 0)
    }

    /// May override permissions and ownership rules.
    pub fn is_privileged(&self) -> bool {
        self.uid == 0
    }

    /// Is a member of `gid`, by its own or by a supplementary group.
    pub(crate) fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(gid)
    }
}

/// What a call knows about its caller.
#[derive(Debug, Default)]
pub struct Context {
    /// The credentials of the caller.
    pub creds: Credentials,
    /// Process id of the caller, 0 if there is none (write-back by the kernel, or a process outside
    /// our pid name space).
    pub pid: u32,
    /// The caller's umask, meaningful for calls that create a node. Only applied where the parent
    /// has no default ACL: see [`crate::acl::inherit`].
    pub umask: u32,
}

impl Context {
    /// With the values of the fields.
    pub const fn new(creds: Credentials, pid: u32, umask: u32) -> Context {
        Context { creds, pid, umask }
    }

    /// The superuser with umask 0: for tools and tests.
    pub const fn root() -> Context {
        Context::new(Credentials::root(), 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static FETCHED: AtomicU32 = AtomicU32::new(0);

    fn fetch(pid: u32) -> Vec<u32> {
        FETCHED.fetch_add(1, Ordering::Relaxed);
        vec![pid, 44]
    }

    #[test]
    fn groups_are_fetched_once_and_only_when_needed() {
        let creds = Credentials {
            uid: 1,
            gid: 2,
            groups: Groups::lazy(7, fetch),
        };
        assert!(creds.in_group(2));
        assert_eq!(FETCHED.load(Ordering::Relaxed), 0);
        assert!(creds.in_group(44) && creds.in_group(7) && !creds.in_group(8));
        assert_eq!(FETCHED.load(Ordering::Relaxed), 1);
        assert!(Groups::none().get().is_empty());
        assert_eq!(Groups::known([3]).get(), [3]);
    }
}

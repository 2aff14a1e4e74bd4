//! Open files that were lent to calls on other files, each under a token.
//!
//! Locks: the table, held for moments, none within.

use std::collections::VecDeque;
use std::time::Duration;

use cowshed_vfs::{Access, Error, NodeId, Result};
use parking_lot::Mutex;

use crate::wire::Token;

/// Files lent at a time, of all callers: the oldest go first.
const GRANTS_MAX: usize = 1024;
/// How long a file is lent.
const GRANT_TIME: Duration = Duration::from_secs(60);

/// An open file that was lent.
pub(crate) struct Grant {
    pub(crate) token: Token,
    pub(crate) node: NodeId,
    pub(crate) generation: u64,
    pub(crate) access: Access,
    /// When it was lent, by [`Env::monotonic`](cowshed_runtime::Env::monotonic).
    pub(crate) since: Duration,
}

/// Open files that were lent to calls on other files.
#[derive(Default)]
pub(crate) struct Grants(Mutex<VecDeque<Grant>>);

impl Grants {
    pub(crate) fn add(&self, grant: Grant) {
        let mut grants = self.0.lock();
        if grants.len() >= GRANTS_MAX {
            grants.pop_front();
        }
        grants.push_back(grant);
    }

    /// Node and generation behind a token, at the time `now`. Errors: `CrossDevice` (lent by
    /// another mount, or too long ago), `BadHandle` (not opened for this).
    pub(crate) fn find(&self, token: Token, want: Access, now: Duration) -> Result<(NodeId, u64)> {
        let mut grants = self.0.lock();
        grants.retain(|grant| now.saturating_sub(grant.since) <= GRANT_TIME);
        let grant = grants.iter().find(|g| g.token == token).ok_or(Error::CrossDevice)?;
        if !grant.access.contains(want) {
            return Err(Error::BadHandle);
        }
        Ok((grant.node, grant.generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(n: u8, since: Duration) -> Grant {
        Grant {
            token: Token([n; 16]),
            node: NodeId(u64::from(n)),
            generation: 1,
            access: Access::READ,
            since,
        }
    }

    #[test]
    fn grant_is_found_for_its_time_and_not_longer() {
        let (grants, since) = (Grants::default(), Duration::from_secs(100));
        grants.add(grant(1, since));
        let find = |want, now| grants.find(Token([1; 16]), want, now);
        assert_eq!(find(Access::READ, since + GRANT_TIME).unwrap(), (NodeId(1), 1));
        assert_eq!(find(Access::WRITE, since).unwrap_err(), Error::BadHandle);
        let late = since + GRANT_TIME + Duration::from_nanos(1);
        assert_eq!(find(Access::READ, late).unwrap_err(), Error::CrossDevice);
    }

    #[test]
    fn oldest_grant_goes_when_there_are_too_many() {
        let grants = Grants::default();
        grants.add(grant(1, Duration::ZERO));
        for _ in 0..GRANTS_MAX {
            grants.add(grant(2, Duration::ZERO));
        }
        let find = |n| grants.find(Token([n; 16]), Access::READ, Duration::ZERO);
        assert_eq!(find(1).unwrap_err(), Error::CrossDevice);
        assert!(find(2).is_ok());
    }
}

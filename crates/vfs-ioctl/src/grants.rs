//! Open files that were lent to calls on other files, each under a token.
//!
//! Locks: the table, held for moments, none within.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

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
    pub(crate) since: Instant,
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

    /// Node and generation behind a token. Errors: `CrossDevice` (lent by another mount, or too long ago),
    /// `BadHandle` (not opened for this).
    pub(crate) fn find(&self, token: Token, want: Access) -> Result<(NodeId, u64)> {
        let mut grants = self.0.lock();
        grants.retain(|grant| grant.since.elapsed() <= GRANT_TIME);
        let grant = grants.iter().find(|g| g.token == token).ok_or(Error::CrossDevice)?;
        if !grant.access.contains(want) {
            return Err(Error::BadHandle);
        }
        Ok((grant.node, grant.generation))
    }
}

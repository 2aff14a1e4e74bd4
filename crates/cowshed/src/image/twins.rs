//! Files with the same contents.

use std::collections::{BTreeMap, HashMap, HashSet};

use cowshed_runtime::Workers;
use cowshed_source::{Body, Content, InodeId, Tree};

use super::error::Result;
use super::policy::{Policies, walk};

/// Smaller files lie in their items, and share nothing.
const SIZE_BYTES_MIN: u64 = 2049;

/// For each file that is the same as another one, that one. Only files whose sizes are equal are
/// read. Files that are overwritten in place share nothing.
pub(super) fn find(tree: &Tree, policies: &Policies, workers: &Workers) -> Result<HashMap<InodeId, InodeId>> {
    let mut by_size: BTreeMap<_, Vec<(InodeId, &Content)>> = BTreeMap::new();
    let mut seen = HashSet::new();
    walk(tree, Tree::ROOT, Vec::new(), &mut |_, id| {
        let Body::File(content) = &tree[id].body else { return };
        let how = policies.how(id);
        if content.size_bytes() >= SIZE_BYTES_MIN && how.1 == 0 && seen.insert(id) {
            by_size
                .entry((content.size_bytes(), how))
                .or_default()
                .push((id, content));
        }
    });
    let jobs: Vec<_> = by_size.into_iter().filter(|(_, files)| files.len() > 1).collect();
    let jobs = jobs.into_iter().flat_map(|(key, files)| {
        let files = files.into_iter();
        files.map(move |(id, content)| (key, id, content))
    });
    let digests = workers.run(jobs.collect(), |(key, id, content)| (key, id, content.digest()));
    let mut first = HashMap::new();
    let mut twins = HashMap::new();
    for (key, id, digest) in digests {
        let leader = *first.entry((key, digest?)).or_insert(id);
        if leader != id {
            twins.insert(id, leader);
        }
    }
    Ok(twins)
}

//! What an operation of a script promises once it has returned.

use anyhow::{Result, ensure};
use cowshed_model::script::{Op, Scope};

use crate::promise::{self, Promise};

/// An operation of which nothing may be seen has led to this state, and nothing else has.
pub(crate) fn unseen(op: &Op, history: &promise::History, index: usize, root: u64) -> Result<()> {
    for path in op.paths().iter().filter(|_| op.is_unseen()) {
        let ino = history.newest_ino(root, path);
        ensure!(
            ino.is_none_or(|ino| history.is_unchanged(ino, index)),
            "`{op}`: {path} is another one than before"
        );
    }
    Ok(())
}

/// Notes what an operation has promised, if it succeeded, and which groups are open then.
pub fn promise(op: &Op, is_done: bool, history: &mut promise::History, index: usize, root: u64) {
    let group = |history: &mut promise::History, inos: Vec<u64>| {
        for ino in &inos {
            history.promise(index, Some(Promise::Inode(*ino)));
        }
        history.atomic(index, inos);
    };
    // One whose end failed is gone, too.
    if let Op::End { group: number, commit } = op {
        let inos = history.end_group(index, *number);
        if *commit && is_done {
            group(history, inos);
        }
    }
    if !is_done {
        return;
    }
    let inos = |history: &promise::History, paths: &[&String]| -> Vec<u64> {
        let mut inos: Vec<u64> = paths.iter().filter_map(|path| history.newest_ino(root, path)).collect();
        inos.sort_unstable();
        inos.dedup();
        inos
    };
    if let Some((path, scope)) = op.synced() {
        let what = match scope {
            Scope::All => Promise::Inode,
            Scope::Data => Promise::Data,
        };
        let ino = history.newest_ino(root, path);
        history.promise(index, ino.map(what));
    }
    match op {
        Op::Sync => history.promise(index, Some(Promise::Volume)),
        // Had it not been synced, nothing would be known of it before the next sync.
        Op::Temporary { to, fsync: true, .. } => {
            let ino = history.newest_ino(root, to).map(Promise::Content);
            history.promise(index, ino);
        }
        Op::Group { writes, commit: true } => {
            let inos = inos(history, &writes.iter().map(|write| &write.path).collect::<Vec<_>>());
            group(history, inos);
        }
        Op::Begin {
            group,
            paths,
            by_handle,
        } => {
            let inos = paths.iter().map(|path| history.newest_ino(root, path).unwrap_or(0));
            let inos = inos.collect();
            history.begin_group(index, *group, inos, *by_handle);
        }
        Op::Stage { group, file, .. } => history.stage_in_group(*group, usize::from(*file)),
        Op::Swap { a, b, .. } => {
            let inos = inos(history, &[a, b]);
            history.atomic(index, inos);
        }
        _ => {}
    }
}

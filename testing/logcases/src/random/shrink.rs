//! Makes a failing script as short as it can be: operations go, and become simpler, as long as the
//! same kind of difference is found after the last one.

use cowshed_device::MemDevice;
use cowshed_model::script::{How, Op};

use super::play::Played;
use super::{Kind, judge};

/// The shortest script found in which the crash after the last operation shows a difference of this
/// kind.
pub(crate) fn shrink(base: &MemDevice, ops: &[Op], kind: &Kind, no_fsyncs: bool) -> Vec<Op> {
    let fails = |ops: &[Op]| -> Option<Vec<Op>> {
        // A script that cannot be played is not the one that was looked for.
        let played = Played::new(base, ops, no_fsyncs).ok()?;
        let moment = played.moments.last().filter(|moment| moment.ops == played.ops.len())?;
        let judged = judge(&played, moment, *kind == Kind::Replay);
        judged.kinds.contains_key(kind).then_some(played.ops)
    };
    let mut ops = ops.to_vec();
    loop {
        let before = ops.clone();
        let mut len = (ops.len() / 2).max(1);
        loop {
            without_parts(&mut ops, len, fails);
            if len == 1 {
                break;
            }
            len /= 2;
        }
        simpler(&mut ops, fails);
        if ops == before {
            return ops;
        }
    }
}

/// Leaves out stretches of so many operations. The last operation is the fsync, and stays.
fn without_parts(ops: &mut Vec<Op>, len: usize, fails: impl Fn(&[Op]) -> Option<Vec<Op>>) {
    let mut at = 0;
    while at + len < ops.len() {
        let mut part = ops.clone();
        part.drain(at..at + len);
        match fails(&part) {
            // What fails without the others has been left out, too.
            Some(left) => *ops = left,
            None => at += len,
        }
    }
}

fn simpler(ops: &mut Vec<Op>, fails: impl Fn(&[Op]) -> Option<Vec<Op>>) {
    for at in 0..ops.len() {
        for choice in choices(&ops[at], at + 1 == ops.len()) {
            let mut changed = ops.clone();
            changed[at] = choice;
            if let Some(left) = fails(&changed).filter(|left| left.len() == ops.len()) {
                *ops = left;
                break;
            }
        }
    }
}

/// What to try instead of an operation, the simplest first.
fn choices(op: &Op, is_last: bool) -> Vec<Op> {
    match op {
        Op::Write {
            how: How::Plain, path, ..
        } => vec![Op::create(path.clone())],
        Op::Write { path, offset, data, .. } if !is_last => {
            vec![
                Op::create(path.clone()),
                Op::write_how(How::Plain, path.clone(), *offset, data.clone()),
            ]
        }
        Op::Fdatasync { path } => vec![Op::fsync(path.clone())],
        Op::Whiteout { from, to } | Op::Exchange { from, to } => vec![Op::rename(from.clone(), to.clone())],
        Op::Symlink { path, .. } | Op::Mknod { path, .. } => vec![Op::create(path.clone())],
        _ => Vec::new(),
    }
}

//! Operations as lines of a script: what [`Op::parse`] reads.

use std::fmt;

use crate::content::short;
use crate::op::{How, Kind, Op, Prealloc};

/// A number of bytes in its shortest form.
fn bytes(count: u64) -> String {
    match count {
        count if count > 0 && count.is_multiple_of(1024) => format!("{}k", count / 1024),
        count => count.to_string(),
    }
}

/// The value of an extended attribute: a word where it is one, else content in short.
fn value(value: &[u8]) -> String {
    const WORD_BYTES_MAX: usize = 16;
    match str::from_utf8(value) {
        Ok(word)
            if (1..=WORD_BYTES_MAX).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_alphanumeric()) =>
        {
            word.to_owned()
        }
        _ => format!("={}", short(value, usize::MAX)),
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create(path) => write!(f, "create {path}"),
            Op::Mkdir(path) => write!(f, "mkdir {path}"),
            Op::Mknod(kind, path) => {
                let verb = match kind {
                    Kind::Fifo => "fifo",
                    Kind::Char => "char",
                    Kind::Socket => "socket",
                };
                write!(f, "{verb} {path}")
            }
            Op::Symlink(target, path) => write!(f, "symlink {target} {path}"),
            Op::Rename(from, to) => write!(f, "rename {from} {to}"),
            Op::Whiteout(from, to) => write!(f, "whiteout {from} {to}"),
            Op::Exchange(from, to) => write!(f, "exchange {from} {to}"),
            Op::Link(from, to) => write!(f, "link {from} {to}"),
            Op::Unlink(path) => write!(f, "unlink {path}"),
            Op::Rmdir(path) => write!(f, "rmdir {path}"),
            Op::SetXattr(path, name, data) => write!(f, "setx {path} {name} {}", value(data)),
            Op::RemoveXattr(path, name) => write!(f, "rmx {path} {name}"),
            Op::Chmod(path, mode) => write!(f, "chmod {path} {mode:o}"),
            Op::Chown(path, id) => write!(f, "chown {path} {id}"),
            Op::Utime(path, secs) => write!(f, "utime {path} {secs}"),
            Op::Tmpfile(slot, dir) => write!(f, "tmpfile {slot} {dir}"),
            Op::Open(slot, path) => write!(f, "open {slot} {path}"),
            Op::Close(slot) => write!(f, "close {slot}"),
            Op::Many(prefix, count) => write!(f, "many {prefix} {count}"),
            Op::ManyLinks(from, prefix, count) => write!(f, "manylinks {from} {prefix} {count}"),
            Op::UnlinkEvery(nth, prefix, count) => write!(f, "unlink-every {nth} {prefix} {count}"),
            Op::Drop => f.write_str("drop"),
            Op::Fsync(path) => write!(f, "fsync {path}"),
            Op::Fdatasync(path) => write!(f, "fdatasync {path}"),
            Op::Sync => f.write_str("sync"),
            Op::Subvolume(path) => write!(f, "subvolume {path}"),
            Op::Snapshot(from, to) => write!(f, "snapshot {from} {to}"),
            Op::DeleteSubvolume(path) => write!(f, "delete-subvolume {path}"),
            data => fmt_data(data, f),
        }
    }
}

fn fmt_data(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match op {
        Op::Write(how, path, offset, data) => {
            let verb = match how {
                How::Plain => "write",
                How::Sync => "write-sync",
                How::DataSync => "write-dsync",
                How::Mapped => "write-mapped",
                How::Direct => "write-direct",
            };
            write!(f, "{verb} {path} {} {}", bytes(*offset), short(data, usize::MAX))
        }
        Op::Scatter(path, count, step, letter) => {
            write!(f, "scatter {path} {count} {} {}", bytes(*step), char::from(*letter))
        }
        Op::Truncate(path, size) => write!(f, "truncate {path} {}", bytes(*size)),
        Op::Fallocate(how, path, offset, len) => {
            let verb = match how {
                Prealloc::Extend => "prealloc",
                Prealloc::KeepSize => "prealloc-keep",
                Prealloc::Punch => "punch",
                Prealloc::Zero => "zero",
            };
            write!(f, "{verb} {path} {} {}", bytes(*offset), bytes(*len))
        }
        Op::Clone(from, at, to, to_at, len) | Op::Dedupe(from, at, to, to_at, len) => {
            let verb = if matches!(op, Op::Clone(..)) { "clone" } else { "dedupe" };
            let (at, to_at, len) = (bytes(*at), bytes(*to_at), bytes(*len));
            write!(f, "{verb} {from} {at} {to} {to_at} {len}")
        }
        Op::InPlace(path) => write!(f, "in-place {path}"),
        // No line of a script.
        Op::Flags(path, flags) => write!(f, "flags {path} {flags:#x}"),
        _ => unreachable!("no data"),
    }
}

/// A whole script, on one line.
pub fn script(ops: &[Op]) -> String {
    ops.iter().map(Op::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use crate::op::Op;
    use crate::table;

    #[test]
    fn each_line_of_the_table_prints_as_what_it_is_read_from() {
        for case in table::all() {
            for op in case.ops().unwrap() {
                assert_eq!(Op::parse(&op.to_string()).unwrap(), op, "{}", case.name);
            }
        }
        for line in [
            "setx f user.a =x300",
            "setx f user.a one",
            "setx f user.a =-",
            "write f 4k a100+.2k+b1",
        ] {
            assert_eq!(Op::parse(line).unwrap().to_string(), line);
        }
    }
}

//! Operations as lines of text: `write d/f 4k a8k`. What is printed is read as the same operation.

use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};

use super::data::Data;
use super::op::{How, Kind, Op, Prealloc, Staged};
use super::short::{bytes, count, short};

/// A whole script, on one line.
pub fn script(ops: &[Op]) -> String {
    ops.iter().map(Op::to_string).collect::<Vec<_>>().join("; ")
}

const KINDS: [(&str, Kind); 3] = [("fifo", Kind::Fifo), ("char", Kind::Char), ("socket", Kind::Socket)];
const WRITES: [(&str, How); 5] = [
    ("write", How::Plain),
    ("write-sync", How::Sync),
    ("write-dsync", How::DataSync),
    ("write-mapped", How::Mapped),
    ("write-direct", How::Direct),
];
const FALLOCATES: [(&str, Prealloc); 4] = [
    ("prealloc", Prealloc::Extend),
    ("prealloc-keep", Prealloc::KeepSize),
    ("punch", Prealloc::Punch),
    ("zero", Prealloc::Zero),
];

fn named<T: Copy>(verbs: &[(&str, T)], verb: &str) -> Option<T> {
    verbs.iter().find(|(name, _)| *name == verb).map(|(_, what)| *what)
}

fn verb<T: PartialEq>(verbs: &[(&'static str, T)], what: &T) -> &'static str {
    verbs
        .iter()
        .find(|(_, other)| other == what)
        .map_or("?", |(name, _)| name)
}

/// The words of a line behind the verb.
struct Words<'l> {
    words: std::slice::Iter<'l, &'l str>,
}

impl Words<'_> {
    fn word(&mut self) -> Result<String> {
        self.words
            .next()
            .map(|word| (*word).to_owned())
            .context("too few words")
    }

    fn number(&mut self) -> Result<u64> {
        count(&self.word()?)
    }

    /// Of an end: `end` for the whole rest.
    fn number_or_end(&mut self) -> Result<Option<u64>> {
        match self.word()?.as_str() {
            "end" => Ok(None),
            number => count(number).map(Some),
        }
    }

    fn data(&mut self) -> Result<Data> {
        data(&self.word()?)
    }

    /// A value is a word, or content where it begins with `=`.
    fn value(&mut self) -> Result<Data> {
        let word = self.word()?;
        match word.strip_prefix('=') {
            Some(content) => data(content),
            None => Ok(Data::Bytes(word.into())),
        }
    }

    fn is(&mut self, word: &str) -> Result<bool> {
        Ok(self.word()? == word)
    }
}

/// Content in short, or `~300:17`: so many bytes that follow from a number.
fn data(text: &str) -> Result<Data> {
    let Some(fill) = text.strip_prefix('~') else {
        return bytes(text).map(Data::Bytes);
    };
    let (len, fill) = fill.split_once(':').context("no number to fill with")?;
    Ok(Data::Fill {
        len: count(len)? as usize,
        fill: fill.parse()?,
    })
}

impl Op {
    pub fn parse(line: &str) -> Result<Op> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, args) = words.split_first().context("an empty line")?;
        let mut args = Words { words: args.iter() };
        let parse = || {
            let op = match parse_data(verb, &mut args)? {
                Some(op) => op,
                None => parse_words(verb, &mut args)?,
            };
            let left = args.words.len();
            ensure!(left == 0, "{left} words too many");
            Ok(op)
        };
        let mut parse = parse;
        parse().with_context(|| format!("`{line}`"))
    }
}

fn parse_words(verb: &str, args: &mut Words<'_>) -> Result<Op> {
    if let Some(kind) = named(&KINDS, verb) {
        return Ok(Op::Mknod {
            path: args.word()?,
            kind,
        });
    }
    // The fields are read in the order in which they are written.
    Ok(match verb {
        "create" => Op::Create { path: args.word()? },
        "in-place" => Op::InPlace { path: args.word()? },
        "mkdir" => Op::Mkdir { path: args.word()? },
        "symlink" => Op::Symlink {
            target: args.word()?,
            path: args.word()?,
        },
        "rename" => Op::Rename {
            from: args.word()?,
            to: args.word()?,
        },
        "whiteout" => Op::Whiteout {
            from: args.word()?,
            to: args.word()?,
        },
        "exchange" => Op::Exchange {
            from: args.word()?,
            to: args.word()?,
        },
        "link" => Op::Link {
            from: args.word()?,
            to: args.word()?,
        },
        "unlink" => Op::Unlink { path: args.word()? },
        "rmdir" => Op::Rmdir { path: args.word()? },
        "setx" => Op::SetXattr {
            path: args.word()?,
            name: args.word()?,
            value: args.value()?,
        },
        "rmx" => Op::RemoveXattr {
            path: args.word()?,
            name: args.word()?,
        },
        "chmod" => Op::Chmod {
            path: args.word()?,
            perm: u32::from_str_radix(&args.word()?, 8)?,
        },
        "chown" => Op::Chown {
            path: args.word()?,
            id: args.number()? as u32,
        },
        "utime" => Op::Utime {
            path: args.word()?,
            secs: args.number()? as i64,
        },
        "flags" => Op::Flags {
            path: args.word()?,
            flags: u32::from_str_radix(&args.word()?, 16)?,
        },
        "tmpfile" => Op::Tmpfile {
            slot: args.word()?,
            dir: args.word()?,
        },
        "open" => Op::Open {
            slot: args.word()?,
            path: args.word()?,
        },
        "close" => Op::Close { slot: args.word()? },
        "many" => Op::Many {
            prefix: args.word()?,
            count: args.number()?,
        },
        "manylinks" => Op::ManyLinks {
            from: args.word()?,
            prefix: args.word()?,
            count: args.number()?,
        },
        "unlink-every" => Op::UnlinkEvery {
            nth: args.number()?,
            prefix: args.word()?,
            count: args.number()?,
        },
        "drop" => Op::Drop,
        "fsync" => Op::Fsync { path: args.word()? },
        "fdatasync" => Op::Fdatasync { path: args.word()? },
        "sync" => Op::Sync,
        "subvolume" => Op::Subvolume { path: args.word()? },
        "snapshot" => Op::Snapshot {
            from: args.word()?,
            to: args.word()?,
        },
        "delete-subvolume" => Op::DeleteSubvolume { path: args.word()? },
        _ => bail!("no such operation"),
    })
}

fn parse_data(verb: &str, args: &mut Words<'_>) -> Result<Option<Op>> {
    if let Some(how) = named(&WRITES, verb) {
        return Ok(Some(Op::Write {
            path: args.word()?,
            offset: args.number()?,
            data: args.data()?,
            how,
        }));
    }
    if let Some(how) = named(&FALLOCATES, verb) {
        return Ok(Some(Op::Fallocate {
            path: args.word()?,
            offset: args.number()?,
            len: args.number()?,
            how,
        }));
    }
    Ok(Some(match verb {
        "scatter" => Op::Scatter {
            path: args.word()?,
            count: args.number()?,
            step: args.number()?,
            letter: args.word()?.bytes().next().context("no letter")?,
        },
        "truncate" => Op::Truncate {
            path: args.word()?,
            size_bytes: args.number()?,
        },
        "temporary" => Op::Temporary {
            dir: args.word()?,
            to: args.word()?,
            data: args.data()?,
            fsync: args.is("fsync")?,
        },
        "clone" => Op::Copy {
            from: args.word()?,
            from_offset: args.number()?,
            to: args.word()?,
            to_offset: args.number()?,
            len: args.number()?,
        },
        "clone-range" => Op::CloneRange {
            from: args.word()?,
            from_offset: args.number()?,
            to: args.word()?,
            to_offset: args.number()?,
            len: args.number()?,
        },
        "dedupe" => Op::Dedupe {
            from: args.word()?,
            from_offset: args.number()?,
            to: args.word()?,
            to_offset: args.number()?,
            len: args.number()?,
        },
        "defrag" => Op::Defrag {
            path: args.word()?,
            offset: args.number()?,
            len: args.number_or_end()?.unwrap_or(u64::MAX),
            target_bytes: args.number()?,
            compress: match args.word()?.as_str() {
                "-" => None,
                how => Some(how.parse().map_err(|_| anyhow::anyhow!("no such compression"))?),
            },
        },
        "swap" => Op::Swap {
            a: args.word()?,
            b: args.word()?,
            offset: args.number()?,
            len: args.number_or_end()?,
        },
        _ => return parse_group(verb, args),
    }))
}

fn parse_group(verb: &str, args: &mut Words<'_>) -> Result<Option<Op>> {
    Ok(Some(match verb {
        "group" => {
            let commit = args.is("commit")?;
            let mut writes = Vec::new();
            while args.words.len() > 0 {
                writes.push(Staged {
                    path: args.word()?,
                    offset: args.number()?,
                    len: args.number()? as usize,
                    fill: args.word()?.parse()?,
                });
            }
            Op::Group { writes, commit }
        }
        "begin" | "begin-handle" => Op::Begin {
            group: args.number()? as u8,
            paths: std::iter::from_fn(|| args.word().ok()).collect(),
            by_handle: verb == "begin-handle",
        },
        "stage" => Op::Stage {
            group: args.number()? as u8,
            file: args.number()? as u8,
            offset: args.number()?,
            len: args.number()? as usize,
            fill: args.word()?.parse()?,
        },
        "end" => Op::End {
            group: args.number()? as u8,
            commit: args.is("commit")?,
        },
        _ => return Ok(None),
    }))
}

/// A number of bytes in its shortest form.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            count if count > 0 && count.is_multiple_of(1024) => write!(f, "{}k", count / 1024),
            count => write!(f, "{count}"),
        }
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Bytes(bytes) => f.write_str(&short(bytes, usize::MAX)),
            Data::Fill { len, fill } => write!(f, "~{}:{fill}", Bytes(*len as u64)),
        }
    }
}

/// The value of an extended attribute: a word where it is one, else content.
struct Value<'d>(&'d Data);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WORD_BYTES_MAX: usize = 16;
        let word = match self.0 {
            Data::Bytes(bytes) => str::from_utf8(bytes).ok(),
            Data::Fill { .. } => None,
        };
        let is_word = |word: &&str| {
            (1..=WORD_BYTES_MAX).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        match word.filter(is_word) {
            Some(word) => f.write_str(word),
            None => write!(f, "={}", self.0),
        }
    }
}

/// A path; the empty one is a word, too.
struct At<'p>(&'p str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "." } else { self.0 })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create { path } => write!(f, "create {path}"),
            Op::InPlace { path } => write!(f, "in-place {path}"),
            Op::Mkdir { path } => write!(f, "mkdir {path}"),
            Op::Mknod { path, kind } => write!(f, "{} {path}", verb(&KINDS, kind)),
            Op::Symlink { path, target } => write!(f, "symlink {target} {path}"),
            Op::Rename { from, to } => write!(f, "rename {from} {to}"),
            Op::Whiteout { from, to } => write!(f, "whiteout {from} {to}"),
            Op::Exchange { from, to } => write!(f, "exchange {from} {to}"),
            Op::Link { from, to } => write!(f, "link {from} {to}"),
            Op::Unlink { path } => write!(f, "unlink {path}"),
            Op::Rmdir { path } => write!(f, "rmdir {path}"),
            Op::SetXattr { path, name, value } => write!(f, "setx {} {name} {}", At(path), Value(value)),
            Op::RemoveXattr { path, name } => write!(f, "rmx {} {name}", At(path)),
            Op::Chmod { path, perm } => write!(f, "chmod {} {perm:o}", At(path)),
            Op::Chown { path, id } => write!(f, "chown {} {id}", At(path)),
            Op::Utime { path, secs } => write!(f, "utime {} {secs}", At(path)),
            Op::Flags { path, flags } => write!(f, "flags {} {flags:x}", At(path)),
            Op::Tmpfile { slot, dir } => write!(f, "tmpfile {slot} {}", At(dir)),
            Op::Open { slot, path } => write!(f, "open {slot} {path}"),
            Op::Close { slot } => write!(f, "close {slot}"),
            Op::Many { prefix, count } => write!(f, "many {prefix} {count}"),
            Op::ManyLinks { from, prefix, count } => write!(f, "manylinks {from} {prefix} {count}"),
            Op::UnlinkEvery { nth, prefix, count } => write!(f, "unlink-every {nth} {prefix} {count}"),
            Op::Drop => f.write_str("drop"),
            Op::Fsync { path } => write!(f, "fsync {}", At(path)),
            Op::Fdatasync { path } => write!(f, "fdatasync {}", At(path)),
            Op::Sync => f.write_str("sync"),
            Op::Subvolume { path } => write!(f, "subvolume {path}"),
            Op::Snapshot { from, to } => write!(f, "snapshot {} {to}", At(from)),
            Op::DeleteSubvolume { path } => write!(f, "delete-subvolume {path}"),
            data => fmt_data(data, f),
        }
    }
}

fn fmt_data(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let end = |len: Option<u64>| len.map_or_else(|| "end".to_owned(), |len| Bytes(len).to_string());
    match op {
        Op::Write {
            path,
            offset,
            data,
            how,
        } => write!(f, "{} {path} {} {data}", verb(&WRITES, how), Bytes(*offset)),
        Op::Scatter {
            path,
            count,
            step,
            letter,
        } => write!(f, "scatter {path} {count} {} {}", Bytes(*step), char::from(*letter)),
        Op::Truncate { path, size_bytes } => write!(f, "truncate {path} {}", Bytes(*size_bytes)),
        Op::Fallocate { path, offset, len, how } => {
            write!(
                f,
                "{} {path} {} {}",
                verb(&FALLOCATES, how),
                Bytes(*offset),
                Bytes(*len)
            )
        }
        Op::Temporary { dir, to, data, fsync } => {
            let fsync = if *fsync { "fsync" } else { "-" };
            write!(f, "temporary {} {to} {data} {fsync}", At(dir))
        }
        Op::Copy {
            from,
            from_offset,
            to,
            to_offset,
            len,
        }
        | Op::CloneRange {
            from,
            from_offset,
            to,
            to_offset,
            len,
        }
        | Op::Dedupe {
            from,
            from_offset,
            to,
            to_offset,
            len,
        } => {
            let verb = match op {
                Op::Copy { .. } => "clone",
                Op::CloneRange { .. } => "clone-range",
                _ => "dedupe",
            };
            let (from_offset, to_offset) = (Bytes(*from_offset), Bytes(*to_offset));
            write!(f, "{verb} {from} {from_offset} {to} {to_offset} {}", Bytes(*len))
        }
        Op::Defrag {
            path,
            offset,
            len,
            target_bytes,
            compress,
        } => {
            let len = end((*len != u64::MAX).then_some(*len));
            let how = compress.map_or_else(|| "-".to_owned(), |how| how.to_string());
            write!(
                f,
                "defrag {path} {} {len} {} {how}",
                Bytes(*offset),
                Bytes(*target_bytes)
            )
        }
        Op::Swap { a, b, offset, len } => write!(f, "swap {a} {b} {} {}", Bytes(*offset), end(*len)),
        group => fmt_group(group, f),
    }
}

fn fmt_group(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let end = |commit: bool| if commit { "commit" } else { "abort" };
    match op {
        Op::Group { writes, commit } => {
            write!(f, "group {}", end(*commit))?;
            for Staged {
                path,
                offset,
                len,
                fill,
            } in writes
            {
                write!(f, " {path} {} {len} {fill}", Bytes(*offset))?;
            }
            Ok(())
        }
        Op::Begin {
            group,
            paths,
            by_handle,
        } => {
            let verb = if *by_handle { "begin-handle" } else { "begin" };
            write!(f, "{verb} {group} {}", paths.join(" "))
        }
        Op::Stage {
            group,
            file,
            offset,
            len,
            fill,
        } => write!(f, "stage {group} {file} {} {len} {fill}", Bytes(*offset)),
        Op::End { group, commit } => write!(f, "end {group} {}", end(*commit)),
        _ => unreachable!("printed before"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let write = Op::Write {
            path: "d/f".into(),
            offset: 4096,
            data: Data::Bytes(b"aa".to_vec()),
            how: How::Plain,
        };
        assert_eq!(Op::parse("write d/f 4k a2").unwrap(), write);
        let chmod = Op::Chmod {
            path: "f".into(),
            perm: 0o600,
        };
        assert_eq!(Op::parse("chmod f 600").unwrap(), chmod);
        assert_eq!(Op::parse("sync").unwrap(), Op::Sync);
        for line in [
            "",
            "write f",
            "sync f",
            "rename a",
            "fly f",
            "write f x a1",
            "chmod f 9",
        ] {
            assert!(Op::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn lines_are_printed_as_they_are_read() {
        for line in [
            "setx f user.a =x300",
            "setx f user.a one",
            "setx f user.a =-",
            "setx f user.a =~300:17",
            "write f 4k a100+.2k+b1",
            "write-dsync f 0 ~5000:123456789",
            "temporary p p/f ~1k:7 fsync",
            "clone-range a 0 b 4k 0",
            "defrag f 0 end 256k zstd:1",
            "defrag f 100 8k 32k -",
            "swap a b 4k end",
            "group commit a 0 100 7 b 4k 2 8",
            "begin 1 a b",
            "begin-handle 2 a",
            "stage 1 0 4k 100 7",
            "end 1 abort",
            "flags f 800000",
            "fsync .",
        ] {
            assert_eq!(Op::parse(line).unwrap().to_string(), line);
        }
    }
}

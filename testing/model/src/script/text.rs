//! Operations as lines of text: `write d/f 4k a8k`. What is printed is read as the same operation.

use anyhow::{Context as _, Result, ensure};

use super::forms::{Words, plain_verb};
use super::op::Op;

/// A whole script, on one line.
pub fn script(ops: &[Op]) -> String {
    ops.iter().map(Op::to_string).collect::<Vec<_>>().join("; ")
}

impl Op {
    pub fn parse(line: &str) -> Result<Op> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, words) = words.split_first().context("an empty line")?;
        let mut words = Words::new(verb, words);
        let op = Op::read(plain_verb(verb), &mut words).with_context(|| format!("`{line}`"))?;
        ensure!(words.is_empty(), "`{line}`: too many words");
        op.with_context(|| format!("`{line}`: no such operation"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::Data;
    use super::super::op::How;
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

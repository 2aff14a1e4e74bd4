//! How the fields of operations are written as words of a line.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow};
use cowshed_vfs::Compression;

use super::data::Data;
use super::op::{How, Kind, Prealloc, Staged};
use super::short::{bytes, count, short};

/// The words of a line, the verb apart.
pub(super) struct Words<'l> {
    verb: &'l str,
    words: std::slice::Iter<'l, &'l str>,
}

impl<'l> Words<'l> {
    pub(super) fn new(verb: &'l str, words: &'l [&'l str]) -> Self {
        let words = words.iter();
        Words { verb, words }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.len() == 0
    }

    fn next(&mut self) -> Result<&'l str> {
        self.words.next().copied().context("too few words")
    }
}

/// How a field of a type is written: most as one word, some in the verb.
pub(super) trait Form<T> {
    fn read(words: &mut Words<'_>) -> Result<T>;

    /// With a space before it.
    fn show(value: &T, f: &mut Formatter<'_>) -> fmt::Result;

    /// What the verb is by this field.
    fn verb(_: &T) -> Option<&'static str> {
        None
    }

    /// The paths in it.
    fn paths<'t>(_: &'t mut T, _: &mut Vec<&'t mut String>) {}
}

/// Forms without a value.
macro_rules! forms {
    ($($(#[$doc:meta])* $name:ident)*) => { $($(#[$doc])* pub(super) struct $name;)* };
}

forms! {
    /// Of the directory itself: `.`
    Path
    Paths
    Word
    Number
    /// A number of bytes, `100` or `8k`.
    Bytes
    /// A number of bytes, or `end` for all.
    Len
    /// The same where all is the largest number.
    Rest
    Octal
    Hex
    Letter
    /// Content in short, or `~300:17`: so many bytes that follow from a number.
    Content
    /// A word, or content where it begins with `=`.
    Value
    /// A compression, or `-`.
    Squeeze
    /// `commit` or `abort`.
    Commit
    /// `fsync` or `-`.
    Fsynced
    /// In the verb.
    Written
    /// In the verb.
    Fallocated
    /// In the verb.
    Made
}

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
const KINDS: [(&str, Kind); 3] = [("fifo", Kind::Fifo), ("char", Kind::Char), ("socket", Kind::Socket)];
const BEGINS: [(&str, bool); 2] = [("begin", false), ("begin-handle", true)];

/// The verb that stands for all that differ in one field.
pub(super) fn plain_verb(verb: &str) -> &str {
    match verb {
        verb if WRITES.iter().any(|(name, _)| *name == verb) => "write",
        verb if FALLOCATES.iter().any(|(name, _)| *name == verb) => "prealloc",
        verb if KINDS.iter().any(|(name, _)| *name == verb) => "mknod",
        "begin-handle" => "begin",
        verb => verb,
    }
}

/// Fields that are in the verb.
macro_rules! in_verb {
    ($($form:ident $ty:ty: $table:ident;)*) => {
        $(impl Form<$ty> for $form {
            fn read(words: &mut Words<'_>) -> Result<$ty> {
                let found = $table.iter().find(|(name, _)| *name == words.verb);
                found.map(|(_, value)| *value).context("no such verb")
            }

            fn show(_: &$ty, _: &mut Formatter<'_>) -> fmt::Result {
                Ok(())
            }

            fn verb(value: &$ty) -> Option<&'static str> {
                $table.iter().find(|(_, other)| other == value).map(|(name, _)| *name)
            }
        })*
    };
}

in_verb! {
    Written How: WRITES;
    Fallocated Prealloc: FALLOCATES;
    Made Kind: KINDS;
    Made bool: BEGINS;
}

/// Fields that are one word, which is read and shown so.
macro_rules! one_word {
    ($($form:ident $ty:ty: $read:expr, $show:expr;)*) => {
        $(impl Form<$ty> for $form {
            fn read(words: &mut Words<'_>) -> Result<$ty> {
                let read: fn(&str) -> Result<$ty> = $read;
                read(words.next()?)
            }

            fn show(value: &$ty, f: &mut Formatter<'_>) -> fmt::Result {
                let show: fn(&$ty) -> String = $show;
                write!(f, " {}", show(value))
            }
        })*
    };
}

one_word! {
    Word String: |word| Ok(word.into()), |word| word.clone();
    Bytes u64: count, |number| size(*number);
    Len Option<u64>: |word| Ok(if word == "end" { None } else { Some(count(word)?) }), |len| len.map_or("end".into(), size);
    Rest u64: |word| if word == "end" { Ok(u64::MAX) } else { count(word) },
        |len| if *len == u64::MAX { "end".into() } else { size(*len) };
    Octal u32: |word| Ok(u32::from_str_radix(word, 8)?), |number| format!("{number:o}");
    Hex u32: |word| Ok(u32::from_str_radix(word, 16)?), |number| format!("{number:x}");
    Letter u8: |word| word.bytes().next().context("no letter"), |letter| char::from(*letter).into();
    Content Data: data, Data::to_string;
    Value Data: value, show_value;
    Squeeze Option<Compression>: compression, |how| how.map_or("-".into(), |how| how.to_string());
    Commit bool: |word| Ok(word == "commit"), |commit| if *commit { "commit" } else { "abort" }.into();
    Fsynced bool: |word| Ok(word == "fsync"), |fsync| if *fsync { "fsync" } else { "-" }.into();
}

impl<T: FromStr + Display> Form<T> for Number
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    fn read(words: &mut Words<'_>) -> Result<T> {
        let word = words.next()?;
        word.parse().with_context(|| format!("`{word}` is no number"))
    }

    fn show(number: &T, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, " {number}")
    }
}

impl Form<String> for Path {
    fn read(words: &mut Words<'_>) -> Result<String> {
        Ok(words.next()?.into())
    }

    fn show(path: &String, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, " {}", if path.is_empty() { "." } else { path })
    }

    fn paths<'t>(path: &'t mut String, paths: &mut Vec<&'t mut String>) {
        paths.push(path);
    }
}

impl Form<Vec<String>> for Paths {
    fn read(words: &mut Words<'_>) -> Result<Vec<String>> {
        Ok(words.words.by_ref().map(|word| (*word).to_owned()).collect())
    }

    fn show(paths: &Vec<String>, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, " {}", paths.join(" "))
    }

    fn paths<'t>(all: &'t mut Vec<String>, paths: &mut Vec<&'t mut String>) {
        paths.extend(all);
    }
}

impl Form<Vec<Staged>> for Paths {
    fn read(words: &mut Words<'_>) -> Result<Vec<Staged>> {
        let mut writes = Vec::new();
        while !words.is_empty() {
            writes.push(Staged {
                path: Path::read(words)?,
                offset: Bytes::read(words)?,
                len: Number::read(words)?,
                fill: Number::read(words)?,
            });
        }
        Ok(writes)
    }

    fn show(writes: &Vec<Staged>, f: &mut Formatter<'_>) -> fmt::Result {
        let mut each = writes.iter();
        each.try_for_each(|write| write!(f, " {} {} {} {}", write.path, size(write.offset), write.len, write.fill))
    }

    fn paths<'t>(writes: &'t mut Vec<Staged>, paths: &mut Vec<&'t mut String>) {
        paths.extend(writes.iter_mut().map(|write| &mut write.path));
    }
}

/// A number of bytes in its shortest form.
fn size(count: u64) -> String {
    match count {
        count if count > 0 && count.is_multiple_of(1024) => format!("{}k", count / 1024),
        count => count.to_string(),
    }
}

fn data(text: &str) -> Result<Data> {
    let Some(fill) = text.strip_prefix('~') else {
        return bytes(text).map(Data::Bytes);
    };
    let (len, fill) = fill.split_once(':').context("no number to fill with")?;
    let (len, fill) = (count(len)? as usize, fill.parse()?);
    Ok(Data::Fill { len, fill })
}

impl Display for Data {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Data::Bytes(bytes) => f.write_str(&short(bytes, usize::MAX)),
            Data::Fill { len, fill } => write!(f, "~{}:{fill}", size(*len as u64)),
        }
    }
}

fn value(text: &str) -> Result<Data> {
    match text.strip_prefix('=') {
        Some(content) => data(content),
        None => Ok(Data::Bytes(text.into())),
    }
}

fn show_value(value: &Data) -> String {
    const WORD_BYTES_MAX: usize = 16;
    let is_word =
        |word: &[u8]| (1..=WORD_BYTES_MAX).contains(&word.len()) && word.iter().all(u8::is_ascii_alphanumeric);
    match value {
        Data::Bytes(word) if is_word(word) => String::from_utf8_lossy(word).into_owned(),
        data => format!("={data}"),
    }
}

fn compression(word: &str) -> Result<Option<Compression>> {
    match word {
        "-" => Ok(None),
        how => Ok(Some(how.parse().map_err(|error| anyhow!("{error}"))?)),
    }
}

//! What a word that is begun may become: a command, or a path on the side that it begins with.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cowshed_device::OpenMode;

use super::super::session::{Base, Session};
use super::super::side::Follow;
use super::words::{escaped, last_word};

/// The names that are shown at once at most.
const NAMES_MAX: usize = 10_000;

/// Where the last word of `line` begins, and what may stand there. `commands`: what a line may
/// begin with.
pub fn complete(base: &Base, commands: &[String], line: &str) -> (usize, Vec<String>) {
    let (start, word) = last_word(line);
    if line[..start].trim().is_empty() {
        let begun = commands.iter().filter(|name| name.starts_with(&word));
        let mut names: Vec<_> = begun.map(|name| format!("{name} ")).collect();
        names.sort_unstable();
        return (start, names);
    }
    (start, paths(base, &word))
}

/// The paths that begin with `word`. What cannot be listed has none.
fn paths(base: &Base, word: &str) -> Vec<String> {
    let at = word.rfind(['/', ':']).map_or(0, |at| at + 1);
    let (dir, begun) = word.split_at(at);
    let session = Session::new("shell", base);
    let listed = match dir {
        "" => PathBuf::from("."),
        "host:" => PathBuf::from("host:."),
        dir => PathBuf::from(dir),
    };
    let Ok(place) = session.place(&listed, OpenMode::ReadOnly) else {
        return Vec::new();
    };
    let Ok(names) = place.side.names(&place.path) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for name in names.iter().filter(|name| begins(name, begun)).take(NAMES_MAX) {
        // A name that is no text cannot be typed.
        let Some(text) = name.to_str() else { continue };
        let is_dir = place.join(name).stat(Follow::Yes).is_ok_and(|stat| stat.is_dir());
        let end = if is_dir { "/" } else { " " };
        found.push(escaped(&format!("{dir}{text}")) + end);
    }
    if "host:".starts_with(word) && !word.is_empty() {
        found.push("host:".into());
    }
    found
}

/// Hidden names are asked for by their dot.
fn begins(name: &OsStr, begun: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.starts_with(begun.as_bytes()) && (begun.starts_with('.') || !bytes.starts_with(b"."))
}

/// Where the lines of earlier shells are kept, as the XDG base directory specification says.
pub fn history_file() -> Option<PathBuf> {
    let state = match std::env::var_os("XDG_STATE_HOME") {
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME")?).join(".local/state"),
    };
    Some(state.join("cowshed/shell_history"))
}

//! `receive --dump`: one line for each command, as `btrfs receive --dump` prints it.

use std::fmt::Write as _;
use std::io::{Read, Write as _};

use anyhow::Result;
use btrfs_stream::{Command, Kind, Reader, Time};
use cowshed_vfs::Timestamp;
use uuid::Uuid;

use crate::people::time_text;

/// Columns of the name, and of the path.
const NAME_COLUMNS: usize = 16;
const PATH_COLUMNS: usize = 32;

pub fn run<R: Read>(reader: &mut Reader<R>, end_at_end: bool) -> Result<u8> {
    let mut lines = Lines::default();
    let mut out = std::io::stdout().lock();
    while let Some(item) = reader.next_command()? {
        if let Some(line) = lines.line(&item.command) {
            out.write_all(line.as_bytes())?;
            out.write_all(b"\n")?;
        }
        if end_at_end && item.command == Command::End {
            break;
        }
    }
    out.flush()?;
    Ok(0)
}

/// Bytes as text: spaces, backslashes and control characters escaped, other than ASCII as octal.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b'\x07' => text.push_str("\\a"),
            b'\x08' => text.push_str("\\b"),
            b'\x1b' => text.push_str("\\e"),
            b'\x0c' => text.push_str("\\f"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b'\x0b' => text.push_str("\\v"),
            b' ' => text.push_str("\\ "),
            b'\\' => text.push_str("\\\\"),
            0x21..=0x7e => text.push(byte.into()),
            // Writing to a string cannot fail.
            _ => drop(write!(text, "\\{byte:03o}")),
        }
    }
    text
}

/// In UTC.
fn time(time: Time) -> String {
    let text = time_text(Timestamp::new(time.secs, time.nanos), true);
    let whole = text.split('.').next().unwrap_or_default();
    format!("{}+0000", whole.replace(' ', "T"))
}

/// Makes the lines. Paths have the subvolume under way before them.
#[derive(Default)]
pub struct Lines {
    subvolume: String,
}

impl Lines {
    /// The line of a command; none for the end.
    pub fn line(&mut self, command: &Command<'_>) -> Option<String> {
        let path = escaped(command.path()?);
        let path = match command.kind() {
            Kind::Subvol | Kind::Snapshot => {
                self.subvolume = format!("./{path}");
                self.subvolume.clone()
            }
            _ => format!("{}/{path}", self.subvolume),
        };
        let line = format!("{:<NAME_COLUMNS$}{path}", command.kind().name());
        let details = self.details(command);
        if details.is_empty() {
            return Some(line);
        }
        let gap = PATH_COLUMNS.saturating_sub(path.len()).max(1);
        Some(format!("{line}{:gap$}{details}", ""))
    }

    /// A path of the subvolume under way.
    fn within(&self, path: &[u8]) -> String {
        format!("{}/{}", self.subvolume, escaped(path))
    }

    fn details(&self, command: &Command<'_>) -> String {
        match *command {
            Command::Subvol { uuid, ctransid, .. } => format!("uuid={} transid={ctransid}", Uuid::from_bytes(uuid)),
            Command::Snapshot {
                uuid,
                ctransid,
                clone_uuid,
                clone_ctransid,
                ..
            } => format!(
                "uuid={} transid={ctransid} parent_uuid={} parent_transid={clone_ctransid}",
                Uuid::from_bytes(uuid),
                Uuid::from_bytes(clone_uuid)
            ),
            Command::Mknod { node, .. } => format!("mode={:o} dev=0x{:x}", node.mode, node.rdev),
            Command::Symlink { target, .. } => format!("dest={}", escaped(target)),
            Command::Rename { to, .. } => format!("dest={}", self.within(to)),
            Command::Link { existing, .. } => format!("dest={}", escaped(existing)),
            Command::SetXattr { name, data, .. } => {
                format!("name={} data={} len={}", escaped(name), escaped(data), data.len())
            }
            Command::RemoveXattr { name, .. } => format!("name={}", escaped(name)),
            Command::Write { offset, data, .. } => format!("offset={offset} len={}", data.len()),
            Command::Clone {
                offset,
                len,
                clone_path,
                clone_offset,
                ..
            } => {
                let from = self.within(clone_path);
                format!("offset={offset} len={len} from={from} clone_offset={clone_offset}")
            }
            Command::Truncate { size, .. } => format!("size={size}"),
            Command::Chmod { mode, .. } => format!("mode={mode:o}"),
            Command::Chown { uid, gid, .. } => format!("gid={gid} uid={uid}"),
            Command::Utimes {
                atime, mtime, ctime, ..
            } => format!("atime={} mtime={} ctime={}", time(atime), time(mtime), time(ctime)),
            Command::UpdateExtent { offset, len, .. } => format!("offset={offset} len={len}"),
            Command::Fallocate { mode, offset, len, .. } => format!("mode={mode} offset={offset} len={len}"),
            Command::Fileattr { flags, .. } => format!("fileattr=0x{flags:x}"),
            Command::EncodedWrite {
                offset,
                unencoded_file_len,
                unencoded_len,
                unencoded_offset,
                compression,
                encryption,
                data,
                ..
            } => format!(
                "offset={offset} len={}, unencoded_file_len={unencoded_file_len}, unencoded_len={unencoded_len}, \
                 unencoded_offset={unencoded_offset}, compression={}, encryption={}",
                data.len(),
                compression.unwrap_or(0),
                encryption.unwrap_or(0)
            ),
            Command::Mkfile { .. }
            | Command::Mkdir { .. }
            | Command::Mkfifo { .. }
            | Command::Mksock { .. }
            | Command::Unlink { .. }
            | Command::Rmdir { .. }
            | Command::End => String::new(),
        }
    }
}

//! What must hold for any input. Shared with the fuzz target.

use btrfs_stream::{Command, Error, Reader, Version, Writer};

/// Reads a stream to its end or its first error. What was read can be written, and reads the same.
pub fn exercise(input: &[u8]) -> Option<Error> {
    let mut reader = Reader::new(input);
    loop {
        let version = reader.version();
        match reader.next_command() {
            Ok(None) => return None,
            Err(error) => {
                // The message can be printed.
                let _ = error.to_string();
                return Some(error);
            }
            Ok(Some(item)) => {
                let command = item.command;
                let kept = again(&command, version.unwrap_or(command.kind().since()));
                assert!(kept, "{command:?} does not read as it was written");
            }
        }
    }
}

/// The same bytes as one command after another, each with a right checksum: a byte for the number
/// and two for the length, as far as there is as much.
#[allow(dead_code, reason = "for the fuzz target")]
pub fn sealed(mut bytes: &[u8]) -> Vec<u8> {
    let mut stream = b"btrfs-stream\0\x02\0\0\0".to_vec();
    while let Some((&[number, low, high], rest)) = bytes.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (payload, rest) = rest.split_at(len);
        let head = [&(len as u32).to_le_bytes()[..], &[number % 32, 0, 0, 0, 0, 0]].concat();
        let crc = !crc32c::crc32c_append(crc32c::crc32c_append(!0, &head), payload);
        stream.extend_from_slice(&head[..6]);
        stream.extend_from_slice(&crc.to_le_bytes());
        stream.extend_from_slice(payload);
        bytes = rest;
    }
    stream
}

/// Writes a command and reads it.
pub fn again(command: &Command<'_>, version: Version) -> bool {
    let otime = matches!(command, Command::Utimes { otime: Some(_), .. });
    let version = if otime { Version::V2 } else { version };
    let mut writer = Writer::new(Vec::new(), version).unwrap();
    writer.write(command).unwrap();
    let bytes = writer.into_inner();
    let mut reader = Reader::new(&bytes[..]);
    reader.next_command().unwrap().unwrap().command == *command
}

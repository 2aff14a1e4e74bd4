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

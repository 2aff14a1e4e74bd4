//! What the kernel says while a test runs.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};

/// The most bytes of one record.
const RECORD_BYTES_MAX: usize = 8192;

/// What the kernel says of a volume's kind, not of its state: deprecated or young features.
const ADVICE: [&str; 3] = ["deprecated", "experimental", "EXPERIMENTAL"];

/// The kernel's messages from its making on.
#[derive(Debug)]
pub struct KernelLog(File);

impl KernelLog {
    pub fn start() -> Result<KernelLog> {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg");
        let mut file = opened.context("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(KernelLog(file))
    }

    /// The messages since the start or the last call: level and text.
    pub fn take(&mut self) -> Result<Vec<(u8, String)>> {
        let mut buf = [0; RECORD_BYTES_MAX];
        let mut messages = Vec::new();
        loop {
            match self.0.read(&mut buf) {
                Ok(0) => return Ok(messages),
                Ok(len) => {
                    let record = String::from_utf8_lossy(&buf[..len]);
                    let (head, text) = record.split_once(';').unwrap_or(("6", &record));
                    let priority: u32 = head.split(',').next().and_then(|p| p.parse().ok()).unwrap_or(6);
                    let text = text.lines().next().unwrap_or_default().to_string();
                    messages.push(((priority % 8) as u8, text));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(messages),
                // Some were overwritten: go on.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) => return Err(error).context("/dev/kmsg"),
            }
        }
    }

    /// Warnings and worse that name one of the devices (`loop3`), since the start or the last call;
    /// advice against the volume's features is none.
    pub fn take_complaints(&mut self, devices: &[&str]) -> Result<Vec<String>> {
        const WARNING: u8 = 4;
        let names = |text: &str| {
            text.split(|c: char| !c.is_ascii_alphanumeric())
                .any(|word| devices.contains(&word))
        };
        let advises = |text: &str| ADVICE.iter().any(|advice| text.contains(advice));
        let messages = self.take()?.into_iter();
        Ok(messages
            .filter(|(level, text)| *level <= WARNING && names(text) && !advises(text))
            .map(|m| m.1)
            .collect())
    }
}

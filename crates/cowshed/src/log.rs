//! Where messages go: the terminal in the foreground; a file or the system's log from the
//! background.

use std::io::{self, IsTerminal as _, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

fn filter(verbose: u8) -> EnvFilter {
    let default = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    EnvFilter::try_from_env("COWSHED_LOG").unwrap_or_else(|_| EnvFilter::new(default))
}

/// Messages to standard error.
pub fn to_terminal(verbose: u8) {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .try_init();
}

/// Messages to a file, with times.
pub fn to_file(path: &Path, verbose: u8) -> Result<()> {
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("log file {}", path.display()))?;
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose))
        .with_writer(Mutex::new(file))
        .with_ansi(false)
        .with_target(false)
        .try_init();
    Ok(())
}

/// Messages to the system's log, where there is one.
pub fn to_syslog(verbose: u8) {
    let socket = UnixDatagram::unbound()
        .and_then(|s| s.connect("/dev/log").map(|()| s))
        .ok();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose))
        .with_writer(Syslog(socket))
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .try_init();
}

/// Sends each message as one datagram in the form of RFC 3164.
#[derive(Debug)]
struct Syslog(Option<UnixDatagram>);

struct Message<'a> {
    socket: Option<&'a UnixDatagram>,
    priority: u8,
}

impl Write for Message<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(socket) = self.socket {
            let head = format!("<{}>cowshed[{}]: ", self.priority, std::process::id());
            // A log that is gone must not stop a file system.
            let _ = socket.send(&[head.as_bytes(), bytes].concat());
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Facility "daemon" in the upper bits, severity in the lower three.
fn priority(level: tracing::Level) -> u8 {
    const DAEMON: u8 = 3 << 3;
    let severity = match level {
        tracing::Level::ERROR => 3,
        tracing::Level::WARN => 4,
        tracing::Level::INFO => 6,
        _ => 7,
    };
    DAEMON | severity
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Message<'a>;
    fn make_writer(&'a self) -> Message<'a> {
        Message {
            socket: self.0.as_ref(),
            priority: priority(tracing::Level::INFO),
        }
    }
    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Message<'a> {
        Message {
            socket: self.0.as_ref(),
            priority: priority(*meta.level()),
        }
    }
}

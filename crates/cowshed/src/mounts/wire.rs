//! What is said over the socket of a volume: one message a packet, as JSON, with a descriptor where
//! it says so.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Of both sides: what is not the same is refused.
pub const VERSION: u32 = 2;
/// Longest message, in bytes: paths and options.
const MESSAGE_BYTES_MAX: usize = 128 << 10;
/// How long the other side may take.
pub const ANSWER_MAX: Duration = Duration::from_secs(120);
/// A piece of a text, in bytes: JSON has up to six for one.
const PIECE_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 8;
/// Between two looks whether sending has a point still.
const PATIENCE: Duration = Duration::from_secs(1);
const BACKLOG: i32 = 64;

/// To the process that has the volume.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Prepare a mount. Answers: `Prepared`, `Refused`, `Ended`.
    Mount(MountRequest),
    /// What was prepared is mounted; comes with its `/dev/fuse`. Answers: `Ready`, `Refused`. The
    /// connection ends with the mount.
    Mounted {
        target: PathBuf,
        /// Number of the device, as mount tables have it.
        device: Option<String>,
        is_block_device: bool,
    },
    /// Answer: `Sessions`.
    Sessions,
    /// Play a stream of `btrfs send`; comes with a descriptor to read it from. Answers: `Refused`,
    /// and then nothing was read; or `Begun`, any number of `Piece` and `Said`, and `Received`.
    Receive(ReceiveRequest),
}

/// How a stream is to be played.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReceiveRequest {
    pub version: u32,
    /// The directory to receive into, from the top level.
    pub dir: Vec<u8>,
    pub end_at_end: bool,
    pub errors_max: u64,
    pub quiet: bool,
    pub verbose: bool,
}

/// A mount as it was asked for.
#[derive(Debug, Serialize, Deserialize)]
pub struct MountRequest {
    pub version: u32,
    /// The arguments of `-o`.
    pub options: Vec<String>,
    pub read_only: bool,
    pub allow_other: bool,
    /// All devices that were named.
    pub devices: Vec<PathBuf>,
    /// Where the log is to go, as an absolute path.
    pub log: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Prepared {
        /// Block size of the file system.
        block_bytes: u32,
    },
    Ready,
    /// In words.
    Refused(String),
    /// The last mount is ending. The connection ends when the volume is free.
    Ended,
    /// Device numbers of the mounts that are served.
    Sessions(Vec<String>),
    /// The stream is being read.
    Begun,
    /// What goes before the text of the next `Said` or `Received`.
    Piece(String),
    /// A line for the user.
    Said(String),
    /// The end of a stream: was it received without errors? Or what ended it.
    Received(Result<bool, String>),
}

/// One side of a connection.
#[derive(Debug)]
pub struct Connection(OwnedFd);

fn socket() -> io::Result<OwnedFd> {
    Ok(net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// A socket that listens at a path, in place of one that is there.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = socket()?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

impl Connection {
    /// Connects to the process that listens at a path.
    ///
    /// # Errors
    /// `ConnectionRefused` and `NotFound`: there is none.
    pub fn to(path: &Path) -> io::Result<Connection> {
        let socket = socket()?;
        net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Connection::new(socket)
    }

    /// The next connection that is made to a listening socket.
    pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Connection> {
        Connection::new(net::accept_with(listener, SocketFlags::CLOEXEC)?)
    }

    fn new(socket: OwnedFd) -> io::Result<Connection> {
        let connection = Connection(socket);
        connection.set_limit(Some(ANSWER_MAX))?;
        sockopt::set_socket_timeout(&connection.0, sockopt::Timeout::Send, Some(ANSWER_MAX))?;
        Ok(connection)
    }

    /// Sends for as long as the other side takes to read, unless `is_over` says otherwise, which is
    /// asked each second.
    pub fn send_patiently<T: Serialize>(&self, message: &T, is_over: &dyn Fn() -> bool) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, Some(PATIENCE))?;
        loop {
            match self.send(message, None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_over() => {}
                sent => return sent,
            }
        }
    }

    /// Sends a text, the last piece of it as `message`. A packet cannot have all of a long one.
    pub fn send_text(&self, text: &str, message: fn(String) -> Answer, is_over: &dyn Fn() -> bool) -> io::Result<()> {
        let mut rest = text;
        while rest.len() > PIECE_BYTES_MAX {
            let is_boundary = |at: &usize| rest.is_char_boundary(*at);
            let at = (0..=PIECE_BYTES_MAX).rev().find(is_boundary).unwrap_or(rest.len());
            let (piece, behind) = rest.split_at(at);
            self.send_patiently(&Answer::Piece(piece.to_owned()), is_over)?;
            rest = behind;
        }
        self.send_patiently(&message(rest.to_owned()), is_over)
    }

    /// How long [`Connection::receive`] waits.
    pub fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, limit)?)
    }

    /// The user and the process at the other end, when it connected or began to listen.
    pub fn peer(&self) -> io::Result<(u32, i32)> {
        let peer = sockopt::socket_peercred(&self.0)?;
        Ok((peer.uid.as_raw(), peer.pid.as_raw_nonzero().get()))
    }

    /// The group of the process at the other end.
    pub fn peer_group(&self) -> io::Result<u32> {
        Ok(sockopt::socket_peercred(&self.0)?.gid.as_raw())
    }

    pub fn send<T: Serialize>(&self, message: &T, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fd.into_iter().collect();
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message, and the descriptor that came with it; `None` at the end of the connection.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let iov = &mut [IoSliceMut::new(&mut bytes)];
            match net::recvmsg(&self.0, iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                got => break got?.bytes,
            }
        };
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        if got == 0 {
            return Ok(None);
        }
        Ok(Some((serde_json::from_slice(&bytes[..got])?, fd)))
    }

    /// Waits for the end of the connection, whatever comes before.
    pub fn wait_for_end(&self) -> io::Result<()> {
        self.set_limit(None)?;
        while self.receive::<serde_json::Value>()?.is_some() {}
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_and_the_end_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert_eq!(Connection::to(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = listen(&path).unwrap();
        let client = Connection::to(&path).unwrap();
        let server = Connection::accept(listener.as_fd()).unwrap();
        let (uid, pid) = server.peer().unwrap();
        assert_eq!(uid, rustix::process::geteuid().as_raw());
        assert_eq!(pid, std::process::id() as i32);
        let file = dir.path().join("file");
        std::fs::write(&file, b"content").unwrap();
        let file = std::fs::File::open(&file).unwrap();
        client.send(&Request::Sessions, Some(file.as_fd())).unwrap();
        client.send(&Request::Sessions, None).unwrap();
        let (request, fd) = server.receive::<Request>().unwrap().unwrap();
        assert!(matches!(request, Request::Sessions));
        let mut text = String::new();
        std::fs::File::from(fd.unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        assert!(server.receive::<Request>().unwrap().unwrap().1.is_none());
        drop(client);
        assert!(server.receive::<Request>().unwrap().is_none());
        drop((server, listener));
        let refused = Connection::to(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        listen(&path).unwrap();
    }
}

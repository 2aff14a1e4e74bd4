//! The transport over `/dev/fuse`: one `read` per request, one `writev` per reply.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::{Immutable, IntoBytes};

use crate::proto::wire::{InHeader, MIN_READ_BUFFER_BYTES, OutHeader, WriteIn};
use crate::server::Reply;
use crate::sys;

const DEVICE: &str = "/dev/fuse";
const PAGE_BYTES: usize = 4096;
/// The largest value of an extended attribute that Linux passes on.
const XATTR_BYTES_MAX: usize = 65536;
/// Room for everything in a request but the data of a write: header, structure, two names or an
/// extended attribute's value.
const OVERHEAD_BYTES: usize = PAGE_BYTES;

/// An open `/dev/fuse`, part of a session.
#[derive(Debug)]
pub struct Device {
    file: Arc<File>,
    /// Another one that does not block, for looking without sleeping. Sleeping is left to `read` on
    /// the first one: the kernel wakes one reader for a request, but all threads that poll.
    quick: Option<Arc<File>>,
    /// The last request came by the quick one: its reply goes there too.
    came_quick: bool,
}

/// By which of a device's files a request came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Road {
    is_quick: bool,
}

/// What came of waiting for a request.
#[derive(Debug)]
pub enum Received {
    /// A request of so many bytes lies in the buffer.
    Request(usize),
    /// The file system was unmounted: nothing will come any more.
    Unmounted,
    /// The connection was aborted (through `/sys/fs/fuse/connections`): nothing will come any more,
    /// but the mount is still there.
    Aborted,
}

impl Device {
    /// Opens a device that belongs to no session yet.
    pub fn open() -> io::Result<Device> {
        let file = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        Ok(Device {
            file: Arc::new(file),
            quick: None,
            came_quick: false,
        })
    }

    /// Opens one more device for the session of this one. Each has its own list of requests under
    /// way, so that threads do not get into each other's way; the requests to come are shared.
    pub fn try_clone(&self) -> io::Result<Device> {
        let fresh = Device::open()?;
        sys::clone_device(&fresh.file, self.file.as_fd())?;
        Ok(fresh)
    }

    /// What a session is known by to the kernel.
    pub(crate) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The kernel has neither unmounted nor aborted what the device serves.
    pub fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&*self.file, PollFlags::empty())];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(_) => !fds[0].revents().contains(PollFlags::ERR),
            Err(_) => true,
        }
    }

    /// Prepares for [`Device::look`]. Not possible where devices cannot be cloned.
    pub fn enable_looking(&mut self) -> io::Result<()> {
        let quick = self.try_clone()?.file;
        sys::set_nonblocking(quick.as_fd())?;
        self.quick = Some(quick);
        Ok(())
    }

    /// Looks whether a request is queued. Finds none unless that was enabled.
    pub fn look(&mut self, buffer: &mut RequestBuffer) -> io::Result<Option<Received>> {
        if self.quick.is_none() {
            return Ok(None);
        }
        self.came_quick = true;
        self.read(buffer)
    }

    /// Waits for a request, asleep.
    pub fn receive(&mut self, buffer: &mut RequestBuffer) -> io::Result<Received> {
        self.came_quick = false;
        loop {
            if let Some(received) = self.read(buffer)? {
                return Ok(received);
            }
        }
    }

    /// The road that the last request came by.
    pub fn road(&self) -> Road {
        Road {
            is_quick: self.came_quick,
        }
    }

    /// The next reply belongs to a request that came by this road.
    pub fn take(&mut self, road: Road) {
        self.came_quick = road.is_quick;
    }

    /// The file that the request under way belongs to.
    fn current(&self) -> &Arc<File> {
        self.quick.as_ref().filter(|_| self.came_quick).unwrap_or(&self.file)
    }

    /// One attempt; None if it is to be repeated.
    fn read(&self, buffer: &mut RequestBuffer) -> io::Result<Option<Received>> {
        let mut file = &**self.current();
        received(|| file.read(buffer.space()))
    }

    /// Sends a reply. A request whose caller has stopped waiting is no error.
    pub fn send(&self, reply: &Reply<'_>) -> io::Result<()> {
        self.sender().send(reply)
    }

    /// Sends the reply to the request under way, at any time and from any thread.
    pub fn sender(&self) -> Sender {
        Sender(self.current().clone())
    }

    /// Sends a notification: its code, a structure, a name.
    pub fn notify<T: IntoBytes + Immutable>(&self, code: i32, body: &T, name: &[&[u8]]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + size_of::<T>() + name.iter().map(|n| n.len()).sum::<usize>();
        let header = OutHeader {
            len: len as u32,
            error: code,
            unique: 0,
        };
        let name = name.concat();
        self.sender().write(&[
            IoSlice::new(header.as_bytes()),
            IoSlice::new(body.as_bytes()),
            IoSlice::new(&name),
        ])
    }
}

/// Sends the reply to one request, through the file that the request was read from: the kernel
/// knows it there alone.
#[derive(Debug)]
pub struct Sender(Arc<File>);

impl Sender {
    /// See [`Device::send`].
    pub fn send(&self, reply: &Reply<'_>) -> io::Result<()> {
        let header = reply.header();
        let (head, data) = reply.body();
        let result = if data.is_empty() {
            self.send_small(&header, head)
        } else {
            self.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(head), IoSlice::new(data)])
        };
        match result {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED)) => Ok(()),
            other => other,
        }
    }

    /// One piece instead of two is cheaper for the kernel to take.
    fn send_small(&self, header: &OutHeader, head: &[u8]) -> io::Result<()> {
        const HEADER: usize = size_of::<OutHeader>();
        let mut bytes = [0; 512];
        let len = HEADER + head.len();
        bytes[..HEADER].copy_from_slice(header.as_bytes());
        bytes[HEADER..len].copy_from_slice(head);
        (&*self.0).write(&bytes[..len]).map(drop)
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        (&*self.0).write_vectored(parts).map(drop)
    }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Device {
        Device {
            file: Arc::new(File::from(fd)),
            quick: None,
            came_quick: false,
        }
    }
}

/// Where requests land: placed so that the data of a write begins on a page boundary.
#[derive(Debug)]
pub struct RequestBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl RequestBuffer {
    /// For writes of up to `io_bytes_max`, and for extended attributes of any size.
    pub fn new(io_bytes_max: usize) -> RequestBuffer {
        let len = io_bytes_max.max(XATTR_BYTES_MAX) + OVERHEAD_BYTES;
        const { assert!(XATTR_BYTES_MAX >= MIN_READ_BUFFER_BYTES) };
        let bytes = vec![0; len + PAGE_BYTES];
        let before_data = size_of::<InHeader>() + size_of::<WriteIn>();
        let data_at = bytes.as_ptr().addr() + before_data;
        let start = data_at.next_multiple_of(PAGE_BYTES) - data_at;
        RequestBuffer { bytes, start, len }
    }

    fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// The request that [`Device::receive`] read.
    pub fn request(&self, bytes: usize) -> &[u8] {
        &self.bytes[self.start..self.start + bytes.min(self.len)]
    }
}

/// Where the bulk of replies is made: page-aligned.
#[derive(Debug)]
pub struct DataBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl DataBuffer {
    pub fn new(len: usize) -> DataBuffer {
        let bytes = vec![0; len + PAGE_BYTES];
        let at = bytes.as_ptr().addr();
        DataBuffer {
            start: at.next_multiple_of(PAGE_BYTES) - at,
            bytes,
            len,
        }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// What an attempt to read says; None if it is to be repeated.
fn received(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<Option<Received>> {
    let mut result = read();
    // A request that was being taken when the connection ended ends in this, too, however it ended:
    // the next attempt tells.
    if is_aborted(&result) {
        result = read();
    }
    let error = match result {
        Ok(bytes) => return Ok(Some(Received::Request(bytes))),
        Err(error) => error,
    };
    match error.raw_os_error() {
        // ENOENT: the request was taken back while it was read.
        Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => Ok(None),
        Some(libc::ENODEV) => Ok(Some(Received::Unmounted)),
        Some(libc::ECONNABORTED) => Ok(Some(Received::Aborted)),
        _ => Err(error),
    }
}

fn is_aborted(result: &io::Result<usize>) -> bool {
    matches!(result, Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of these answers to `read`, all of which are asked for.
    fn received_of(answers: &[Result<usize, i32>]) -> String {
        let mut left = answers.iter();
        let read = || {
            let answer = left.next().expect("no more is read than that");
            answer.map_err(io::Error::from_raw_os_error)
        };
        let result = match received(read) {
            Ok(Some(received)) => format!("{received:?}"),
            Ok(None) => "again".into(),
            Err(error) => format!("error {:?}", error.raw_os_error()),
        };
        assert_eq!(left.len(), 0, "{answers:?}: {result} too early");
        result
    }

    #[test]
    fn an_unmounted_connection_is_not_an_aborted_one() {
        use libc::{EAGAIN, ECONNABORTED, EINTR, EIO, ENODEV, ENOENT};
        assert_eq!(received_of(&[Ok(80)]), "Request(80)");
        for again in [EINTR, EAGAIN, ENOENT] {
            assert_eq!(received_of(&[Err(again)]), "again");
            assert_eq!(received_of(&[Err(ECONNABORTED), Err(again)]), "again");
        }
        assert_eq!(received_of(&[Err(ENODEV)]), "Unmounted");
        // A request that was being taken when the file system was unmounted.
        assert_eq!(received_of(&[Err(ECONNABORTED), Err(ENODEV)]), "Unmounted");
        assert_eq!(received_of(&[Err(ECONNABORTED), Err(ECONNABORTED)]), "Aborted");
        assert_eq!(received_of(&[Err(ECONNABORTED), Ok(80)]), "Request(80)");
        assert_eq!(received_of(&[Err(EIO)]), format!("error {:?}", Some(EIO)));
    }

    #[test]
    fn write_data_and_reply_data_are_page_aligned() {
        let mut buffer = RequestBuffer::new(1 << 20);
        assert_eq!((buffer.space().as_ptr().addr() + 80) % PAGE_BYTES, 0);
        assert_eq!(buffer.space().len(), (1 << 20) + 4096);
        assert_eq!(RequestBuffer::new(4096).space().len(), 65536 + 4096);
        assert_eq!(DataBuffer::new(5000).as_mut_slice().as_ptr().addr() % PAGE_BYTES, 0);
    }
}

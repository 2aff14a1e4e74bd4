//! One entry of a queue of FUSE over io_uring: memory for one request and its reply, and the ring
//! that carries its command to the kernel and back.
//!
//! ```text
//!   new --register--> with the kernel --wait--> with us --reply--> with the kernel --wait--> ...
//! ```
//!
//! The kernel reads and writes the memory only inside system calls of the thread that has the ring
//! (`IORING_SETUP_DEFER_TASKRUN`): while [`Entry::wait`] runs. So nothing is shared with it while
//! a request is served, and the memory can be freed when the thread has stopped.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::{FromBytes, IntoBytes};

use super::command::Command;
use super::ring::Ring;
use crate::proto::wire::{InHeader, OutHeader, URING_AREA_BYTES, UringCmdReq, UringEntInOut, uring};

const PAGE_BYTES: usize = 4096;
/// Header, structure, and what belongs to the entry.
const HEADER_BYTES: usize = 2 * URING_AREA_BYTES + size_of::<UringEntInOut>();

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    Request,
    /// The mount is gone, or the connection was aborted.
    Ended,
}

/// Memory that the kernel knows by its address.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Memory {}

impl Memory {
    fn new(len: usize) -> io::Result<Memory> {
        // SAFETY: a new anonymous mapping, at an address that the kernel chooses.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { start, len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes long, initialised (with zeros), and lives as long as
        // `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// See the module.
pub struct Entry {
    ring: Ring,
    /// The header's page, then the payload.
    memory: Memory,
    /// The two parts of `memory`, read by the kernel when the entry is registered.
    parts: Box<[libc::iovec; 2]>,
    queue: u16,
    /// The session's `/dev/fuse`, from `register` on.
    device: Option<Arc<File>>,
}

// SAFETY: `parts` points into `memory`, which the entry has.
unsafe impl Send for Entry {}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// A request as it lies in an entry.
pub struct Parts<'e> {
    pub header: InHeader,
    /// The fixed structure of the operation, longer than that.
    pub fixed: [u8; URING_AREA_BYTES],
    /// So much of the payload belongs to the request.
    pub payload_bytes: usize,
    /// Names and data of the request, then room for the reply.
    pub payload: &'e mut [u8],
}

impl Entry {
    /// An entry with room for this much payload, that no kernel knows yet.
    ///
    /// # Errors
    /// io_uring is not there, is forbidden, or has too little memory or descriptors.
    pub fn new(queue: u16, payload_bytes: usize) -> io::Result<Entry> {
        let ring = Ring::new()?;
        let memory = Memory::new(PAGE_BYTES + payload_bytes)?;
        let start = memory.start.as_ptr();
        let parts = Box::new([
            libc::iovec {
                iov_base: start.cast(),
                iov_len: HEADER_BYTES,
            },
            libc::iovec {
                iov_base: start.wrapping_add(PAGE_BYTES).cast(),
                iov_len: payload_bytes,
            },
        ]);
        Ok(Entry {
            ring,
            memory,
            parts,
            queue,
            device: None,
        })
    }

    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Registers the entry with the kernel, which may give it a request from here on. The entry
    /// belongs to the calling thread from now on.
    ///
    /// # Errors
    /// The ring cannot be enabled or used. That the kernel refused the entry is reported by
    /// [`Entry::wait`].
    pub fn register(&mut self, device: Arc<File>) -> io::Result<()> {
        self.ring.enable()?;
        let command = self.command(uring::REGISTER, 0, device.as_raw_fd());
        self.device = Some(device);
        self.push(&command)?;
        self.ring.submit()
    }

    /// Sends a command that does not exist. The kernel refuses it: with EOPNOTSUPP where it serves
    /// the session of this device by `/dev/fuse`, else with another error.
    ///
    /// # Errors
    /// The kernel's, or that the command cannot be sent.
    pub fn probe(session: &File) -> io::Result<Arrived> {
        let mut entry = Entry::new(0, 0)?;
        entry.ring.enable()?;
        let command = entry.command(uring::INVALID, 0, session.as_raw_fd());
        entry.push(&command)?;
        entry.wait()
    }

    fn command(&self, code: u32, commit_id: u64, device: i32) -> Command {
        let request = UringCmdReq {
            commit_id,
            qid: self.queue,
            ..Default::default()
        };
        let mut bytes = [0; 80];
        bytes[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
        Command {
            device,
            code,
            bytes,
            parts: self.parts.as_ptr().expose_provenance() as u64,
            parts_len: self.parts.len() as u32,
        }
    }

    fn push(&mut self, command: &Command) -> io::Result<()> {
        // SAFETY: the command points to `parts` and through it to `memory`; both live as long as
        // the ring.
        unsafe { self.ring.push(command) }
    }

    /// Sends the reply that [`Entry::reply`] prepared, if there is one, and waits for a request.
    ///
    /// # Errors
    /// The kernel refused the entry or the reply.
    pub fn wait(&mut self) -> io::Result<Arrived> {
        match -self.ring.wait()? {
            0 => Ok(Arrived::Request),
            libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => Ok(Arrived::Ended),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn in_out(&self) -> UringEntInOut {
        let bytes = &self.memory.bytes()[2 * URING_AREA_BYTES..];
        UringEntInOut::read_from_prefix(bytes).map_or_else(|_| UringEntInOut::default(), |(value, _)| value)
    }

    /// The request that [`Entry::wait`] found.
    pub fn request(&mut self) -> Parts<'_> {
        let payload_bytes = self.in_out().payload_sz as usize;
        let (page, payload) = self.memory.bytes_mut().split_at_mut(PAGE_BYTES);
        let header = InHeader::read_from_prefix(page).map_or_else(|_| InHeader::default(), |(value, _)| value);
        let mut fixed = [0; URING_AREA_BYTES];
        fixed.copy_from_slice(&page[URING_AREA_BYTES..2 * URING_AREA_BYTES]);
        Parts {
            header,
            fixed,
            payload_bytes: payload_bytes.min(payload.len()),
            payload,
        }
    }

    /// The reply is this header and so much of the payload. It goes with the next [`Entry::wait`].
    ///
    /// # Errors
    /// The entry was never registered.
    pub fn reply(&mut self, header: &OutHeader, payload_bytes: usize) -> io::Result<()> {
        let device = self.device.as_ref().ok_or(io::ErrorKind::NotConnected)?.as_raw_fd();
        let in_out = UringEntInOut {
            payload_sz: payload_bytes as u32,
            ..self.in_out()
        };
        let page = self.memory.bytes_mut();
        page[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        page[2 * URING_AREA_BYTES..HEADER_BYTES].copy_from_slice(in_out.as_bytes());
        let command = self.command(uring::COMMIT_AND_FETCH, in_out.commit_id, device);
        self.push(&command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_apart_and_a_reply_put_together() {
        let Ok(mut entry) = Entry::new(3, 8192) else {
            eprintln!("skipped: io_uring is not allowed here");
            return;
        };
        assert_eq!((entry.queue(), entry.parts[1].iov_len), (3, 8192));
        let header = InHeader {
            opcode: 1,
            unique: 7,
            ..Default::default()
        };
        let in_out = UringEntInOut {
            commit_id: 9,
            payload_sz: 5,
            ..Default::default()
        };
        let memory = entry.memory.bytes_mut();
        memory[..40].copy_from_slice(header.as_bytes());
        memory[128] = 0xab;
        memory[256..288].copy_from_slice(in_out.as_bytes());
        memory[PAGE_BYTES..][..5].copy_from_slice(b"name\0");
        let parts = entry.request();
        assert_eq!((parts.header, parts.fixed[0], parts.payload_bytes), (header, 0xab, 5));
        assert_eq!((parts.payload.len(), &parts.payload[..5]), (8192, &b"name\0"[..]));
        let reply = OutHeader {
            len: 16,
            error: -2,
            unique: 7,
        };
        assert!(entry.reply(&reply, 0).is_err(), "no device");
    }
}

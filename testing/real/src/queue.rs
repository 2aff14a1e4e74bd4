//! Writes that are under way while their caller goes on: io_uring, and io_submit of Linux. Apart
//! from `raw.rs`, the only unsafe code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd as _;

use io_uring::{IoUring, opcode, types};

/// What O_DIRECT asks of offsets, lengths and addresses.
const ALIGN_BYTES: usize = 4096;

/// Buffers of one size, aligned for O_DIRECT, one for each slot of a queue.
pub struct Buffers {
    bytes: Vec<u8>,
    start: usize,
    each_bytes: usize,
}

impl Buffers {
    pub fn new(slots: usize, each_bytes: usize) -> Self {
        let bytes = vec![0; slots * each_bytes + ALIGN_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGN_BYTES);
        Self {
            bytes,
            start,
            each_bytes,
        }
    }

    pub fn slot(&mut self, slot: usize) -> &mut [u8] {
        let start = self.start + slot * self.each_bytes;
        &mut self.bytes[start..start + self.each_bytes]
    }
}

/// Which interface of Linux the writes go through.
enum Kind {
    Uring(Box<IoUring>),
    Submit(SubmitContext),
}

/// Writes of one file, each from the buffer of its slot. A slot has one write under way at most.
pub struct Queue<'f> {
    file: &'f File,
    kind: Kind,
    buffers: Buffers,
    is_busy: Vec<bool>,
}

impl<'f> Queue<'f> {
    pub fn uring(file: &'f File, slots: usize, each_bytes: usize) -> Result<Self> {
        let entries = u32::try_from(slots).expect("few slots");
        Ok(Self::new(
            file,
            Kind::Uring(Box::new(IoUring::new(entries)?)),
            slots,
            each_bytes,
        ))
    }

    pub fn submit(file: &'f File, slots: usize, each_bytes: usize) -> Result<Self> {
        Ok(Self::new(
            file,
            Kind::Submit(SubmitContext::new(slots)?),
            slots,
            each_bytes,
        ))
    }

    fn new(file: &'f File, kind: Kind, slots: usize, each_bytes: usize) -> Self {
        Self {
            file,
            kind,
            buffers: Buffers::new(slots, each_bytes),
            is_busy: vec![false; slots],
        }
    }

    /// A slot without a write, if there is one.
    pub fn free_slot(&self) -> Option<usize> {
        self.is_busy.iter().position(|busy| !busy)
    }

    pub fn is_idle(&self) -> bool {
        !self.is_busy.contains(&true)
    }

    /// Fills the buffer of a free slot and begins to write its first `len` bytes.
    pub fn write(&mut self, slot: usize, offset: u64, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        assert!(
            !std::mem::replace(&mut self.is_busy[slot], true),
            "a slot has one write"
        );
        let buffer = &mut self.buffers.slot(slot)[..len];
        fill(buffer);
        match &mut self.kind {
            Kind::Uring(ring) => {
                let fd = types::Fd(self.file.as_raw_fd());
                let entry = opcode::Write::new(fd, buffer.as_ptr(), u32::try_from(len).expect("a small write"))
                    .offset(offset)
                    .build()
                    .user_data(slot as u64);
                // SAFETY: the buffer and the file live until `drop`, which waits for all writes;
                // nothing touches the buffer of a busy slot.
                unsafe { ring.submission().push(&entry) }.map_err(Error::other)?;
                ring.submit()?;
            }
            // SAFETY: as above.
            Kind::Submit(context) => unsafe { context.write(self.file, slot, buffer, offset)? },
        }
        Ok(())
    }

    /// Waits for a write to end: the slots of those that have, with the bytes that each wrote.
    pub fn wait(&mut self) -> Result<Vec<(usize, usize)>> {
        let ended: Vec<(u64, i64)> = match &mut self.kind {
            Kind::Uring(ring) => {
                ring.submit_and_wait(1)?;
                ring.completion().map(|c| (c.user_data(), c.result().into())).collect()
            }
            Kind::Submit(context) => context.wait()?,
        };
        let slot_of = |slot: u64| usize::try_from(slot).expect("a slot of ours");
        ended.iter().for_each(|&(slot, _)| self.is_busy[slot_of(slot)] = false);
        let mut done = Vec::with_capacity(ended.len());
        for (slot, result) in ended {
            let errno = i32::try_from(-result).unwrap_or_default();
            let bytes = usize::try_from(result).map_err(|_| Error::from_raw_os_error(errno))?;
            done.push((slot_of(slot), bytes));
        }
        Ok(done)
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        // The kernel still reads the buffers of what is under way. A write that failed is no longer
        // under way.
        while !self.is_idle() {
            let _ = self.wait();
        }
    }
}

/// `struct iocb` of Linux.
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len_bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `IOCB_CMD_PWRITE`.
const PWRITE: u16 = 1;

/// `struct io_event` of Linux.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

struct SubmitContext {
    id: libc::c_ulong,
    slots: usize,
}

impl SubmitContext {
    fn new(slots: usize) -> Result<Self> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: an integer to be filled.
        checked(unsafe { libc::syscall(libc::SYS_io_setup, slots as libc::c_ulong, &raw mut id) })?;
        Ok(Self { id, slots })
    }

    /// # Safety
    ///
    /// The buffer stays as it is until the write has ended.
    unsafe fn write(&self, file: &File, slot: usize, buffer: &[u8], offset: u64) -> Result<()> {
        let mut iocb = Iocb {
            data: slot as u64,
            key: 0,
            rw_flags: 0,
            opcode: PWRITE,
            priority: 0,
            fd: file.as_raw_fd().cast_unsigned(),
            buffer: buffer.as_ptr().addr() as u64,
            len_bytes: buffer.len() as u64,
            offset: offset.cast_signed(),
            reserved: 0,
            flags: 0,
            event_fd: 0,
        };
        let mut list = [&raw mut iocb];
        // SAFETY: one entry, which the kernel copies.
        checked(unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1 as libc::c_long, list.as_mut_ptr()) }).map(drop)
    }

    fn wait(&self) -> Result<Vec<(u64, i64)>> {
        let mut events = vec![Event::default(); self.slots];
        let (least, most) = (1 as libc::c_long, self.slots as libc::c_long);
        let forever = std::ptr::null_mut::<libc::timespec>();
        let call = libc::SYS_io_getevents;
        // SAFETY: room for as many events.
        let count = checked(unsafe { libc::syscall(call, self.id, least, most, events.as_mut_ptr(), forever) })?;
        events.truncate(usize::try_from(count).expect("not negative"));
        Ok(events.iter().map(|event| (event.data, event.result)).collect())
    }
}

impl Drop for SubmitContext {
    fn drop(&mut self) {
        // SAFETY: integers only; made by `new`.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

fn checked(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

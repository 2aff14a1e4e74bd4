//! The ring of one entry: it carries commands of 80 bytes to the kernel, and says what became of
//! them.
#![allow(unsafe_code)]

use std::io;

use io_uring::{IoUring, opcode, squeue, types};

use super::command::Command;

/// Where the number of `iovec`s stands in a submission (`len`).
const SQE_LEN_AT: usize = 24;

/// See the module. It belongs to the thread that enables it.
pub struct Ring(IoUring<squeue::Entry128>);

impl Ring {
    /// # Errors
    /// io_uring is not there, is forbidden, or has too little memory or descriptors.
    pub fn new() -> io::Result<Ring> {
        let mut builder = IoUring::<squeue::Entry128>::builder();
        // The thread that enables the ring is the one that may use it.
        builder.setup_single_issuer().setup_defer_taskrun().setup_r_disabled();
        builder.setup_submit_all().dontfork().build(2).map(Ring)
    }

    pub fn enable(&mut self) -> io::Result<()> {
        self.0.submitter().register_enable_rings()
    }

    /// Sent with the next `submit` or `wait`.
    ///
    /// # Safety
    /// What the command points to lives until the kernel is done with it.
    pub unsafe fn push(&mut self, command: &Command) -> io::Result<()> {
        let built = opcode::UringCmd80::new(types::Fd(command.device), command.code)
            .cmd(command.bytes)
            .addr(Some(command.parts))
            .build();
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.0.submission().push(&with_len(built, command.parts_len)) };
        pushed.map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    pub fn submit(&mut self) -> io::Result<()> {
        self.0.submit().map(drop)
    }

    /// Until a command is done: its result.
    pub fn wait(&mut self) -> io::Result<i32> {
        loop {
            match self.0.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(completion) = self.0.completion().next() {
                return Ok(completion.result());
            }
        }
    }
}

/// Sets the number of `iovec`s, which the builder of such commands has no word for.
fn with_len(mut entry: squeue::Entry128, len: u32) -> squeue::Entry128 {
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    // SAFETY: an entry is the kernel's structure of 128 bytes, all plain data; the field is inside
    // it.
    unsafe {
        (&raw mut entry)
            .cast::<u8>()
            .add(SQE_LEN_AT)
            .cast::<u32>()
            .write_unaligned(len);
    }
    entry
}

//! What the kernel does not send over io_uring: FORGET and INTERRUPT. They come by `/dev/fuse`.
//!
//! No program waits for a FORGET. A thread that sleeps in `read` would be woken for each of them,
//! by the program that caused it, which costs that program more than the request itself. So the
//! thread sleeps there only after a time without any; otherwise it looks every few milliseconds and
//! takes all that have come, many in one request.
//!
//! Where their outcome is seen (space that is free, the end of the mount), a worker takes them
//! first ([`Leftovers::drain`]); and a request for which there is no space is tried once more after
//! them.

use std::io;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::super::dev::{DataBuffer, Device, Received, RequestBuffer};
use crate::proto::wire::Opcode;
use crate::server::{After, Server};

/// The server's gate for these requests.
pub const GATE: usize = 0;
const LOOK_EVERY: Duration = Duration::from_millis(4);
/// So many looks in vain, then the thread sleeps in `read`.
const VAIN_LOOKS: u32 = 25;

/// What takes the requests that have come without sleeping.
#[derive(Debug)]
struct Quick {
    device: Device,
    buffer: RequestBuffer,
}

/// See the module.
#[derive(Debug)]
pub struct Leftovers(Mutex<Quick>);

impl Leftovers {
    pub fn new(device: &Device, io_bytes_max: usize) -> io::Result<Leftovers> {
        let mut device = device.try_clone()?;
        device.enable_looking()?;
        let buffer = RequestBuffer::new(io_bytes_max);
        Ok(Leftovers(Mutex::new(Quick { device, buffer })))
    }

    /// Does the outcome of a request depend on them?
    pub fn matter_to(opcode: u32) -> bool {
        [Opcode::Destroy, Opcode::Syncfs, Opcode::Statfs, Opcode::Ioctl]
            .iter()
            .any(|&one| one as u32 == opcode)
    }

    /// Serves all that have come. Returns how many, or none where nothing will come any more.
    pub fn drain(&self, server: &Server) -> io::Result<Option<u32>> {
        let mut quick = self.0.lock();
        let Quick { device, buffer } = &mut *quick;
        let mut served = 0;
        while let Some(received) = device.look(buffer)? {
            let Received::Request(bytes) = received else {
                return ended(&received);
            };
            answer(server, device, buffer.request(bytes))?;
            served += 1;
        }
        Ok(Some(served))
    }

    /// Serves until the mount is gone. `device`: to sleep with.
    pub fn serve(&self, server: &Server, mut device: Device, io_bytes_max: usize) -> io::Result<()> {
        let mut buffer = RequestBuffer::new(io_bytes_max);
        loop {
            let received = device.receive(&mut buffer)?;
            let Received::Request(bytes) = received else {
                return ended(&received).map(drop);
            };
            answer(server, &device, buffer.request(bytes))?;
            let mut vain = 0;
            while vain < VAIN_LOOKS {
                thread::sleep(LOOK_EVERY);
                match self.drain(server)? {
                    None => return Ok(()),
                    Some(0) => vain += 1,
                    Some(_) => vain = 0,
                }
            }
        }
    }
}

fn ended(received: &Received) -> io::Result<Option<u32>> {
    match received {
        Received::Aborted => Err(io::ErrorKind::ConnectionAborted.into()),
        Received::Unmounted | Received::Request(_) => Ok(None),
    }
}

fn answer(server: &Server, device: &Device, request: &[u8]) -> io::Result<()> {
    // Enough for whatever the kernel sends this way.
    let mut data = DataBuffer::new(0);
    let (after, reply) = server.handle(GATE, request, data.as_mut_slice(), None);
    match after {
        After::Send => device.send(&reply),
        After::Nothing => Ok(()),
    }
}

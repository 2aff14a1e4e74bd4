//! The transport over `/dev/fuse`: any worker takes any request.

mod device;
mod held;
mod pair;
mod workers;

use std::io;
use std::thread;
use std::time::Duration;

pub use device::{DataBuffer, Device, Received, RequestBuffer, Sender};
pub use workers::LOOK;
use workers::{Crew, Worker};

use super::Transport;
use super::keeper::Keepers;
use super::processors;
use crate::server::Server;

/// The device of a session and how many threads read from it.
#[derive(Debug)]
pub(crate) struct DevFuse {
    pub device: Device,
    pub workers: usize,
    /// How long a worker looks for the next request before it sleeps.
    pub look: Duration,
    pub io_bytes_max: usize,
}

impl DevFuse {
    /// One device for each worker: fewer where the kernel does not clone them (an old kernel, an
    /// odd container).
    fn devices(&mut self) -> Vec<Device> {
        let mut clones = Vec::new();
        for _ in 1..self.workers {
            match self.device.try_clone() {
                Ok(clone) => clones.push(clone),
                Err(error) => {
                    tracing::warn!(%error, "cannot clone the FUSE device, serving with fewer threads");
                    break;
                }
            }
        }
        clones
    }
}

impl Transport for DevFuse {
    fn serve(mut self: Box<Self>, server: &Server, failed: &(dyn Fn(&io::Error) + Sync)) -> io::Result<()> {
        let mut devices = self.devices();
        devices.push(self.device);
        let (look, io_bytes_max) = (self.look, self.io_bytes_max);
        let crew = Crew::default();
        let keepers = Keepers::new(processors::possible());
        thread::scope(|scope| {
            keepers.start(scope);
            let has_guard = devices.len() > 1;
            let (crew, keepers) = (&crew, &keepers);
            let threads: Vec<_> = devices
                .into_iter()
                .enumerate()
                .map(|(index, device)| {
                    let worker = Worker {
                        server,
                        crew,
                        keepers,
                        index,
                        device,
                        look,
                        io_bytes_max,
                    };
                    let work = move || {
                        let result = worker.run();
                        if let Err(error) = &result {
                            failed(error);
                        }
                        result
                    };
                    let name = thread::Builder::new().name(format!("fuse-{index}"));
                    name.spawn_scoped(scope, work)
                })
                .collect();
            if has_guard {
                let name = thread::Builder::new().name("fuse-guard".into());
                if let Err(error) = name.spawn_scoped(scope, || crew.guard()) {
                    tracing::warn!(%error, "no guard: a request that takes long may hold up others");
                }
            }
            let mut outcome = Ok(());
            for thread in threads {
                let result = match thread {
                    Ok(thread) => thread.join().expect("workers catch the panics of file systems"),
                    Err(error) => Err(error),
                };
                outcome = outcome.and(result);
            }
            keepers.end();
            crew.end(); // for the guard, where no worker could be started
            outcome
        })
    }
}

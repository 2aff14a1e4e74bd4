//! What is known of sources only when all of them was read: digests of layers, computed by threads
//! of their own beside the reading and copying, and that archives are what they were.
//!
//! Until [`Checks::finish`] has succeeded, contents of a layer are those of a stranger: they may be
//! parsed and copied, but what is made of them must not be given its name, or its superblock.
//!
//! Locks: the list of threads, held while they are waited for; they take none.

use std::io::{self, Read as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cowshed_runtime::{Env, Thread};
use sha2::Digest as _;

use crate::blob::Blob;
use crate::content::Stamp;
use crate::error::{Error, Result};

/// Bytes hashed at once: few enough to stay in a processor's cache between the copy and the hash.
const STEP_BYTES: usize = 128 << 10;

/// The checks of all sources of a tree.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    digests: Vec<Digests>,
    watched: Vec<(Blob, Stamp)>,
}

/// A blob and the digest that it should have.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub blob: Blob,
    /// In hexadecimal digits.
    pub sha256: String,
}

impl Checks {
    /// Has an archive compared at the end with what it is now.
    pub fn watch(&mut self, blob: &Blob) -> Result<()> {
        let stamp = stamp_of(blob)?;
        self.watched.push((blob.clone(), stamp));
        Ok(())
    }

    /// Computes digests beside what the caller does next: with one processor, not before
    /// [`Checks::finish`].
    pub fn begin(&mut self, sealed: Vec<Sealed>, env: &dyn Env) {
        self.digests.push(Digests::begin(sealed, env));
    }

    /// Waits for all digests. Errors: the first that is wrong; a source that has changed.
    pub fn finish(&self) -> Result<()> {
        self.digests.iter().try_for_each(Digests::finish)?;
        for (blob, stamp) in &self.watched {
            if stamp_of(blob)? != *stamp {
                let path = (&blob.name).into();
                return Err(Error::Changed { path });
            }
        }
        Ok(())
    }
}

fn stamp_of(blob: &Blob) -> Result<Stamp> {
    let metadata = blob.file.metadata().map_err(Error::host(&blob.name))?;
    Ok(Stamp::of(&metadata))
}

/// Blobs that are being hashed.
#[derive(Debug)]
struct Digests {
    queue: Arc<Queue>,
    threads: Mutex<Vec<Thread>>,
}

#[derive(Debug)]
struct Queue {
    sealed: Vec<(Sealed, OnceLock<io::Result<String>>)>,
    next: AtomicUsize,
    is_given_up: AtomicBool,
}

impl Digests {
    fn begin(sealed: Vec<Sealed>, env: &dyn Env) -> Self {
        let count = sealed.len().min(env.processors().saturating_sub(1));
        let queue = Arc::new(Queue {
            sealed: sealed.into_iter().map(|sealed| (sealed, OnceLock::new())).collect(),
            next: AtomicUsize::new(0),
            is_given_up: AtomicBool::new(false),
        });
        // Those that cannot be started are not needed: `finish` does what is left.
        let threads = (0..count).map_while(|_| {
            let queue = queue.clone();
            env.spawn("digest", Box::new(move || queue.work())).ok()
        });
        Self {
            threads: Mutex::new(threads.collect()),
            queue,
        }
    }

    fn finish(&self) -> Result<()> {
        self.queue.work();
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        for (sealed, found) in &self.queue.sealed {
            let name = &sealed.blob.name;
            match found.get().expect("all threads have ended") {
                Ok(found) if *found == sealed.sha256 => {}
                Ok(found) => {
                    return Err(Error::Digest {
                        blob: name.clone(),
                        found: found.clone(),
                    });
                }
                // The next caller gets it, too.
                Err(error) => {
                    let error = io::Error::new(error.kind(), error.to_string());
                    return Err(Error::host(name)(error));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Digests {
    fn drop(&mut self) {
        self.queue.is_given_up.store(true, Ordering::Relaxed);
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A result that nothing asks for.
            let _ = thread.join();
        }
    }
}

impl Queue {
    /// Hashes what no other thread has begun.
    fn work(&self) {
        while let Some((sealed, found)) = self.sealed.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            // Each place is taken once.
            let _ = found.set(self.sha256(&sealed.blob));
        }
    }

    fn sha256(&self, blob: &Blob) -> io::Result<String> {
        let mut hash = sha2::Sha256::new();
        let mut reader = blob.reader();
        let mut buf = vec![0; STEP_BYTES];
        while !self.is_given_up.load(Ordering::Relaxed) {
            match reader.read(&mut buf) {
                Ok(0) => break,
                Ok(len) => hash.update(&buf[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(hex(&hash.finalize()))
    }
}

/// In hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! A mounted volume: opens it, replays its log, wires what commits and shortage of space call,
//! closes it.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use btrfs_format::{Generation, LogicalAddr};
use btrfs_store::overlay::stripes::FrozenEdits;
use btrfs_store::txn::CommitStats;
use btrfs_store::volume::Volume;
use btrfs_store::{CommitHooks, Store};
use cowshed_runtime::Env;
use cowshed_vfs::TrimRange;

use crate::discard::{Discarder, Pace};
use crate::error::{Error, Result, StoreError};
use crate::files::{EngineOptions, Files};
use crate::log::write::{Log, LogStats};
use crate::{background, file, log, pressure};

/// The files of a volume, their log, and the threads that work for them.
#[derive(Debug)]
pub struct Mount {
    files: Arc<Files>,
    log: Arc<Log>,
    discarder: Discarder,
}

impl Deref for Mount {
    type Target = Files;
    fn deref(&self) -> &Files {
        &self.files
    }
}

impl Mount {
    /// Mounts an open volume.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a writable volume that could not be kept consistent,
    /// [`Error::LogReplay`] where the log of the last crash makes no sense.
    pub fn open(volume: Arc<Volume>, env: Arc<dyn Env>, options: EngineOptions) -> Result<Arc<Self>> {
        let store = Store::open(volume, env.clone(), options.memory_bytes_max / 2)?;
        let files = Arc::new(Files::new(store, options)?);
        let mount = Arc::new(Self {
            discarder: Discarder::new(options.discard, env.clone()),
            log: Arc::new(Log::new(env)),
            files,
        });
        let hooks: Weak<Self> = Arc::downgrade(&mount);
        mount.store().set_hooks(hooks);
        mount.replay_log()?;
        if !mount.store().volume().is_read_only() {
            pressure::attach(&mount.files);
            let dead = btrfs_store::commit::dead_subvolumes(mount.store().forest())?;
            mount.store().queue_drops(dead);
            mount.discarder.start(mount.store());
            background::start(&mount.files);
            if mount.store().queued_drops() > 0 {
                mount.background().go_on_dropping();
            }
        }
        Ok(mount)
    }

    /// Replays the log of the last crash. On disk when this returns, unless the mount is read-only.
    fn replay_log(&self) -> Result<()> {
        if self.store().volume().options().rescue.no_log_replay || !log::replay::replay(&self.files)? {
            return Ok(());
        }
        tracing::info!(generation = %self.store().txn().running(), "replayed the log of the last mount");
        if self.store().volume().is_read_only() {
            return Ok(());
        }
        // No reservation: where the commit finds no room, the opening fails, and the disk is as it
        // was.
        self.commit()
    }

    /// What operations on files share.
    pub(crate) fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// The fsync log.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// What fsyncs wrote so far.
    pub fn log_stats(&self) -> LogStats {
        self.log.stats()
    }

    /// What commits did so far.
    pub fn commit_stats(&self) -> CommitStats {
        self.store().commit_stats()
    }

    /// Everything written before the call is on disk after it.
    pub fn sync(&self) -> Result<()> {
        file::sync(&self.files)
    }

    /// Has deleted subvolumes in which nothing is in use dropped by the next commits. The
    /// background thread does this from time to time; for programs that stop it. True where some
    /// are dropped.
    pub fn drop_deleted(&self) -> bool {
        // The second look finds what the first one has taken out of memory.
        (0..2).for_each(|_| drop(background::drop_unused(&self.files)));
        self.store().queued_drops() > 0
    }

    /// Sets the pace of discards in the background.
    pub fn set_discard_pace(&self, pace: Pace) {
        self.discarder.set_pace(pace);
    }

    /// Discards the free space of a range of logical addresses and the room that no chunk has, as
    /// fstrim asks for it. Commits first. Returns the bytes, those of all copies.
    ///
    /// # Errors
    /// `Invalid` (a range shorter than a sector), `NotSupported` (no device discards), and what
    /// devices say.
    pub(crate) fn trim(&self, range: TrimRange) -> Result<u64> {
        crate::discard::trim(self.store(), range)
    }

    /// Ends the mount: everything on disk, no thread left. Changes are refused afterwards.
    pub fn close(&self) -> Result<()> {
        if self.store().txn().is_closed() {
            return Ok(());
        }
        self.stop_threads();
        let result = if self.store().txn().is_aborted() {
            Err(Error::Store(StoreError::ReadOnly))
        } else {
            let synced = self.sync();
            crate::discard::drain(self.store());
            synced
        };
        self.store().txn().close();
        result
    }

    fn stop_threads(&self) {
        self.background().stop();
        self.discarder.stop();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl CommitHooks for Mount {
    fn frozen(&self, edits_applied: u64) {
        self.names().frozen();
        self.log.frozen(edits_applied);
    }
    fn unshared(&self, extents: &[LogicalAddr], when: Generation) {
        file::note_dropped(&self.files, extents, when);
    }
    fn committed(&self, blocks: u64) {
        self.log.committed(self.store(), blocks);
    }
    fn merged(&self, overlays: Vec<Arc<FrozenEdits>>) {
        self.background().free(overlays);
        self.discarder.after_commit(self.store());
        if self.store().queued_drops() > 0 {
            self.background().go_on_dropping();
        }
    }
}

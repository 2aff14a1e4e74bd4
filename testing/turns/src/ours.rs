//! Our turns.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use btrfs_format::{Key, KeyType, view};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_btrfs::fs::MountOptions;
use cowshed_btrfs::{EngineOptions, Mount};
use cowshed_crash::rig::{self, Fs, Player, ROOT};
use cowshed_device::MemDevice;
use cowshed_device_sim::{Event, Log, Rng};
use cowshed_model::script::Op;
use cowshed_model::tree;
use cowshed_runtime::FixedEnv;
use cowshed_vfs::{FileSystem as _, InitInfo, Lookup, NodeId, NothingHeld, Volume as _};

use crate::side::Side;
use crate::state::{self, State};
use crate::step::Step;

/// More than the smallest steps take.
const DROP_STEPS_MAX: usize = 100_000;
/// Commits while deletions go on.
const COMMITS_MAX: usize = 6;

pub struct Ours {
    fs: Option<Fs>,
    device: Arc<MemDevice>,
    log: Log,
    rng: Rng,
}

impl Ours {
    pub fn new(device: &MemDevice, seed: u64) -> Result<Ours> {
        let mut rng = Rng::new(seed);
        let (device, log) = (Arc::new(device.snapshot()), Log::new());
        let fs = rig::mount_as(
            vec![Arc::new(log.record(device.clone()))],
            rng.one_in(2),
            MountOptions::default(),
        )?;
        // Commits are made where the turn says so.
        fs.mount().background().stop();
        // The steps of a deletion are small: many of its states are left on the disk.
        let kind = rng.index(4);
        let step_max = [1, 100, 1000, 4096][kind];
        fs.mount().store().set_drop_step_max(1 + rng.index(step_max));
        if rng.one_in(2) {
            fs.set_caches(Arc::new(NothingHeld));
        }
        Ok(Ours {
            fs: Some(fs),
            device,
            log,
            rng,
        })
    }

    fn fs(&self) -> &Fs {
        self.fs.as_ref().expect("until the end")
    }

    fn node(&self, name: &str) -> Result<NodeId> {
        match self.fs().lookup(&ROOT, NodeId::ROOT, name.as_bytes())? {
            Lookup::Found(entry) => Ok(entry.node),
            other => bail!("{name}: {other:?}"),
        }
    }

    fn player(&self) -> Player<'_> {
        Player::new(self.fs())
    }
}

impl Side for Ours {
    fn name(&self) -> &'static str {
        "Cowshed"
    }

    fn look(&mut self) -> Result<State> {
        state::of_tree(&tree::take(self.fs())?)
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let calls = self.fs().subvolumes().context("no subvolumes")?;
        match step {
            Step::Create(name) => calls.create(&ROOT, NodeId::ROOT, name.as_bytes())?,
            Step::Snapshot {
                source,
                name,
                is_read_only,
            } => calls.snapshot(&ROOT, self.node(source)?, NodeId::ROOT, name.as_bytes(), *is_read_only)?,
            Step::Delete(name) => calls.delete(&ROOT, NodeId::ROOT, name.as_bytes())?,
            Step::Files(ops) => {
                for op in ops {
                    self.player().apply(op).with_context(|| format!("`{op}`"))?;
                }
            }
            Step::Fsync(path) => self.player().apply(&Op::fsync(path.clone()))?,
            Step::Sync => self.fs().sync()?,
            Step::Rest => {
                for _ in 0..=self.rng.index(COMMITS_MAX) {
                    self.fs().mount().drop_deleted();
                    self.fs().sync()?;
                }
            }
            Step::Defragment(_) | Step::Balance { .. } => bail!("only Linux does"),
        }
        Ok(())
    }

    fn mark(&self, step: usize) {
        self.log.mark(step as u64);
    }

    fn events(&mut self) -> Vec<Event> {
        self.log.take()
    }

    fn end(mut self: Box<Self>) -> Result<MemDevice> {
        if let Some(fs) = self.fs.take() {
            fs.destroy();
        }
        Ok(self.device.snapshot())
    }

    fn drop_all(&mut self) -> Result<()> {
        self.fs().sync()?;
        // It holds nothing, now at least.
        self.fs().set_caches(Arc::new(NothingHeld));
        let mut steps = 0;
        while self.fs().mount().drop_deleted() {
            self.fs().sync()?;
            steps += 1;
            ensure!(steps < DROP_STEPS_MAX, "deletions do not get on");
        }
        Ok(self.fs().sync()?)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.take() {
            rig::abandon(fs);
        }
    }
}

/// What we see of an image after its log was replayed.
pub struct Seen {
    pub state: State,
    /// It can only be read: Linux is in the midst of a balance.
    pub is_balanced: bool,
    /// Deletions that are done in part.
    pub in_part: usize,
    /// One of them is further than it says. For the judge to fill in.
    pub is_behind: bool,
}

/// Looks at copies of an image.
pub fn look(image: &MemDevice) -> Result<Seen> {
    let read_only = mount_read_only(image)?;
    // Before there is a thread that goes on with them.
    let in_part = deletions_in_part(&read_only);
    let copy = Arc::new(image.snapshot());
    let (found, is_balanced) = match rig::mount_to_watch(vec![copy], false, MountOptions::default()) {
        Ok(fs) => {
            let found = tree::take(&fs);
            rig::abandon(fs);
            (found, false)
        }
        Err(error) if error.to_string().contains("balance") => (tree::take(&read_only), true),
        Err(error) => return Err(error.into()),
    };
    read_only.destroy();
    Ok(Seen {
        state: state::of_tree(&found?)?,
        is_balanced,
        in_part: in_part?,
        is_behind: false,
    })
}

fn mount_read_only(image: &MemDevice) -> Result<Fs> {
    let open = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let volume = Volume::open(vec![Arc::new(image.snapshot())], &open)?;
    let engine_options = EngineOptions {
        commit_interval_s: 0,
        ..EngineOptions::default()
    };
    let engine = Mount::open(volume, Arc::new(FixedEnv::default()), engine_options)?;
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let fs = rig::front(cowshed_btrfs::fs::Fs::new(engine, options)?);
    fs.init(&InitInfo::TRUSTED)?;
    Ok(fs)
}

/// Trees of deleted subvolumes that say how far they are gone.
fn deletions_in_part(fs: &Fs) -> Result<usize> {
    let root_tree = fs.mount().store().forest().root_tree().clone();
    let mut cursor = root_tree.cursor(Key::MIN, Key::MAX);
    let mut in_part = 0;
    while let Some((key, data)) = cursor.next()? {
        if key.ty != KeyType::ROOT_ITEM {
            continue;
        }
        let root = view::root_item(&data).context("a root item")?;
        let is_begun = Key::from(root.drop_progress) != Key::MIN;
        in_part += usize::from(root.refs.get() == 0 && is_begun);
    }
    Ok(in_part)
}

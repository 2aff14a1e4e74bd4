//! The kernel's turns.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cowshed_device::MemDevice;
use cowshed_device_sim::{Event, Rng};
use cowshed_harness::{KernelMount, create_subvolume, delete_subvolume, run, snapshot};
use cowshed_logcases::recorder::Recorder;
use cowshed_model::script::{MountPlayer, Op};
use cowshed_model::tree;

use crate::side::Side;
use crate::state::{self, State};
use crate::step::Step;

/// Syncs while deletions go on.
const SYNCS_MAX: usize = 10;
const PAUSE_MS_MAX: u64 = 8;
/// How long the deletion of everything may take.
const DROP_MAX: Duration = Duration::from_secs(120);
const PAUSE_OF_READS: Duration = Duration::from_micros(300);

pub struct Linux {
    // Before the recorder, which holds what is mounted.
    mount: Option<KernelMount>,
    recorder: Recorder,
    dir: PathBuf,
    player: MountPlayer,
    rng: Rng,
}

impl Linux {
    pub fn new(device: &MemDevice, seed: u64) -> Result<Linux> {
        let mut rng = Rng::new(seed);
        // Where reads take their time, syncs come between the steps of a deletion.
        let pause = rng.one_in(2).then_some(PAUSE_OF_READS);
        let recorder = Recorder::with_slow_reads(device, pause)?;
        let options = [
            "noatime,commit=300",
            "noatime,commit=1",
            "noatime,commit=1,discard=sync",
        ];
        let mount = recorder.mount(options[rng.index(options.len())])?;
        let dir = mount.dir().to_owned();
        Ok(Linux {
            mount: Some(mount),
            recorder,
            player: MountPlayer::new(&dir),
            dir,
            rng,
        })
    }

    fn file_op(&mut self, op: &Op) -> Result<()> {
        match op {
            // From a read-only subvolume, too. Shares extents.
            Op::Copy { from, to, .. } => {
                let (mut from, mut to) = (File::open(self.dir.join(from))?, File::create(self.dir.join(to))?);
                std::io::copy(&mut from, &mut to)?;
                Ok(())
            }
            _ => Ok(self.player.apply(op)?),
        }
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.player.apply(&Op::Sync)?)
    }

    fn btrfs(&self, args: &[&str]) -> Result<String> {
        let args: Vec<&Path> = args.iter().map(Path::new).chain([&*self.dir]).collect();
        run("btrfs", &args)
    }
}

impl Side for Linux {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn look(&mut self) -> Result<State> {
        state::of_tree(&tree::take_mount(&self.dir)?)
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let top = || File::open(&self.dir);
        match step {
            Step::Create(name) => create_subvolume(&top()?, name)?,
            Step::Snapshot {
                source,
                name,
                is_read_only,
            } => snapshot(&File::open(self.dir.join(source))?, &top()?, name, *is_read_only)?,
            Step::Delete(name) => delete_subvolume(&top()?, name)?,
            Step::Files(ops) => {
                for op in ops {
                    self.file_op(op).with_context(|| format!("`{op}`"))?;
                }
            }
            Step::Fsync(path) => self.player.apply(&Op::fsync(path.clone()))?,
            Step::Sync => self.sync()?,
            Step::Rest => {
                // Wakes the thread that drops what is deleted; `sync` does not.
                self.btrfs(&["filesystem", "sync"])?;
                for _ in 0..self.rng.index(SYNCS_MAX) {
                    self.sync()?;
                    std::thread::sleep(Duration::from_millis(self.rng.below(PAUSE_MS_MAX)));
                }
            }
            Step::Defragment(name) => {
                let dir = self.dir.join(name);
                let args = ["filesystem", "defragment", "-r", "-f"].map(Path::new);
                run("btrfs", &[&args[..], &[&dir]].concat())?;
            }
            Step::Balance { is_data } => {
                let what = if *is_data { "-d" } else { "-m" };
                // One that was begun before a power failure goes on at the next mount. Mixed block
                // groups are not moved by one kind.
                let refusals = ["in progress", "Invalid argument"];
                match self.btrfs(&["balance", "start", what]) {
                    Err(error) if refusals.iter().any(|text| format!("{error:#}").contains(text)) => {}
                    done => drop(done?),
                }
            }
        }
        Ok(())
    }

    fn mark(&self, step: usize) {
        self.recorder.log().mark(step as u64);
    }

    fn events(&mut self) -> Vec<Event> {
        self.recorder.log().take()
    }

    fn end(mut self: Box<Self>) -> Result<MemDevice> {
        if let Some(mount) = self.mount.take() {
            mount.unmount()?;
        }
        let content = self.recorder.content();
        self.recorder.end()?;
        Ok(content)
    }

    fn drop_all(&mut self) -> Result<()> {
        let until = Instant::now() + DROP_MAX;
        loop {
            // Each wakes the thread that drops, which can miss one.
            self.btrfs(&["filesystem", "sync"])?;
            if self.btrfs(&["subvolume", "list", "-d"])?.is_empty() {
                return self.sync();
            }
            ensure!(Instant::now() < until, "the kernel does not finish its deletions");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

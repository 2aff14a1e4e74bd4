//! Several threads, each in a directory of its own with a model of its own, while another one
//! commits.
//!
//! The directories do not meet, so that each thread knows what its operations answer, whatever the
//! others do. Times are not compared here: all threads share the clock.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cowshed_harness::threads::beside;
use cowshed_model::{At, Generator, Mix, Model, Name, Op, Place};
use cowshed_vfs::{Error, Timestamp};

use crate::compare::{self, Depth, Numbers};
use crate::judge;
use crate::run::{same_answer, shortened};
use crate::subject::{Setup, Subject};

/// What to run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub threads: u16,
    /// Of each thread.
    pub operations: usize,
    pub setup: Setup,
    pub may_fill: bool,
}

const NOW: Timestamp = Timestamp::new(0, 0);

/// Runs; at the end everything is compared, after a remount too.
pub fn run(config: &Config) -> Result<()> {
    let mut subject = Subject::new(&config.setup)?;
    for thread in 0..config.threads {
        let made = subject.apply(&mkdir(thread))?;
        ensure!(made.is_ok(), "making the threads' directories: {made:?}");
    }
    let workers = || {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..config.threads)
                .map(|thread| {
                    let subject = &subject;
                    scope.spawn(move || work(config, subject, thread))
                })
                .collect();
            workers
                .into_iter()
                .map(|w| w.join().unwrap_or_else(|_| Err(anyhow!("a worker panicked"))))
                .collect::<Result<Vec<Model>>>()
        })
    };
    let models = beside(committer(&subject), workers).with_context(|| format!("seed {}", config.seed))?;
    compare_all(&subject, &models)?;
    subject.remount()?;
    judge::own_check(&subject.devices).context("at the end")?;
    compare_all(&subject, &models).context("after a remount")
}

fn compare_all(subject: &Subject, models: &[Model]) -> Result<()> {
    for (thread, model) in models.iter().enumerate() {
        let at = At::Path(vec![Name(thread as u16)]);
        compare::below(subject, model, &at, &mut Numbers::new(), Depth::NoTimes)
            .with_context(|| format!("thread {thread}"))?;
    }
    Ok(())
}

fn mkdir(thread: u16) -> Op {
    let place = Place {
        dir: At::Path(vec![]),
        name: Name(thread),
    };
    Op::mkdir(place, 0o755)
}

fn work(config: &Config, subject: &Subject, thread: u16) -> Result<Model> {
    let mix = Mix {
        no_remount: true,
        barriers: false,
        below: Some(Name(thread)),
        bulky: config.may_fill,
        fsyncs: config.setup.tree_log,
        groups: false,
    };
    let mut generator = Generator::new(config.seed.wrapping_mul(31).wrapping_add(u64::from(thread)), mix);
    let mut model = Model::new(config.setup.node_bytes, Model::empty_root(0o755, NOW));
    model.mount = config.setup.rules();
    let made = model.apply(&mkdir(thread), NOW);
    ensure!(made.is_ok(), "the model takes a directory");
    for n in 0..config.operations {
        let op = generator.draw(&model);
        let holds = matches!(
            op,
            Op::Open { .. }
                | Op::Close { .. }
                | Op::Tmpfile { .. }
                | Op::Stage { .. }
                | Op::EndGroup { .. }
                | Op::ReadStaged { .. }
        );
        if holds || leaves(&op, thread) {
            continue;
        }
        let found = subject.apply_shared(&op);
        if config.may_fill && found == Err(Error::NoSpace) {
            continue;
        }
        let op = shortened(&op, &found);
        let expected = model.apply(&op, NOW);
        same_answer(&op, &found, &expected, &model)
            .with_context(|| format!("thread {thread}, operation {n}: {op:?}"))?;
    }
    Ok(model)
}

/// Does the operation touch the thread's directory itself, or what lies outside?
fn leaves(op: &Op, thread: u16) -> bool {
    let is_own = |at: &At| matches!(at, At::Path(path) if path.first() == Some(&Name(thread)));
    let mut touched = op.touched();
    if let Op::Rename { from, to, .. } = op {
        touched.extend([from.dir.clone(), to.dir.clone()]);
    }
    !touched.iter().all(is_own)
}

/// Commits, in one way or another, each time it is called.
fn committer(subject: &Subject) -> impl FnMut() -> Result<()> {
    let mut n = 0;
    move || {
        n += 1;
        let op = match n % 8 {
            0 => Op::Sync,
            4 => Op::Cool,
            _ => Op::Commit,
        };
        match subject.apply_shared(&op) {
            Ok(_) | Err(Error::NoSpace) => {}
            Err(error) => return Err(anyhow!("{op:?}: {error}")),
        }
        if n % 5 == 0 {
            judge::own_check(&subject.snapshot()).context("while threads work")?;
        }
        std::thread::sleep(Duration::from_millis(n % 7));
        Ok(())
    }
}

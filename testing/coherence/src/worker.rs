//! A process that works on a mount. It is told by lines on its standard input what to do, and
//! answers each with a line.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::ops::Actor;
use crate::view::{self, How, Seen};

/// How a worker is started.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The pool's root
    pub root: PathBuf,
    /// The command under test
    pub cowshed: PathBuf,
    pub number: u64,
    pub threads: u64,
    pub seed: u64,
}

/// What a worker is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Operations of all threads for so long, and what was done to this file.
    Work { millis: u64, to: PathBuf },
    /// A view of the pool to this file.
    Look {
        is_fresh: bool,
        lists_first: bool,
        seed: u64,
        to: PathBuf,
    },
    /// What is held open, to this file.
    LookHeld { seed: u64, to: PathBuf },
    /// Closes all that is held open.
    Release,
}

/// An operation that was done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Process and thread.
    pub by: String,
    /// When it began and ended, since 1970.
    pub begin_us: u64,
    pub end_us: u64,
    pub what: String,
    pub errno: Option<i32>,
    /// An error in words.
    pub error: Option<String>,
}

/// What `Order::LookHeld` gives, by thread, place and path.
pub type HeldView = BTreeMap<String, Seen>;

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}

fn work(actor: &mut Actor, by: &str, time: Duration) -> Vec<Done> {
    let began = Instant::now();
    let mut log = Vec::new();
    while began.elapsed() < time {
        let begin_us = now_us();
        let (what, done) = actor.step();
        let error = done.err();
        log.push(Done {
            by: by.into(),
            begin_us,
            end_us: now_us(),
            what,
            errno: error.as_ref().and_then(std::io::Error::raw_os_error),
            error: error.map(|error| error.to_string()),
        });
    }
    log
}

fn save(to: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(value)?;
    std::fs::write(to, text).with_context(|| to.display().to_string())
}

fn obey(args: &Args, actors: &mut [Actor], order: &Order) -> Result<()> {
    match order {
        Order::Work { millis, to } => {
            let time = Duration::from_millis(*millis);
            let logs = std::thread::scope(|scope| {
                let threads: Vec<_> = actors
                    .iter_mut()
                    .enumerate()
                    .map(|(n, actor)| scope.spawn(move || work(actor, &format!("{}.{n}", args.number), time)))
                    .collect();
                threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
            });
            let mut all = Vec::new();
            for log in logs {
                let Ok(log) = log else { bail!("a thread panicked") };
                all.extend(log);
            }
            save(to, &all)
        }
        Order::Look {
            is_fresh,
            lists_first,
            seed,
            to,
        } => {
            let how = How {
                is_fresh: *is_fresh,
                lists_first: *lists_first,
                seed: *seed,
            };
            save(to, &view::look(&args.root, how))
        }
        Order::LookHeld { seed, to } => {
            let mut seen = HeldView::new();
            for (n, actor) in actors.iter_mut().enumerate() {
                for (at, held) in actor.held.iter_mut().enumerate() {
                    let key = format!("{}.{n}.{at} {}", args.number, held.label);
                    seen.insert(key, held.look(*seed));
                }
            }
            save(to, &seen)
        }
        Order::Release => {
            actors.iter_mut().for_each(|actor| actor.held.clear());
            Ok(())
        }
    }
}

/// Does what it is told until its input ends.
pub fn main(args: &Args) -> Result<()> {
    // The ordinary user shall change the files of root.
    rustix::process::umask(rustix::fs::Mode::empty());
    let seed_of = |n| args.seed.wrapping_mul(1_000_003) + args.number * 1000 + n;
    let mut actors: Vec<_> = (0..args.threads)
        .map(|n| Actor::new(&args.root, &args.cowshed, seed_of(n)))
        .collect();
    for line in std::io::stdin().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        match obey(args, &mut actors, &order) {
            Ok(()) => println!("done"),
            Err(error) => println!("failed: {error:#}"),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

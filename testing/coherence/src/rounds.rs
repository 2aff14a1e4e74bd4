//! Rounds on one volume: all workers at once, then the judge.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_device_sim::Rng;
use cowshed_harness::{KernelLog, run, shell};

use crate::judge::{self, Fault, Pair};
use crate::mounts::{USER, Volume};
use crate::options::{Options, Report};
use crate::report;
use crate::team::{Worker, answer};
use crate::variant::Variant;
use crate::view::{How, View, look};
use crate::worker::{self, Done, HeldView, Order};

/// With more objects than that, some are removed: a view takes time.
const OBJECTS_MAX: usize = 400;
/// What changes while mapped pages are written. (Contents that do not compress set a flag.)
const AFTER_STORES: [&str; 4] = ["blocks", "mtime", "ctime", "flags"];
/// Errors that no race explains.
const WRONG_ERRORS: [i32; 11] = [
    libc::EIO,
    libc::EUCLEAN,
    libc::EBADF,
    libc::ENOSYS,
    libc::EPROTO,
    libc::ENOTCONN,
    libc::ECONNABORTED,
    libc::EDEADLK,
    libc::EOVERFLOW,
    libc::ENOMEM,
    libc::ENOSPC,
];

/// A volume of a variant with its workers.
struct Rounds<'o> {
    options: &'o Options,
    variant: Variant,
    seed: u64,
    rng: Rng,
    volume: Volume,
    pools: Vec<PathBuf>,
    workers: Vec<Worker>,
    /// Of the round that runs.
    round: u64,
    log: Vec<Done>,
}

/// What the judge saw at one time: by mount, and what is held open.
struct Sight {
    views: Vec<View>,
    held: HeldView,
}

/// Makes a volume, plays rounds on it, and compares it with what the kernel shows.
pub fn play(options: &Options, variant: Variant, seed: u64, rounds: u64, report: &mut Report) -> Result<()> {
    let volume = Volume::make(variant, &options.cowshed, &options.own)?;
    let mut played = Rounds {
        options,
        variant,
        seed,
        rng: Rng::new(seed),
        volume,
        pools: Vec::new(),
        workers: Vec::new(),
        round: 0,
        log: Vec::new(),
    };
    let outcome = played.all(rounds, report);
    outcome.map_err(|error| played.keep(error))
}

impl Rounds<'_> {
    fn all(&mut self, rounds: u64, report: &mut Report) -> Result<()> {
        let mut kernel = KernelLog::start()?;
        self.pools = self.volume.mount_all()?;
        for number in 0..self.options.workers {
            let args = worker::Args {
                root: self.pools[number as usize % self.pools.len()].clone(),
                cowshed: self.volume.cowshed.clone(),
                number,
                threads: self.options.threads,
                seed: self.seed,
            };
            let is_stranger = self.variant.has_stranger && number > 0 && number + 1 == self.options.workers;
            let user = (self.variant.is_users || is_stranger).then_some(USER);
            self.workers.push(Worker::start(&self.volume.own, &args, user)?);
        }
        let mut last = None;
        for round in 0..rounds {
            self.round = round;
            last = Some(self.round(report).with_context(|| format!("round {round}"))?);
            report.rounds += 1;
        }
        self.release()?;
        for worker in std::mem::take(&mut self.workers) {
            worker.stop()?;
        }
        self.volume.unmount()?;
        self.volume.check()?;
        if let Some(last) = last {
            let how = How {
                is_fresh: false,
                lists_first: false,
                seed: self.seed,
            };
            let by_kernel = self.volume.by_kernel(|pool| look(pool, how))?;
            let pair = Pair {
                names: ["on the mount", "by the kernel"],
                without: &[],
                are_strangers: true,
            };
            let mut faults = judge::of_one(&by_kernel);
            for view in &last.views {
                faults.extend(pair.compare(view, &by_kernel));
            }
            self.must_be_none("the kernel's view", &faults)?;
        }
        let said = kernel.take()?;
        let is_of_ours = |text: &str| text.contains("fuse") || text.contains("BUG") || text.contains("WARNING");
        let bad: Vec<_> = said.iter().filter(|(_, text)| is_of_ours(text)).collect();
        ensure!(bad.is_empty(), "the kernel says: {bad:?}");
        Ok(())
    }

    /// All workers at once, with what runs beside them.
    fn work(&mut self) -> Result<()> {
        // What is stale is often asked for again by a later operation: short rounds see more of it.
        let millis = self.options.millis / [1, 4, 12][self.rng.index(3)];
        let (is_dropping, is_walking) = (self.rng.one_in(2), self.rng.one_in(2));
        let files: Vec<_> = (0..self.workers.len())
            .map(|n| self.volume.beside(&format!("log-{n}")))
            .collect();
        for (worker, to) in self.workers.iter_mut().zip(&files) {
            prepare(to)?;
            worker.order(&Order::Work { millis, to: to.clone() })?;
        }
        let is_over = AtomicBool::new(false);
        let root = self.pools[0].display().to_string();
        let is_users = self.variant.is_users;
        let drop_ms = 5 + self.rng.below(60);
        let workers = &mut self.workers;
        std::thread::scope(|scope| {
            let over = cowshed_harness::threads::SetOnDrop(&is_over);
            if is_dropping {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(drop_ms));
                        let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
                    }
                });
            }
            if is_walking && !is_users {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Acquire) {
                        // What vanishes while it is looked at is an error of theirs.
                        let _ = shell(
                            Path::new("/"),
                            &format!("ls -lR {root} || true; find {root} -ls || true; du -a {root} || true"),
                        );
                    }
                });
            }
            let waited = workers.iter_mut().try_for_each(Worker::wait);
            drop(over);
            waited
        })?;
        self.log.clear();
        for file in files {
            self.log.extend(answer::<Vec<Done>>(&file)?);
        }
        self.log.sort_by_key(|done| done.begin_us);
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        self.workers.iter_mut().try_for_each(|worker| {
            worker.order(&Order::Release)?;
            worker.wait()
        })
    }

    /// One view of each mount, and what is held.
    fn sight(&mut self, is_fresh: bool, lists_first: bool) -> Result<Sight> {
        let to = self.volume.beside("view");
        let mut views = Vec::new();
        for worker in &mut self.workers[..self.pools.len()] {
            let seed = self.rng.next_u64();
            prepare(&to)?;
            let order = Order::Look {
                is_fresh,
                lists_first,
                seed,
                to: to.clone(),
            };
            views.push(worker.ask(&order, &to)?);
        }
        let mut held = HeldView::new();
        for worker in &mut self.workers {
            let seed = self.rng.next_u64();
            prepare(&to)?;
            held.extend(worker.ask::<HeldView>(&Order::LookHeld { seed, to: to.clone() }, &to)?);
        }
        Ok(Sight { views, held })
    }

    /// Writes mapped pages, of each mount.
    fn sync(&mut self) -> Result<()> {
        if self.variant.is_users {
            // Root has no access.
            return run("sync", &[""; 0]).map(drop);
        }
        let program = self.volume.cowshed.to_string_lossy();
        let each = |pool: &PathBuf| run(&program, &["sync".as_ref(), pool.as_os_str()]).map(drop);
        self.pools.iter().try_for_each(each)
    }

    fn drop_caches(&mut self) -> Result<()> {
        for _ in 0..2 {
            self.sync()?;
            std::fs::write("/proc/sys/vm/drop_caches", "3")?;
        }
        Ok(())
    }

    fn round(&mut self, report: &mut Report) -> Result<Sight> {
        let began = Instant::now();
        self.work()?;
        self.judge_errors(report)?;
        let lists_first = self.rng.one_in(2);
        // Pages that were stored through mappings are not written yet: times and blocks change with
        // that. A look at them now would have Linux fetch those that it must know to be old later.
        // (Of two mounts each shows its own stores until then.)
        let before = match self.rng.one_in(2) && !self.variant.has_two {
            true => Some(self.sight(false, lists_first)?),
            false => None,
        };
        self.sync()?;
        let cached = self.sight(true, lists_first)?;
        self.drop_caches()?;
        let bare = self.sight(true, self.options.seed.is_multiple_of(2))?;
        let mut faults = Vec::new();
        if let Some(before) = before {
            let pair = Pair {
                names: ["before the sync", "after it"],
                without: &AFTER_STORES,
                are_strangers: false,
            };
            faults.extend(compare(&pair, &before, &cached));
        }
        for view in cached.views.iter().chain(&bare.views) {
            faults.extend(judge::of_one(view));
        }
        for (path, seen) in cached.held.iter().chain(&bare.held) {
            faults.extend(judge::is_known_fresh(path, seen));
        }
        let pair = Pair {
            names: ["in the caches", "without them"],
            without: &[],
            are_strangers: false,
        };
        faults.extend(compare(&pair, &cached, &bare));
        let pair = Pair {
            names: ["on one mount", "on the other"],
            without: &[],
            are_strangers: true,
        };
        if let [one, other] = &bare.views[..] {
            faults.extend(pair.compare(one, other));
        }
        let link_less: BTreeSet<&String> = faults.iter().filter(|f| f.is_of_link_less).map(|f| &f.path).collect();
        report.link_less += link_less.len() as u64;
        faults.retain(|fault| !fault.is_of_link_less);
        let objects = bare.views[0].seen.len();
        report.objects += objects as u64;
        if !faults.is_empty() {
            self.volume_state(&cached, &bare)?;
        }
        self.must_be_none("views", &faults)?;
        if self.options.is_verbose {
            println!(
                "    round {}: {} operations, {objects} objects, {} held, {:.2} s",
                self.round,
                self.log.len(),
                bare.held.len(),
                began.elapsed().as_secs_f64()
            );
        }
        if objects > OBJECTS_MAX {
            self.thin_out()?;
            return self.sight(true, false);
        }
        Ok(bare)
    }

    /// Keeps the views of a failure beside its image.
    fn volume_state(&self, cached: &Sight, bare: &Sight) -> Result<()> {
        std::fs::create_dir_all(&self.options.keep_dir)?;
        for (name, sight) in [("cached", cached), ("bare", bare)] {
            let file = self.options.keep_dir.join(format!("{}-{name}.json", self.name()));
            std::fs::write(file, serde_json::to_vec_pretty(&(&sight.views, &sight.held))?)?;
        }
        Ok(())
    }

    fn thin_out(&self) -> Result<()> {
        for name in ["d0", "d1", "x0"] {
            let path = self.pools[0].join(name);
            // Subvolumes in it stay.
            let _ = std::fs::remove_dir_all(path);
        }
        Ok(())
    }

    fn judge_errors(&mut self, report: &mut Report) -> Result<()> {
        for done in &self.log {
            let verb = done.what.split(' ').next().unwrap_or_default();
            let count = report.operations.entry(verb.into()).or_default();
            count.0 += 1;
            if let Some(error) = &done.error {
                count.1 += 1;
                let errno = done.errno.map_or_else(|| first_line(error), |errno| errno.to_string());
                *count.2.entry(errno).or_default() += 1;
            }
        }
        // Names of two mounts expire at once: Linux looks a path up a second time where one on its
        // way was removed, and gives up then.
        let may_be_stale = self.variant.has_two;
        let is_wrong = |done: &&Done| match done.errno {
            Some(libc::ESTALE) => !may_be_stale,
            Some(errno) => WRONG_ERRORS.contains(&errno),
            None => false,
        };
        let wrong: Vec<_> = self.log.iter().filter(is_wrong).collect();
        if let Some(first) = wrong.first() {
            bail!(
                "{} operations failed as no race explains, the first: {}\n{}",
                wrong.len(),
                report::line(first),
                report::operations(&self.log, &first.what)
            );
        }
        Ok(())
    }

    fn must_be_none(&self, what: &str, faults: &[Fault]) -> Result<()> {
        if faults.is_empty() {
            return Ok(());
        }
        bail!("{what}:\n{}", report::faults(faults, &self.log))
    }

    fn name(&self) -> String {
        format!("{}-{}", self.variant.name, self.seed)
    }

    /// Keeps the image of a failure and the operations of its last round.
    fn keep(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.workers.clear();
        let unmounted = self.volume.unmount();
        let log: Vec<String> = self.log.iter().map(report::line).collect();
        let name = self.name();
        let kept = std::fs::create_dir_all(&self.options.keep_dir).and_then(|()| {
            let file = self.options.keep_dir.join(format!("{name}.operations.txt"));
            std::fs::write(file, log.join("\n"))
        });
        let error = match (unmounted, kept) {
            (Err(more), _) => error.context(format!("and then, unmounting: {more:#}")),
            (_, Err(more)) => error.context(format!("its operations are not kept: {more}")),
            _ => error,
        };
        let error = self.options.keep.files(&name, &[self.volume.image()], error);
        error.context(format!(
            "variant {}, seed {}, round {} (--variant {} --seed {} --rounds {})",
            self.variant.name,
            self.seed,
            self.round,
            self.variant.name,
            self.seed,
            self.round + 1
        ))
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().nth(1).unwrap_or(text);
    line.rsplit(": ").next().unwrap_or(line).to_owned()
}

/// A file that a worker of another user can write.
fn prepare(to: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(to, "")?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o666))?;
    Ok(())
}

fn compare(pair: &Pair, a: &Sight, b: &Sight) -> Vec<Fault> {
    let views = a.views.iter().zip(&b.views);
    let mut faults: Vec<_> = views.flat_map(|(a, b)| pair.compare(a, b)).collect();
    faults.extend(pair.compare_all(&a.held, &b.held));
    faults
}

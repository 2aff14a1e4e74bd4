//! Kills the mount's process, or the program that runs SQLite, or both, while SQLite commits, and
//! looks at the database.
//!
//! A round: `cowshed mount -f` serves an image; a process of its own runs transactions, each
//! acknowledged when its commit has returned; at a random moment one of the processes is killed, or
//! both ([`crate::victim`]). Then the next program opens the database: on the same mount if that
//! lives, through a new one, or (every few rounds) through the kernel's. It must pass SQLite's own
//! check and be as after the last acknowledged transaction, or the one under way, and there is no
//! journal.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_kill9::daemon::Daemon;
use cowshed_model::Rng;

use crate::database::{self, Journal, SMALL};
use crate::place::{Place, Rounds};
use crate::victim::{Tally, Victim};
use crate::worker::{Next, Said, Worker, say};

/// The kernel and the checkers judge after so many rounds, and after the last.
const ROUNDS_PER_JUDGEMENT: u64 = 10;
const IMAGE_MIB: u64 = 1024;
/// What a round may take until the kill.
const DELAY_MS: std::ops::Range<u64> = 1..300;

/// What all rounds together did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub rounds: u64,
    pub killed: Tally,
    /// Transactions that were acknowledged.
    pub transactions: i64,
    /// Rounds in which the kill came after the beginning of a commit that was not acknowledged any
    /// more.
    pub in_commit: u64,
    /// Those of them in which the transaction was there.
    pub ahead: u64,
}

/// The worker: commits until a process is killed.
pub fn work(database: &std::path::Path, from: i64) -> Result<()> {
    let mut connection = database::open(database, Journal::Delete)?;
    say(Said::Ready)?;
    for n in from.. {
        let transaction = SMALL.prepare(&mut connection, n)?;
        say(Said::Begins(n))?;
        transaction.commit()?;
        say(Said::Done(n))?;
    }
    Ok(())
}

/// Runs all rounds, after so many transactions without a kill.
pub fn run(rounds: &Rounds, transactions: i64) -> Result<Summary> {
    let place = Place::new(&rounds.programs, IMAGE_MIB)?;
    let mut done = without_a_journal(&place, transactions)?;
    let mut summary = Summary::default();
    let mut dice = Rng::new(rounds.seed);
    let mut mounted = None;
    for round in 0..rounds.count {
        let daemon = match mounted.take() {
            Some(daemon) => daemon,
            None => place.mount()?,
        };
        ensure!(!place.has_journal(), "SQLite made a journal");
        let victim = Victim::by(&mut dice);
        let delay = Duration::from_millis(DELAY_MS.start + dice.below(DELAY_MS.end - DELAY_MS.start));
        let context = || format!("round {round}, {victim:?} killed after {delay:?}");
        let (lives, begun, acknowledged) = until_killed(&place, daemon, done, (victim, delay)).with_context(context)?;
        let is_judged = round % ROUNDS_PER_JUDGEMENT == 0 || round + 1 == rounds.count;
        let (found, daemon) = look(&place, lives, is_judged)
            .with_context(|| format!("{}, after transaction {acknowledged}", context()))?;
        ensure!(
            (acknowledged..=begun).contains(&found),
            "{}: transaction {acknowledged} was acknowledged, {begun} begun, {found} is there",
            context()
        );
        mounted = daemon;
        victim.note(&mut summary.killed);
        summary.in_commit += u64::from(begun > acknowledged);
        summary.ahead += u64::from(found > acknowledged);
        done = found;
        summary.rounds += 1;
        if rounds.progress && round % 10 == 9 {
            eprintln!("{} rounds, {done} transactions", round + 1);
        }
    }
    summary.transactions = done;
    Ok(summary)
}

/// What the next program finds. Gives the mount, if it lives on.
fn look(place: &Place, lives: Option<Daemon>, is_judged: bool) -> Result<(i64, Option<Daemon>)> {
    let judge = |connection: &_| SMALL.verify(connection);
    let Some(daemon) = lives else {
        let found = if is_judged {
            place.by_kernel(judge)
        } else {
            place.by_ourselves(judge)
        };
        return Ok((found?, None));
    };
    let found = place.look(judge)?;
    if !is_judged {
        return Ok((found, Some(daemon)));
    }
    daemon.stop()?;
    let by_kernel = place.by_kernel(judge)?;
    ensure!(
        by_kernel == found,
        "the kernel finds transaction {by_kernel}, we {found}"
    );
    Ok((found, None))
}

/// Makes the database and runs transactions; no second file appears beside it for them.
fn without_a_journal(place: &Place, transactions: i64) -> Result<i64> {
    let daemon = place.mount()?;
    let mut connection = database::open(&place.database(), Journal::Delete)?;
    // Making or removing any name would move the time of the directory.
    let changed = || -> Result<_> { Ok(std::fs::metadata(place.mounted())?.modified()?) };
    // The transaction that makes the database is SQLite's own affair: it has a journal.
    SMALL.fill(&mut connection)?;
    let before = changed()?;
    for n in 1..=transactions {
        SMALL.transact(&mut connection, n)?;
    }
    ensure!(changed()? == before, "SQLite made a journal");
    ensure!(SMALL.verify(&connection)? == transactions, "transactions are missing");
    drop(connection);
    daemon.stop()?;
    Ok(transactions)
}

/// Runs transactions until a process is killed. Gives the mount, if it lives, the last transaction
/// whose commit was begun, and the last that was acknowledged, those before included.
fn until_killed(
    place: &Place,
    daemon: Daemon,
    done: i64,
    (victim, delay): (Victim, Duration),
) -> Result<(Option<Daemon>, i64, i64)> {
    let from = (done + 1).to_string();
    let args = ["commits", "--from", &from];
    let mut worker = Worker::start(&place.programs.this, &args, &place.database(), place.path("errors"))?;
    let deadline = Instant::now() + delay;
    let mut all = Vec::new();
    loop {
        match worker.next(Some(deadline))? {
            Next::Said(said) => all.push(said),
            Next::Late => break,
            Next::Over => bail!(
                "SQLite failed before the kill: {}\n{}",
                worker.complaint(),
                daemon.said()
            ),
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    let (lives, rest) = victim.kill(daemon, worker)?;
    all.extend(rest);
    let (mut begun, mut acknowledged) = (done, done);
    for said in all {
        match said {
            Said::Begins(n) => begun = n,
            Said::Done(n) => acknowledged = n,
            other => bail!("SQLite said {other:?}"),
        }
    }
    Ok((lives, begun, acknowledged))
}

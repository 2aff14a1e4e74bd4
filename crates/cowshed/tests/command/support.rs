//! Running the command, and volumes to run it on.

use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use cowshed_harness::limit;
use cowshed_harness::progs::{self, CheckOptions};
use serde_json::Value;
use tempfile::TempDir;

pub const COWSHED: &str = env!("CARGO_BIN_EXE_cowshed");

/// What the command may take.
pub const COMMAND_MAX: Duration = Duration::from_secs(300);
/// What comes about by itself does so in this time.
pub const SOON: Duration = Duration::from_secs(20);

/// Held for writing by the test that syncs the whole machine, for reading by those in which nothing
/// but their own syncs may write.
pub static WHOLE_SYNC: RwLock<()> = RwLock::new(());

/// What a run of the command gave.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
    /// The run ended with this code; else the test fails with all that was said.
    #[track_caller]
    pub fn code(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.text(), self.err);
        self
    }
    #[track_caller]
    pub fn ok(self) -> Ran {
        self.code(0)
    }
    /// The command refused, and its one line of reason has these words.
    #[track_caller]
    pub fn fails(self, words: &[&str]) -> Ran {
        self.fails_with(2, words)
    }
    /// As [`Ran::fails`], with another exit code.
    #[track_caller]
    pub fn fails_with(self, code: i32, words: &[&str]) -> Ran {
        let ran = self.code(code);
        for word in words {
            assert!(ran.err.contains(word), "no {word:?} in: {}", ran.err);
        }
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
        ran
    }
}

/// No sync of the whole machine comes from these tests meanwhile.
pub fn without_whole_sync() -> RwLockReadGuard<'static, ()> {
    WHOLE_SYNC.read().unwrap_or_else(PoisonError::into_inner)
}

pub fn cowshed<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    let mut command = Command::new(COWSHED);
    command.args(args).stdin(Stdio::null());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap_or_else(|e| panic!("{e:#}"));
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A line of words as arguments, `{}` standing for the paths in their order.
pub fn run(line: &str, paths: &[&Path]) -> Ran {
    let mut paths = paths.iter();
    cowshed(line.split_whitespace().map(|word| match word {
        "{}" => paths.next().expect("a path for each {}").as_os_str().to_owned(),
        word => word.into(),
    }))
}

/// The commands of a page of the documentation, in their order.
pub fn commands_of(page: &str) -> String {
    let mut all = String::new();
    let mut is_inside = false;
    for line in page.lines() {
        match line {
            "```sh" => is_inside = true,
            "```" => is_inside = false,
            line if is_inside => all += &format!("{line}\n"),
            _ => {}
        }
    }
    all
}

/// A directory in memory where there is one, with an image in it.
pub struct Scratch {
    pub dir: TempDir,
    pub image: PathBuf,
}

impl Scratch {
    /// A fresh volume of 256 MiB.
    pub fn new() -> Scratch {
        let dir = cowshed_harness::scratch_dir().unwrap();
        let image = dir.path().join("volume.img");
        let scratch = Scratch { dir, image };
        // Kernels before 6.1 could only read one with a tree of block groups.
        let options = cowshed_harness::kernel::mkfs_options().join(" ");
        run(&format!("mkfs -q -b 256m {options} {{}}"), &[&scratch.image]).ok();
        scratch
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// With some files in it, written through the library.
    pub fn filled() -> Scratch {
        let scratch = Scratch::new();
        let volume = cowshed::Volume::open_image(&scratch.image, &cowshed::OpenOptions::new()).unwrap();
        let fill = || -> cowshed::Result<()> {
            volume.create_dir_all("dir/sub")?;
            volume.write("dir/hello", "hello\n")?;
            volume.write("dir/.hidden", "")?;
            volume.write("big", vec![7; 1 << 20])?;
            volume.set_mode("big", 0o4750)?;
            volume.symlink("hello", "dir/link")?;
            volume.set_xattr("big", "user.note", "text")?;
            volume.make_node("null", cowshed::FileKind::CharDevice, 0o666, (1, 3))?;
            volume.write("dir/sub/deep", "deep\n")?;
            volume.close()
        };
        fill().unwrap();
        scratch
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        run("check --check-data-csum {}", &[&self.image]).ok();
    }

    /// An empty directory to mount on.
    pub fn mountpoint(&self) -> PathBuf {
        let dir = self.path("mnt");
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }
}

/// Both checkers find nothing, in the data either.
#[track_caller]
pub fn assert_clean_for_both(image: &Path) {
    run("check --check-data-csum {}", &[image]).ok();
    let options = CheckOptions {
        data_csum: true,
        ..CheckOptions::default()
    };
    progs::check(image, options).unwrap().assert_clean();
}

/// In a name space of mounts that a test makes, the mounts of all others stay until it ends,
/// whatever becomes of them here.
static NAME_SPACES: RwLock<()> = RwLock::new(());

/// The command `unshare`, still without arguments. While it lives, no test runs that holds
/// [`without_name_spaces`].
pub fn in_name_space() -> InNameSpace {
    InNameSpace {
        command: Command::new("unshare"),
        _held: making_name_space(),
    }
}

/// See [`in_name_space`].
pub struct InNameSpace {
    command: Command,
    _held: RwLockReadGuard<'static, ()>,
}

impl Deref for InNameSpace {
    type Target = Command;
    fn deref(&self) -> &Command {
        &self.command
    }
}

impl DerefMut for InNameSpace {
    fn deref_mut(&mut self) -> &mut Command {
        &mut self.command
    }
}

/// Held by tests of programs that make name spaces of mounts.
pub fn making_name_space() -> RwLockReadGuard<'static, ()> {
    NAME_SPACES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by tests in which a mount must end when it is unmounted.
pub fn without_name_spaces() -> RwLockWriteGuard<'static, ()> {
    NAME_SPACES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for something that must come about soon.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(SOON, what, holds);
}

/// How often it is looked for.
const STEP: Duration = Duration::from_millis(10);

/// Waits for something that must come about within a time.
#[track_caller]
pub fn within(limit: Duration, what: &str, holds: impl FnMut() -> bool) {
    looking((limit, STEP), what, holds);
}

/// As [`within`], for what may soon be over again: looks each millisecond.
#[track_caller]
pub fn shortly(what: &str, holds: impl FnMut() -> bool) {
    looking((SOON, Duration::from_millis(1)), what, holds);
}

#[track_caller]
fn looking((limit, step): (Duration, Duration), what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < limit,
            "not within {} s: {what}",
            limit.as_secs_f32()
        );
        std::thread::sleep(step);
    }
}

#[test]
#[should_panic(expected = "not within 0.1 s: nothing")]
fn what_does_not_come_about_fails_the_test() {
    within(Duration::from_millis(100), "nothing", || false);
}

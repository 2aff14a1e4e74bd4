//! The requests that Linux sends for each ordinary operation, counted on a mount and compared with
//! the table of docs/design/fuse-caches.md: a request more or less fails.
//!
//! All directories are made first; then the volume is mounted anew, so that nothing is cached but
//! what [`Operation::before`] has done. FORGET is left out: Linux sends it at any time.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use cowshed_harness::{limit, need};
use rustix::fs::{Access, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags};

use crate::attributes::{OWNER, ROOT, User, act_as};
use crate::mount::{Guard, can_mount, unmount};
use crate::support::{COMMAND_MAX, COWSHED, Scratch, in_name_space};

const PAGE: &str = include_str!("../../../../docs/design/fuse-caches.md");
/// The head of the table in that page.
const HEAD: &str = "| Operation | Shared | Private, of root | Private, of an ordinary user | Shared, `noxattr` |";
/// Names in the directory of each operation that lists one.
const MANY: usize = 100;
/// Requests without an answer that a caller waits for (RELEASE) have arrived by then.
const SETTLED: Duration = Duration::from_millis(15);

/// One row of the table.
struct Operation {
    name: &'static str,
    /// What is done before the requests are counted. The directory itself was looked up.
    before: fn(&Path),
    run: fn(&Path),
}

const fn cold(name: &'static str, run: fn(&Path)) -> Operation {
    Operation {
        name,
        before: |_| {},
        run,
    }
}

/// After a first run of the same.
const fn again(name: &'static str, run: fn(&Path)) -> Operation {
    Operation { name, before: run, run }
}

/// After a look at the names in the directory.
const fn warm(name: &'static str, run: fn(&Path)) -> Operation {
    Operation {
        name,
        before: look,
        run,
    }
}

fn look(dir: &Path) {
    for name in ["a", "b", "link", "sub"] {
        rustix::fs::lstat(dir.join(name)).unwrap();
    }
}

fn list(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Directories of a tree, and files of each.
const TREE: (usize, usize) = (5, 20);

/// Names of the directories in `tree`, as find reads them.
fn list_tree(dir: &Path) {
    let found = list(&dir.join("tree")).into_iter().map(|dir| list(&dir).len());
    assert_eq!(found.sum::<usize>(), TREE.0 * TREE.1);
}

/// Names of the directories in `tree`, and attributes when each was read, as du reads them.
fn list_tree_with_attributes(dir: &Path) {
    list_tree_with_pauses(dir, Duration::ZERO);
}

/// With pauses between directories, in which listings that Linux remembers can be dropped: that is
/// done by another thread, beside the replies.
fn list_tree_with_pauses(dir: &Path, pause: Duration) {
    for dir in list(&dir.join("tree")) {
        for name in list(&dir) {
            rustix::fs::lstat(name).unwrap();
        }
        thread::sleep(pause);
    }
}

/// Names, and the attributes of each.
fn list_with_attributes(dir: &Path) {
    let names = list(&dir.join("many"));
    assert_eq!(names.len(), MANY);
    for name in names {
        rustix::fs::lstat(name).unwrap();
    }
}

fn remove_tree(dir: &Path) {
    program(dir, &["rm", "-r", "@many"]);
}

fn stat(dir: &Path) {
    assert_eq!(rustix::fs::lstat(dir.join("a")).unwrap().st_size, 4096);
}

/// Also asks for the time of birth, as the standard library of Rust does.
fn statx(dir: &Path) {
    fs::symlink_metadata(dir.join("a")).unwrap();
}

fn stat_of_dir(dir: &Path) {
    assert!(rustix::fs::stat(dir).unwrap().st_nlink > 0);
}

fn stat_absent(dir: &Path) {
    rustix::fs::lstat(dir.join("absent")).unwrap_err();
}

fn read(dir: &Path) {
    // As cat and grep do.
    let file = rustix::fs::open(dir.join("a"), OFlags::RDONLY, Mode::empty()).unwrap();
    let mut data = [0; 8192];
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 4096);
    assert_eq!(rustix::io::read(&file, &mut data), Ok(4096));
}

fn overwrite(dir: &Path) {
    let file = File::options().write(true).open(dir.join("a")).unwrap();
    file.write_all_at(&[2; 4096], 0).unwrap();
}

/// What a call about extended attributes gives; `None` on a mount that has none.
fn of_xattr<T>(outcome: rustix::io::Result<T>) -> Option<T> {
    match outcome {
        Err(rustix::io::Errno::OPNOTSUPP) => None,
        outcome => Some(outcome.unwrap()),
    }
}

fn get_xattr(dir: &Path) {
    let mut value = [0; 16];
    let length = of_xattr(rustix::fs::lgetxattr(dir.join("a"), "user.note", &mut value));
    assert!(length.is_none_or(|length| length == 4));
}

fn set_xattr(dir: &Path) {
    of_xattr(rustix::fs::lsetxattr(
        dir.join("b"),
        "user.n",
        b"x",
        XattrFlags::empty(),
    ));
}

fn list_xattrs(dir: &Path) {
    let mut names = [0; 256];
    let length = of_xattr(rustix::fs::llistxattr(dir.join("a"), &mut names));
    assert!(length.is_none_or(|length| length > 0));
}

fn access(dir: &Path) {
    rustix::fs::access(dir.join("a"), Access::READ_OK).unwrap();
}

fn program(dir: &Path, words: &[&str]) {
    let mut command = Command::new(words[0]);
    // `@`: a name in the directory.
    for word in &words[1..] {
        match word.strip_prefix('@') {
            Some(name) => command.arg(dir.join(name)),
            None => command.arg(word),
        };
    }
    command.stdin(Stdio::null());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
}

const OPERATIONS: &[Operation] = &[
    cold("create a file, close it", |dir| {
        drop(File::create_new(dir.join("new")).unwrap())
    }),
    cold("create two files", |dir| {
        ["new", "new too"]
            .iter()
            .for_each(|name| drop(File::create_new(dir.join(name)).unwrap()));
    }),
    cold("create a file, write 4 KiB, close it", |dir| {
        fs::write(dir.join("new"), [1; 4096]).unwrap()
    }),
    cold("open with O_TMPFILE, close", |dir| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        drop(rustix::fs::openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR).unwrap());
    }),
    cold("mkdir", |dir| fs::create_dir(dir.join("new")).unwrap()),
    cold("symlink", |dir| {
        std::os::unix::fs::symlink("a", dir.join("new")).unwrap()
    }),
    warm("link", |dir| fs::hard_link(dir.join("a"), dir.join("new")).unwrap()),
    cold("unlink, cold", |dir| fs::remove_file(dir.join("a")).unwrap()),
    warm("unlink, warm", |dir| fs::remove_file(dir.join("a")).unwrap()),
    warm("unlink of two files, warm", |dir| {
        ["a", "b"]
            .iter()
            .for_each(|name| fs::remove_file(dir.join(name)).unwrap());
    }),
    warm("rmdir, warm", |dir| fs::remove_dir(dir.join("sub")).unwrap()),
    cold("rename, cold", |dir| {
        fs::rename(dir.join("a"), dir.join("new")).unwrap()
    }),
    warm("rename, warm", |dir| {
        fs::rename(dir.join("a"), dir.join("new")).unwrap()
    }),
    warm("rename over a file, warm", |dir| {
        fs::rename(dir.join("a"), dir.join("b")).unwrap()
    }),
    cold("stat, cold", stat),
    again("stat, warm", stat),
    warm("statx with the time of birth", statx),
    again("statx with the time of birth, once more", statx),
    cold("stat of an absent name, cold", stat_absent),
    again("stat of an absent name, warm", stat_absent),
    Operation {
        name: "stat of a directory after a change in it",
        before: |dir| fs::create_dir(dir.join("new")).unwrap(),
        run: stat_of_dir,
    },
    cold("access", access),
    again("access, warm", access),
    warm("readlink", |dir| {
        assert_eq!(fs::read_link(dir.join("link")).unwrap(), Path::new("a"))
    }),
    cold("open, read, close, cold", read),
    again("open, read, close, once more", read),
    Operation {
        name: "open, read, close, warm",
        before: |dir| {
            read(dir);
            read(dir);
        },
        run: read,
    },
    warm("open, write 4 KiB, close", overwrite),
    again("open, write 4 KiB, close, once more", overwrite),
    warm("open, 10 writes of 100 bytes, close", |dir| {
        let file = File::options().write(true).open(dir.join("a")).unwrap();
        (0..10).for_each(|n| file.write_all_at(&[3; 100], n * 100).unwrap());
    }),
    warm("open, write 4 KiB, fsync, close", |dir| {
        let file = File::options().write(true).open(dir.join("a")).unwrap();
        file.write_all_at(&[2; 4096], 0).unwrap();
        file.sync_all().unwrap();
    }),
    warm("open with O_TRUNC, write 4 KiB, close", |dir| {
        fs::write(dir.join("a"), [1; 4096]).unwrap()
    }),
    warm("chmod", |dir| {
        fs::set_permissions(dir.join("a"), fs::Permissions::from_mode(0o600)).unwrap()
    }),
    warm("chown to the same owner", |dir| {
        let now = rustix::fs::lstat(dir.join("a")).unwrap();
        std::os::unix::fs::lchown(dir.join("a"), Some(now.st_uid), Some(now.st_gid)).unwrap();
    }),
    warm("utimensat", |dir| {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        rustix::fs::utimensat(CWD, dir.join("a"), &times, rustix::fs::AtFlags::empty()).unwrap();
    }),
    warm("getxattr", get_xattr),
    again("getxattr, warm", get_xattr),
    warm("setxattr", set_xattr),
    warm("listxattr", list_xattrs),
    warm("statfs", |dir| assert!(rustix::fs::statfs(dir).unwrap().f_blocks > 0)),
    cold("readdir of 100 names, cold", |dir| {
        assert_eq!(list(&dir.join("many")).len(), MANY)
    }),
    again("readdir of 100 names, warm", |dir| {
        assert_eq!(list(&dir.join("many")).len(), MANY)
    }),
    cold(
        "readdir of 100 names with stat of each (`ls -l`), cold",
        list_with_attributes,
    ),
    again(
        "readdir of 100 names with stat of each (`ls -l`), warm",
        list_with_attributes,
    ),
    cold("readdir of 5 directories of 20 names, cold", list_tree),
    cold(
        "readdir of 5 directories of 20 names with stat of each, cold",
        list_tree_with_attributes,
    ),
    Operation {
        name: "readdir of 5 directories of 20 names with stat of each, after another thread has listed them",
        before: list_tree,
        run: |dir| list_tree_with_pauses(dir, Duration::from_millis(200)),
    },
    cold("`ls -l` of 3 files, the program, cold", |dir| {
        program(dir, &["ls", "-l", "@a", "@b", "@sub"])
    }),
    warm("`cp -a` of a file", |dir| program(dir, &["cp", "-a", "@a", "@new"])),
    warm("`cp -a --reflink=never` of a file", |dir| {
        program(dir, &["cp", "-a", "--reflink=never", "@a", "@new"])
    }),
    warm("`cat` of a file", |dir| program(dir, &["cat", "@a"])),
    warm("`mv` of a file", |dir| program(dir, &["mv", "@a", "@new"])),
    warm("`rm` of a file", |dir| program(dir, &["rm", "@a"])),
    warm("`touch` of a new file", |dir| program(dir, &["touch", "@new"])),
    cold("`rm -r` of 100 files, cold", remove_tree),
    Operation {
        name: "`rm -r` of 100 files, warm",
        before: list_with_attributes,
        run: remove_tree,
    },
];

/// A mount whose process logs each request.
struct Counted {
    dir: PathBuf,
    log: PathBuf,
    options: &'static str,
    user: User,
    image: PathBuf,
    seen: usize,
}

impl Counted {
    fn mount(&self, options: &str) {
        let options = format!("{options},log={}", self.log.display());
        let words: [&OsStr; 5] = [
            "mount".as_ref(),
            "-o".as_ref(),
            options.as_ref(),
            self.image.as_ref(),
            self.dir.as_ref(),
        ];
        let output = act_as(self.user, || {
            let mut command = Command::new(COWSHED);
            command.args(words).stdin(Stdio::null());
            command.env("COWSHED_LOG", "off,cowshed_fuse::requests=trace");
            limit::output_within(&mut command, COMMAND_MAX).unwrap()
        });
        assert!(output.status.success(), "{output:?}");
    }

    fn prepare(&self) {
        for (number, operation) in OPERATIONS.iter().enumerate() {
            let dir = self.place(number);
            if operation.name.contains("5 directories") {
                for of in 0..TREE.0 {
                    let dir = dir.join(format!("tree/{of}"));
                    fs::create_dir_all(&dir).unwrap();
                    (0..TREE.1).for_each(|n| fs::write(dir.join(format!("{n}")), b"").unwrap());
                }
            }
            fs::create_dir_all(dir.join("sub")).unwrap();
            fs::create_dir(dir.join("many")).unwrap();
            for name in ["a", "b"] {
                fs::write(dir.join(name), [7; 4096]).unwrap();
            }
            rustix::fs::lsetxattr(dir.join("a"), "user.note", b"text", XattrFlags::empty()).unwrap();
            std::os::unix::fs::symlink("a", dir.join("link")).unwrap();
            (0..MANY).for_each(|n| fs::write(dir.join(format!("many/{n}")), b"").unwrap());
        }
    }

    fn place(&self, number: usize) -> PathBuf {
        self.dir.join(format!("{number}"))
    }

    /// The requests since the last call, in the order of their first of a kind, RELEASE last.
    fn requests(&mut self) -> String {
        let mut text = fs::read_to_string(&self.log).unwrap();
        loop {
            std::thread::sleep(SETTLED);
            let now = fs::read_to_string(&self.log).unwrap();
            if now.len() == text.len() {
                break;
            }
            text = now;
        }
        let mut counts: Vec<(String, usize)> = Vec::new();
        for line in text[self.seen..].lines() {
            let (_, rest) = line.split_once("opcode=\"").unwrap_or_else(|| panic!("{line}"));
            let opcode = rest.split('"').next().unwrap().to_uppercase();
            match counts.iter_mut().find(|(name, _)| *name == opcode) {
                _ if opcode.ends_with("FORGET") => {}
                Some((_, count)) => *count += 1,
                None => counts.push((opcode, 1)),
            }
        }
        self.seen = text.len();
        // Asynchronous: arrives at any time.
        counts.sort_by_key(|(name, _)| name == "RELEASE");
        let words = counts.iter().map(|(name, count)| match count {
            1 => name.clone(),
            _ => format!("{count} {name}"),
        });
        match counts.is_empty() {
            true => "none".to_owned(),
            false => words.collect::<Vec<_>>().join(", "),
        }
    }

    /// The requests of each operation.
    fn count(mut self) -> Vec<String> {
        let user = self.user;
        self.mount("");
        act_as(user, || self.prepare());
        self.unmount();
        self.mount(self.options);
        // What is refused is refused once for each mount: OPENDIR, with `noxattr` requests for
        // extended attributes.
        act_as(user, || {
            list(&self.dir);
            let dir = self.place(0);
            for call in [get_xattr, set_xattr, list_xattrs] {
                call(&dir);
            }
        });
        let mut all = Vec::new();
        for (number, operation) in OPERATIONS.iter().enumerate() {
            // Each in a thread of its own, as by a program of its own: what a thread has listed
            // counts for its next listing.
            let dir = self.place(number);
            act_as(user, || {
                stat_of_dir(&dir);
                (operation.before)(&dir);
            });
            self.requests();
            act_as(user, || (operation.run)(&dir));
            all.push(self.requests());
        }
        self.unmount();
        all
    }

    fn unmount(&self) {
        act_as(self.user, || unmount(&self.dir));
    }
}

fn count(options: &'static str, user: User) -> Vec<String> {
    let scratch = Scratch::new();
    let dir = scratch.mountpoint();
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for path in [scratch.dir.path(), &scratch.image, &dir] {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)).unwrap();
    }
    if user != ROOT {
        // The root directory of a volume belongs to the user that made it.
        act_as(user, || {
            crate::support::run("mkfs -q -f -b 256m {}", &[&scratch.image]).ok();
        });
    }
    let _guard = Guard(&dir);
    let counted = Counted {
        log: scratch.path("log"),
        image: scratch.image.clone(),
        dir: dir.clone(),
        options,
        user,
        seen: 0,
    };
    let all = counted.count();
    scratch.assert_clean();
    all
}

/// The rows of the page: an operation, and what is sent on each kind of mount.
fn rows_of_page() -> Vec<Vec<String>> {
    let table = PAGE.lines().skip_while(|line| *line != HEAD).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        row.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect()
    })
    .collect()
}

/// The versions that the page is about.
const KERNEL: &str = "6.18.";
const COREUTILS: &str = " 9.1\n";

/// Whether the rows of system calls and those of programs can be compared here. Other kernels and
/// other versions of the programs send other requests.
fn comparable() -> (bool, bool) {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version = limit::output(Command::new("cp").arg("--version")).unwrap().stdout;
    let version = String::from_utf8_lossy(&version).into_owned();
    let (is_kernel, are_programs) = (kernel.starts_with(KERNEL), version.contains(COREUTILS));
    if !is_kernel {
        println!("skipped: requests are those of Linux {KERNEL}x, this is {kernel}");
    } else if !are_programs {
        println!("skipped: requests of programs: they are those of coreutils{COREUTILS}");
    }
    (is_kernel, is_kernel && are_programs)
}

/// Runs a test of this program once more, where all users can open `/dev/fuse`. `$1`: an empty
/// directory. `$2`: the program. `$3`: the test.
const WITH_DEVICE_FOR_ALL: &str = r#"
    set -eu
    mount -t tmpfs -o mode=755,dev tmpfs "$1"
    mknod -m 666 "$1/fuse" c 10 229
    mount --bind "$1/fuse" /dev/fuse
    exec "$2" --exact "$3" --nocapture --test-threads=1
"#;
const INSIDE: &str = "COWSHED_TEST_INSIDE";

#[test]
fn each_operation_sends_the_requests_of_the_table() {
    let Some(()) = can_mount() else { return };
    let (Some(()), Some(()), Some(())) = (need::tool("fusermount3"), need::tool("unshare"), need::loop_devices())
    else {
        return;
    };
    if std::env::var_os(INSIDE).is_none() {
        let dir = tempfile::tempdir().unwrap();
        let test = "requests::each_operation_sends_the_requests_of_the_table";
        let mut command = in_name_space();
        command
            .args(["-m", "sh", "-c", WITH_DEVICE_FOR_ALL, "sh"])
            .arg(dir.path());
        command.arg(std::env::current_exe().unwrap()).arg(test).env(INSIDE, "1");
        let ran = limit::output_within(&mut command, COMMAND_MAX).unwrap();
        let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let kinds = [
        count("allow_other", ROOT),
        count("private", ROOT),
        count("private", OWNER),
        count("allow_other,noxattr", ROOT),
    ];
    let rows: Vec<Vec<String>> = OPERATIONS
        .iter()
        .enumerate()
        .map(|(number, operation)| {
            let counts = kinds.iter().map(|kind| kind[number].clone());
            [operation.name.to_owned()].into_iter().chain(counts).collect()
        })
        .collect();
    let expected = rows_of_page();
    let (compare_calls, compare_programs) = comparable();
    let is_compared = |row: &[String]| match row[0].starts_with('`') {
        true => compare_programs,
        false => compare_calls,
    };
    let same_names = rows.iter().map(|row| &row[0]).eq(expected.iter().map(|row| &row[0]));
    let differing: Vec<_> = rows
        .iter()
        .zip(&expected)
        .filter(|(found, row)| found != row && is_compared(row))
        .collect();
    if same_names && differing.is_empty() {
        return;
    }
    let mut all = format!("{HEAD}\n|---|---|---|---|---|\n");
    rows.iter().for_each(|row| all += &format!("| {} |\n", row.join(" | ")));
    for (found, row) in differing {
        all += &format!("differs: {found:?}, in the page: {row:?}\n");
    }
    panic!("docs/design/fuse-caches.md says something else; counted:\n{all}");
}

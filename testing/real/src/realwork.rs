//! Ordinary programs at work on a mount.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cowshed_harness::{KernelVolume, Transport, VolumeOptions, kernel, need};
use serde_json::Value;

use crate::cowshed::{binary, judge, run_in, shell};
use crate::site::Site;
use crate::{aio, direct, tools, unusual};

#[derive(clap::Args)]
pub struct Args {
    /// The short form of each
    #[arg(long)]
    small: bool,
    /// Only jobs whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Operations of each run of fsx, in place of 100,000 (or the short form's)
    #[arg(long)]
    operations: Option<usize>,
    /// How long each run of aio takes, in place of 60 seconds (or the short form's)
    #[arg(long)]
    seconds: Option<u64>,
    /// Writers of aio, each with 16 writes under way
    #[arg(long, default_value_t = 4)]
    writers: usize,
    /// How the mounts are served, uring or dev; as they choose, unless given
    #[arg(long)]
    transport: Option<String>,
    /// Run the same on the kernel's btrfs instead, to see what fails there too
    #[arg(long)]
    kernel: bool,
}

impl Args {
    fn operations(&self, small: usize) -> usize {
        let usual = if self.small { small } else { 100_000 };
        self.operations.unwrap_or(usual)
    }
}

/// What a job does with a mount.
enum Work {
    /// A shell script with the mount as working directory. `$SMALL` is 1 in the short form, `$REPO`
    /// a git repository of some size.
    Script(&'static str),
    Function(fn(&mut Site<'_>, &Args) -> Result<()>),
}

use Work::{Function, Script};

/// Name, program that it needs, what it does.
const JOBS: &[(&str, &str, Work)] = &[
    ("git", "git", Script("
        git clone -q --no-hardlinks \"$REPO\" clone; cd clone
        git config user.name t; git config user.email t@example.invalid
        for i in $(seq 20); do echo $i >> file; git add file; git commit -qm $i; done
        git fsck --strict; git gc -q; git fsck --strict; git status --porcelain | wc -l | grep -qx 0")),
    ("tar", "tar", Script("
        tar -C /usr/share -cf a.tar doc; mkdir x; tar -C x -xf a.tar
        diff -r --no-dereference /usr/share/doc x/doc; rm -r x a.tar")),
    ("dpkg", "dpkg-deb", Script("
        mkdir -p p/DEBIAN p/usr/share/p; cp -a /usr/share/doc p/usr/share/p/
        printf 'Package: p\\nVersion: 1\\nArchitecture: all\\nMaintainer: t <t@example.invalid>\\nDescription: t\\n' > p/DEBIAN/control
        dpkg-deb -Zgzip -z1 --build p p.deb > /dev/null; dpkg-deb -x p.deb y; diff -r --no-dereference p/usr y/usr")),
    ("sqlite", "sqlite3", Script("
        for mode in delete wal truncate; do
          sqlite3 db-$mode \"pragma journal_mode=$mode; create table t(a integer primary key, b text);\" > /dev/null
          n=200; [ \"$SMALL\" = 1 ] && n=30
          for i in $(seq $n); do echo \"insert into t(b) values(hex(randomblob(500)));\"; done | sqlite3 db-$mode
          sqlite3 db-$mode 'pragma integrity_check' | grep -qx ok
          [ $(sqlite3 db-$mode 'select count(*) from t') = $n ]
        done")),
    ("fs_mark", "fs_mark", Script("
        n=5000; [ \"$SMALL\" = 1 ] && n=500
        # A directory each: begun in the same moment, its processes choose the same names now and then.
        mkdir a b; fs_mark -d a -d b -n $n -s 4096 -S 0 -D 10 > /dev/null; fs_mark -d a -d b -n 100 -s 1000 -S 1 > /dev/null")),
    ("cargo", "cargo", Script("
        export CARGO_TARGET_DIR=$PWD/target
        cargo init -q --vcs none --name hello hello; cd hello; cargo build -q; [ \"$($CARGO_TARGET_DIR/debug/hello)\" = 'Hello, world!' ]
        [ \"$SMALL\" = 1 ] && exit
        git clone -q \"$REPO\" ../repository; cd ../repository; cargo test -q --offline -p btrfs-format > /dev/null")),
    ("fio-verify", "fio", Script("
        s=256m; [ \"$SMALL\" = 1 ] && s=32m
        fio --name=v --size=$s --rw=randwrite --bs=4k --verify=crc32c --end_fsync=1 --ioengine=psync --output=o1
        fio --name=d --size=$s --rw=randwrite --bs=4k-64k --direct=1 --verify=crc32c --ioengine=psync --output=o2
        fio --name=m --size=$s --rw=randrw --bs=4k --verify=crc32c --ioengine=mmap --output=o3; rm v.* d.* m.*")),
    ("stress-ng", "stress-ng", Script("
        have=$(stress-ng --stressors); all=
        # The class `filesystem` but for ioprio, bind-mount, binderfs, eventfd and procfs (nothing of a mount), and others that work
        # on files. Left out, too, is who syncs the whole machine, and so would judge it and not the mount: dentry, dirdeep,
        # fanotify, io, iomix, mknod, open, touch, verity.
        for s in access chattr chdir chmod chown copy-file dir dirmany dnotify dup fallocate fcntl fiemap \\
                 file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify lease link locka lockf lockofd mmap msync readahead \\
                 rename revio rmap seek sendfile splice symlink sync-file unlink utime xattr; do
          case \" $have \" in *\" $s \"*) ;; *) echo \"this stress-ng has no $s\" >&2; continue ;; esac
          all=\"$all --$s 1\"
          [ \"$SMALL\" = 1 ] || stress-ng --temp-path . --$s 2 --timeout 10 --verify -q || { echo \"stressor $s failed\" >&2; exit 1; }
        done
        t=60; [ \"$SMALL\" = 1 ] && t=10
        stress-ng --temp-path . $all --timeout $t --verify -q")),
    ("python-tests", "python3", Function(python_tests)),
    ("postgres", "su", Function(postgres)),
    ("pjdfstest", "cargo", Function(pjdfstest)),
    ("unusual-calls", "python3", Function(unusual_calls)),
    ("overlay", "setfattr", Function(overlay)),
];

/// Jobs without a short form.
const LONG: [&str; 2] = ["python-tests", "postgres"];

/// How the exercisers of one file are mounted, each with its name. Compression is forced: a file
/// whose data once did not shrink is written as it is from then on, and soon nothing would be
/// compressed. One is not, for that to be met, too.
const FSX_MOUNTS: [(&str, &str); 7] = [
    ("", ""),
    ("-lzo", "compress-force=lzo"),
    ("-zlib", "compress-force=zlib"),
    ("-zstd", "compress-force=zstd:3"),
    ("-zstd-fast", "compress-force=zstd:-3"),
    ("-zstd-unforced", "compress=zstd:3"),
    ("-nodatacow", "nodatacow"),
];

/// A mount of the type `fuse` instead of `fuseblk`, as those of ordinary users are.
const NO_LOOP: &str = "noloop";

/// Algorithms that make something of fsx's data: noise, of which every second byte or so is the
/// same. It has nothing that repeats, which is all that lzo and the fast levels of zstd look for.
const SHRINKS_FSX: [&str; 2] = ["compress-force=zlib", "compress-force=zstd:3"];

/// A job and the mount that it wants.
struct Job {
    name: String,
    tool: &'static str,
    /// Of the mount.
    options: &'static str,
    work: &'static Work,
    /// The kernel must read in the end what was there before the unmount, byte for byte.
    read_back: bool,
    /// Every file must have extents of this algorithm in the end.
    compressed: Option<&'static str>,
}

/// The algorithm of a mount that compresses whatever shrinks.
fn forced(options: &str) -> Option<&str> {
    options.strip_prefix("compress-force=")?.split(':').next()
}

fn jobs() -> Vec<Job> {
    let plain = JOBS.iter().map(|(name, tool, work)| Job {
        name: (*name).to_owned(),
        tool,
        options: "",
        work,
        read_back: false,
        compressed: None,
    });
    let fsx = FSX_MOUNTS.iter().flat_map(|(suffix, options)| {
        let one = |name, tool, work, compressed| Job {
            name: format!("{name}{suffix}"),
            tool,
            options,
            work,
            read_back: true,
            compressed,
        };
        let algorithm = forced(options);
        let of_fsx = algorithm.filter(|_| SHRINKS_FSX.contains(options));
        [
            one("fsx", "cargo", &Function(fsx), of_fsx),
            one("fsx-direct", "timeout", &Function(fsx_direct), algorithm),
        ]
    });
    let aio = [("aio-fuseblk", ""), ("aio-noloop", NO_LOOP)].map(|(name, options)| Job {
        name: name.to_owned(),
        tool: "timeout",
        options,
        work: &Function(asynchronous),
        read_back: true,
        compressed: None,
    });
    plain.chain(fsx).chain(aio).collect()
}

pub fn main(args: &Args) -> Result<()> {
    if need::root().is_none() || need::fuse().is_none() {
        return Ok(());
    }
    let Some(transport) = Transport::new(args.transport.as_deref())? else {
        return Ok(());
    };
    let mut failed = 0;
    let mut ran = 0;
    for one in jobs() {
        let name = &one.name;
        if args.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) || need::tool(one.tool).is_none() {
            continue;
        }
        if args.small && LONG.contains(&name.as_str()) {
            println!("{name}: has no short form");
            continue;
        }
        if args.kernel && one.options == NO_LOOP {
            println!("{name}: not of the kernel's mounts");
            continue;
        }
        println!("{name}");
        ran += 1;
        let started = Instant::now();
        match job(&one, args, &transport) {
            Ok(()) => println!("{name}: passed in {:.1} s", started.elapsed().as_secs_f64()),
            Err(error) => {
                failed += 1;
                println!("FAILED: {name}: {error:#}");
            }
        }
    }
    println!("{} passed, {failed} failed", ran - failed);
    if ran == 0 {
        bail!("no job of this name, or none that can run here");
    }
    if failed > 0 {
        bail!("{failed} jobs failed")
    } else {
        Ok(())
    }
}

fn job(job: &Job, args: &Args, transport: &Transport) -> Result<()> {
    let volume = volume()?;
    let go = |site: &mut Site<'_>| match job.work {
        Script(script) => {
            let repository = tools::repository()?;
            let head = format!("SMALL={}; REPO='{}'; ", u8::from(args.small), repository.display());
            shell(site.path(), &format!("{head}{script}")).map(drop)
        }
        Function(function) => function(site, args),
    };
    if args.kernel {
        let mut site = Site::new(&volume, job.options, true)?;
        go(&mut site)?;
        return site.unmount();
    }
    let image = volume.image().display().to_string();
    let mkfs = [&["mkfs", "-q", "-f"][..], kernel::mkfs_options(), &[&image]].concat();
    run_in(Path::new("/"), binary()?, &mkfs)?;
    let options = match job.options {
        "" => "suid,dev".to_owned(),
        more => format!("suid,dev,{more}"),
    };
    let mut site = Site::new(&volume, &transport.with(&options), false)?;
    go(&mut site)?;
    if let Some(algorithm) = job.compressed {
        assert_compressed(site.path(), algorithm)?;
    }
    let before = if job.read_back {
        contents(site.path())?
    } else {
        Vec::new()
    };
    site.unmount()?;
    judge(&volume, "after the work")?;
    let after = if job.read_back {
        volume.with_mount(contents)?
    } else {
        Vec::new()
    };
    ensure!(before == after, "the kernel reads something else than Cowshed wrote");
    Ok(())
}

/// Every file in a directory has extents of the algorithm, which are smaller than what is in them.
fn assert_compressed(dir: &Path, algorithm: &str) -> Result<()> {
    rustix::fs::syncfs(std::fs::File::open(dir)?)?;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path().display().to_string();
        let out = run_in(dir, binary()?, &["compsize", "--json", &path])?;
        let found: Value = serde_json::from_str(&out)?;
        let size = |what| found["types"][algorithm][what].as_u64().unwrap_or(0);
        let (disk_bytes, bytes) = (size("disk_usage"), size("uncompressed"));
        ensure!(
            bytes > 0 && disk_bytes < bytes,
            "{path}: nothing in it is compressed with {algorithm}: {out}"
        );
    }
    Ok(())
}

/// The files in a directory, byte for byte.
fn contents(dir: &Path) -> Result<Vec<(OsString, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.push((entry.file_name(), std::fs::read(entry.path())?));
        }
    }
    ensure!(!files.is_empty(), "nothing was left to be compared");
    files.sort();
    Ok(files)
}

fn volume() -> Result<KernelVolume> {
    KernelVolume::make(&VolumeOptions {
        // Sparse: the stressors together ask for more than they write, and count a full volume as a
        // failure.
        size_bytes: 12 << 30,
        ..VolumeOptions::default()
    })
}

/// overlayfs, both layers on the mount.
const OVERLAY: &str = "
mkdir lower upper work merged; cp -a /usr/share/doc lower/doc; echo 1 > lower/file; ln -s file lower/link
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
trap 'umount -q merged || true' EXIT
diff -r --no-dereference lower merged
echo 2 >> merged/file; ln merged/file merged/hard; setfattr -n user.a -v b merged/file; rm -r merged/doc; mkdir merged/doc
echo x > merged/doc/new; mv merged/link merged/moved
[ \"$(cat merged/hard | tr '\\n' ' ')\" = '1 2 ' ]; [ \"$(cat lower/file)\" = 1 ]; [ \"$(ls merged/doc)\" = new ]
[ \"$(readlink merged/moved)\" = file ]; [ ! -e merged/link ]; [ -c upper/link ]
# What is merged is the same after another mount of the layers.
umount merged; mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
[ \"$(ls merged)\" = \"$(printf 'doc\\nfile\\nhard\\nmoved')\" ]; [ \"$(getfattr --only-values -n user.a merged/file)\" = b ]";

fn overlay(site: &mut Site<'_>, _: &Args) -> Result<()> {
    match need::kernel_fs("overlay") {
        Some(()) => shell(site.path(), OVERLAY).map(drop),
        None => Ok(()),
    }
}

/// What Python's own tests do with files; those that the kernel's btrfs passes as root.
const PYTHON_TESTS: &str = "
mkdir t; TMPDIR=$PWD/t python3 -m test -w test_asyncio.test_sendfile test_bufio test_bz2 test_dbm test_dbm_dumb \\
  test_fcntl test_file test_filecmp test_fileio test_genericpath test_glob test_gzip test_import test_importlib \\
  test_io test_ioctl test_largefile test_linecache test_logging test_lzma test_mailbox test_mmap test_os \\
  test_pathlib test_posix test_posixpath test_shelve test_shutil test_sqlite3 test_stat test_subprocess \\
  test_tarfile test_tempfile test_unicode_file test_unicode_file_functions test_zipapp test_zipfile \\
  test_zipimport > log 2>&1 || { cat log; exit 1; }";

fn python_tests(site: &mut Site<'_>, _: &Args) -> Result<()> {
    let have = run_in(site.path(), "python3", &["-c", "import test.test_os"]).is_ok();
    match need::require(have, "the tests of Python (Debian: libpython3-testsuite)") {
        Some(()) => shell(site.path(), PYTHON_TESTS).map(drop),
        None => Ok(()),
    }
}

/// PostgreSQL, killed three times in the middle of pgbench: what it recovers adds up, and its own
/// checkers find nothing. `$BIN`: where its programs are.
const POSTGRES: &str = "
sockets=$(mktemp -d); chown postgres \"$sockets\"; trap 'rm -rf \"$sockets\"' EXIT
pg() { su postgres -s /bin/sh -c \"PATH='$BIN':\\$PATH PGHOST=$sockets; export PATH PGHOST; cd '$PWD'; $*\"; }
start() {
  rm -f db/postmaster.pid \"$sockets\"/.s*
  pg \"pg_ctl -w -D db -o '-k $sockets -c listen_addresses=' -l db/log start\" >> log
}
mkdir db; chown postgres db; chmod 700 db; pg 'initdb -k -D db' > log
start; pg 'createdb b; pgbench -i -q -s 5 b' >> log 2>&1
for round in 1 2 3; do
  pg 'pgbench -c 8 -j 2 -T 6 b' >> log 2>&1 & sleep 3
  kill -9 $(head -n 1 db/postmaster.pid); wait || true; sleep 1; start
  sums='select count(*), sum(abalance) = (select sum(tbalance) from pgbench_tellers) from pgbench_accounts'
  [ \"$(pg \"psql -Atc '$sums' b\")\" = '500000|t' ]
done
pg \"psql -qc 'create extension amcheck' b && pg_amcheck --heapallindexed b && pg_ctl -D db -m fast stop\" >> log
pg 'pg_checksums -D db --check'";

fn postgres(site: &mut Site<'_>, _: &Args) -> Result<()> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = installed.map(|version| version.path().join("bin")).max();
    need::require(newest.is_some(), "PostgreSQL (Debian: postgresql)");
    match newest {
        Some(bin) => shell(site.path(), &format!("BIN='{}'\n{POSTGRES}", bin.display())).map(drop),
        None => Ok(()),
    }
}

fn unusual_calls(site: &mut Site<'_>, args: &Args) -> Result<()> {
    let kernels = match args.kernel {
        true => None,
        false => Some(volume()?),
    };
    unusual::run(site, kernels.as_ref())
}

/// What fsx mixes, with the weight of mappings and the alignment of all offsets: once everything
/// that it knows, once without mappings, and once in whole blocks, which alone are shared by
/// copies.
const FSX_MIXES: [(&str, u32, u32); 3] = [("mapped", 10, 1), ("unmapped", 0, 1), ("aligned", 10, 4096)];

/// The seeds of the exercisers of one file.
fn seeds(args: &Args) -> &'static [u64] {
    if args.small { &[1] } else { &[1, 2] }
}

fn fsx(site: &mut Site<'_>, args: &Args) -> Result<()> {
    let root = site.path();
    let fsx = tools::FSX.path()?;
    let operations = args.operations(1500).to_string();
    let scratch = tempfile::tempdir()?;
    for (mix, map, align) in FSX_MIXES {
        let config = scratch.path().join(mix);
        // With whole blocks it preallocates ranges without any length near the end.
        let preallocate = if align == 1 { 3 } else { 0 };
        let text = format!(
            "flen = 1048576\n[opsize]\nmax = 131072\nalign = {align}\n[weights]\nclose_open = 1\ninvalidate = {}\nread = 10\nwrite = 10\n\
             mapread = {map}\nmapwrite = {map}\ntruncate = 3\nfsync = 0.2\nfdatasync = 0.2\nposix_fallocate = {preallocate}\n\
             punch_hole = 5\nsendfile = 3\nposix_fadvise = 1\ncopy_file_range = 5\n",
            map / 10
        );
        std::fs::write(&config, text)?;
        for seed in seeds(args) {
            let seed = &seed.to_string();
            let [config, artifacts] = [&config, scratch.path()].map(|p| p.display().to_string());
            let file = root.join(format!("{mix}-{seed}")).display().to_string();
            let arguments = ["-f", &config, "-P", &artifacts, "-N", &operations, "-S", seed, &file];
            run_in(root, &fsx, &arguments).with_context(|| format!("fsx {mix}, seed {seed}"))?;
        }
    }
    Ok(())
}

fn fsx_direct(site: &mut Site<'_>, args: &Args) -> Result<()> {
    let operations = args.operations(2000);
    for (mix, mixed) in [("direct", false), ("mixed", true)] {
        for seed in seeds(args) {
            let done = direct::exercise(site, &format!("{mix}-{seed}"), operations, *seed, mixed)?;
            let is_shared = done.clones.min(done.dedupes).min(done.exchanges) > 0;
            ensure!(args.kernel || is_shared, "some calls were never done: {done:?}");
            let is_cold = done.remounts > 0 && (done.cold_reads > 0 || !mixed);
            ensure!(is_cold, "nothing was read from disk: {done:?}");
        }
    }
    Ok(())
}

fn asynchronous(site: &mut Site<'_>, args: &Args) -> Result<()> {
    let seconds = args.seconds.unwrap_or(if args.small { 4 } else { 60 });
    let seed = u64::from(std::process::id());
    let done = aio::exercise(site.path(), "aio", Duration::from_secs(seconds), args.writers, seed)?;
    println!("{done:?}");
    let reads = done.cached_reads.min(done.mapped_reads).min(done.direct_reads);
    ensure!(done.writes.min(reads) > 0, "nothing was done: {done:?}");
    Ok(())
}

/// All tests of pjdfstest as root: none may fail or be left out that the kernel's btrfs passes on
/// this machine.
fn pjdfstest(site: &mut Site<'_>, args: &Args) -> Result<()> {
    let ours = pjdfstest_failures(site.path())?;
    if args.kernel {
        println!("not passed by the kernel: {ours:?}");
        return Ok(());
    }
    let kernel = volume()?.with_mount(pjdfstest_failures)?;
    let worse: Vec<_> = ours.difference(&kernel).collect();
    println!(
        "{} tests not passed by the kernel, {} by Cowshed; by Cowshed alone: {worse:?}",
        kernel.len(),
        ours.len()
    );
    if worse.is_empty() {
        Ok(())
    } else {
        bail!("pjdfstest: the kernel's btrfs passes {}: {worse:?}", worse.len())
    }
}

/// How many tests pjdfstest 0.2 has, at least: fewer mean that it did not run.
const PJDFSTEST_TESTS_MIN: usize = 390;

/// The tests that fail or are skipped.
fn pjdfstest_failures(root: &Path) -> Result<BTreeSet<String>> {
    let program = tools::PJDFSTEST.path()?;
    let scratch = tempfile::tempdir()?;
    let config = scratch.path().join("pjdfstest.toml");
    // Two users that every system has; the group of the first has two names.
    let group = run_in(scratch.path(), "id", &["-gn", "nobody"])?;
    let text = format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.02\nallow_remount = true\n\
         [dummy_auth]\nentries = [[\"nobody\", \"{}\"], [\"daemon\", \"daemon\"]]\n",
        group.trim()
    );
    std::fs::write(&config, text)?;
    std::fs::create_dir(root.join("w"))?;
    let other = Path::new("/dev/shm");
    // Short names: those of sockets have little room.
    let script = format!(
        "chmod 777 w; RUST_BACKTRACE=0 NO_COLOR=1 {program} -c {config} -p w -s {other} 2>&1 || true",
        program = program.display(),
        config = config.display(),
        other = other.display(),
    );
    let out = shell(root, &script)?;
    let mut passed = 0;
    let mut others = BTreeSet::new();
    for line in out.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(_), Some("ok"), None) => passed += 1,
            (Some(name), Some("FAILED" | "skipped"), None) => {
                others.insert(name.to_owned());
            }
            _ => {}
        }
    }
    if passed + others.len() < PJDFSTEST_TESTS_MIN {
        bail!("pjdfstest ran only {} tests:\n{out}", passed + others.len());
    }
    Ok(others)
}

//! The same sources give the same bytes: with any number of threads, from any host file system, on
//! any day.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cowshed_harness::{KernelMount, LoopDevice, need};

use super::{Tmpfs, noise, run_with, small_tree, source};
use crate::support::run;

#[test]
fn same_sources_give_the_same_bytes_with_any_number_of_threads() {
    let (dir, root) = source();
    small_tree(&root);
    // The same again, made in another order, with other inode numbers.
    let again = dir.path().join("again");
    fs::create_dir_all(again.join("home/user")).unwrap();
    let copy = format!("cp -a {}/. {}", root.display(), again.display());
    cowshed_harness::shell(dir.path(), &copy).unwrap();
    fs::remove_file(again.join("etc/empty")).unwrap();
    fs::write(again.join("etc/empty"), "").unwrap();
    let epoch = [("SOURCE_DATE_EPOCH", "1700000000")];
    let mut images = Vec::new();
    for (nth, (from, jobs)) in [(&root, 1), (&root, 16), (&again, 2)].into_iter().enumerate() {
        let image = dir.path().join(format!("image-{nth}"));
        let line = format!("build -q --from {{}} --compress zstd --subvol home --jobs {jobs} {{}}");
        run_with(&epoch, &line, &[from, &image]).ok();
        images.push(fs::read(image).unwrap());
    }
    assert!(images[0] == images[1], "threads make no difference");
    assert!(images[0] == images[2], "nor does the order in which files were made");
    let image = dir.path().join("seeded");
    let seeded = [epoch[0], ("DETERMINISTIC_SEED", "1")];
    run_with(&seeded, "build -q --from {} {}", &[&root, &image]).ok();
    let super_of = |image: &Path| run("inspect super --json {}", &[image]).ok().json()[0]["superblock"]["fsid"].clone();
    assert_ne!(super_of(&image), super_of(&dir.path().join("image-0")));
    let stat = run("stat --json {} /etc", &[&image]).ok().json();
    assert!(stat[0]["modified"]["seconds"] == 1_700_000_000, "{stat}");
}

/// Copies a tree, its names in an order by chance.
fn shuffled_copy(from: &Path, to: &Path) {
    let script = format!(
        "mkdir -p {to}; cd {from}; find . -mindepth 1 -type d | sort | (cd {to}; xargs mkdir -p)
         find . -mindepth 1 -not -type d | shuf | tar -cf - --no-recursion -T - | tar -xpf - -C {to}
         find . -type d | while read -r d; do touch -r \"$d\" \"{to}/$d\"; done",
        from = from.display(),
        to = to.display()
    );
    cowshed_harness::shell(from, &script).unwrap();
}

/// Seconds from the first day to the second.
const TWO_DAYS: i64 = 2 * 86_400 + 3_661;

/// Makes a library that moves the clock of the programs that load it, which no test may do to the
/// machine: two days on, by `LD_PRELOAD`. The clock that measures intervals stays.
fn later_clock(dir: &Path) -> PathBuf {
    let source = format!(
        "#define _GNU_SOURCE\n#include <time.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n\
         int clock_gettime(clockid_t clock, struct timespec *now) {{\n\
         long failed = syscall(SYS_clock_gettime, clock, now);\n\
         if (!failed && clock == CLOCK_REALTIME) now->tv_sec += {TWO_DAYS};\n\
         return failed;\n}}\n"
    );
    fs::write(dir.join("later.c"), source).unwrap();
    cowshed_harness::shell(dir, "cc -shared -fPIC -o later.so later.c").unwrap();
    dir.join("later.so")
}

/// The program's clock goes two days on, and all access times of the source with it. (The times of
/// change of its inodes are the host's: they are in no image.)
#[test]
fn two_days_make_one_image() {
    for tool in ["cc", "touch"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let (dir, root) = source();
    small_tree(&root);
    cowshed_harness::shell(&root, "find . -exec touch -h -d @1650000000.25 {} +").unwrap();
    let library = later_clock(dir.path());
    let later = [("LD_PRELOAD", library.to_str().unwrap())];
    let image = |name: &str| dir.path().join(name);
    let line = "build -q --from {} --slack 64M --compress zstd --subvol home {}";
    let epoch = [("SOURCE_DATE_EPOCH", "1700000000")];
    run_with(&epoch, line, &[&root, &image("first")]).ok();
    cowshed_harness::shell(&root, "find . -exec touch -h -a -d '2 days' {} +").unwrap();
    run_with(&[epoch[0], later[0]], line, &[&root, &image("second")]).ok();
    assert!(fs::read(image("first")).unwrap() == fs::read(image("second")).unwrap());
    // The library does move the clock of the program: what is touched now has a time of that day.
    let touched = |env: &[(&str, &str)]| {
        let path = format!("{}:/etc/hostname", image("first").display());
        run_with(env, "touch {}", &[path.as_ref()]).ok();
        let stat = run("stat --json {} /etc/hostname", &[&image("first")]).ok().json();
        stat[0]["modified"]["seconds"].as_i64().unwrap()
    };
    let moved = touched(&later) - touched(&[]);
    assert!((TWO_DAYS - 60..=TWO_DAYS).contains(&moved), "{moved}");
}

#[test]
fn threads_order_of_names_host_and_moment_make_one_image() {
    let Some(()) = need::loop_devices() else { return };
    for tool in ["mkfs.ext4", "shuf", "tar"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let (dir, root) = source();
    small_tree(&root);
    for n in 0..300 {
        fs::write(root.join(format!("etc/conf.d/{n}")), noise(n * 37)).unwrap();
    }
    cowshed_harness::shell(&root, "find . -exec touch -h -d @1650000000.25 {} +").unwrap();
    let disk = dir.path().join("disk");
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    cowshed_harness::shell(dir.path(), "mkfs.ext4 -q disk").unwrap();
    let device = LoopDevice::attach(&disk).unwrap();
    let at = tempfile::tempdir().unwrap();
    let ext4 = KernelMount::new("ext4", &[device.path()], at.path(), "").unwrap();
    let memory = dir.path().join("memory");
    fs::create_dir(&memory).unwrap();
    let tmpfs = Tmpfs::new(&memory, "size=64m");
    let sources = [
        at.path().join("one"),
        at.path().join("two"),
        memory.join("one"),
        memory.join("two"),
    ];
    sources.iter().for_each(|to| shuffled_copy(&root, to));
    let mut sums = Vec::new();
    for (from, jobs) in sources.iter().zip([1, 16, 16, 1]) {
        for epoch in ["1600000000", "1700000000"] {
            let image = dir.path().join(format!("image-{epoch}"));
            let line =
                format!("build -q --from {{}} --compress zstd --dedupe --all-root --subvol home --jobs {jobs} {{}}");
            run_with(&[("SOURCE_DATE_EPOCH", epoch)], &line, &[from, &image]).ok();
        }
        sums.push(cowshed_harness::shell(dir.path(), "sha256sum image-1600000000 image-1700000000").unwrap());
        // The next one is built at another second.
        std::thread::sleep(Duration::from_millis(1001));
    }
    ext4.unmount().unwrap();
    drop(tmpfs);
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:#?}");
    let (early, late) = sums[0].split_once('\n').unwrap();
    assert_ne!(early[..64], late[..64], "the epoch bounds times");
}

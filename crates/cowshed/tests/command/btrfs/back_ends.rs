//! One script of changes by the stock command on a mount of the kernel's, by ours on another such
//! mount, on a mount of ours, and on an image. All say and leave the same.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use cowshed_harness::{KernelVolume, need, shell};

use super::{Answer, At, can_compare, fresh, kernel_mount, ours, stock, text, with_own_mount};
use crate::support::{Scratch, run};

/// Lines that every back end answers with the same words.
const SCRIPT: &[&str] = &[
    "subvolume create @/a",
    "subvolume create @/a",
    "subvolume create @/dir/b",
    "subvolume create @/none/b",
    "subvolume create @/dir/..",
    "subvolume create @/a/n",
    "-q subvolume create @/quiet",
    "subvolume snapshot @/a @/s1",
    "subvolume snapshot -r @/a @/s2",
    "subvolume snapshot -r @/a @/dir",
    "subvolume snapshot -r @/a/ @/dir/",
    "subvolume snapshot @/dir @/s3",
    "subvolume snapshot @/none @/s3",
    "subvolume snapshot @/a @/none/s3",
    "subvolume snapshot @/a @/file",
    "subvolume snapshot @/a",
    "subvolume create @/s2/in",
    "subvolume set-default @/s1",
    "subvolume get-default @/",
    "subvolume delete @/s1",
    "subvolume set-default 999 @/",
    "subvolume set-default x @/",
    "subvolume set-default @/dir",
    "subvolume set-default @/none",
    "subvolume set-default 5 @/",
    "subvolume delete @/a",
    "subvolume delete @/dir",
    "subvolume delete @/none",
    "subvolume delete @/s1 @/none @/quiet",
    "subvolume delete -c @/s2",
    "subvolume delete -C @/a/n @/a",
    "subvolume delete -i 257 @/",
    "subvolume delete -i 999 @/",
    "subvolume delete -i 5 @/",
    "subvolume delete -i 300 @/ @/",
    "subvolume delete",
    "subvolume create @/again",
    "subvolume list -p @/",
];

/// A file that lies in many extents, and some others.
const SEED: &str = "mkdir dir packed; echo x >file; for i in $(seq 0 49); do
    head -c 4096 /dev/zero | tr '\\0' x | dd of=dir/loose bs=4096 seek=$i conv=notrunc status=none; sync -f .; done";

fn seed() -> KernelVolume {
    let volume = fresh();
    volume.with_mount(|root| shell(root, SEED)).unwrap();
    volume
}

fn play(at: &At<'_>, script: &[&str]) -> Vec<Answer> {
    script.iter().map(|line| at.run(line)).collect()
}

/// The transaction of a subvolume is the back end's own affair.
fn without_generations(text: &str) -> String {
    let words = text.split(' ').scan(false, |is_number, word| {
        let shown = if *is_number { "N" } else { word };
        *is_number = word == "gen" || word == "cgen";
        Some(shown)
    });
    words.collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn compare(script: &[&str], answers: &[Answer], stock: &[Answer], what: &str) {
    for ((line, own), stock) in script.iter().zip(answers).zip(stock) {
        let (out, stock_out) = (without_generations(&own.out), without_generations(&stock.out));
        assert_eq!(out, stock_out, "{what}: {line}: {}", own.err);
        assert_eq!(own.code, stock.code, "{what}: {line}: {}", own.err);
        let is_usage = stock.err.contains("expected") || stock.err.contains("usage");
        if !is_usage {
            assert_eq!(own.err, stock.err, "{what}: {line}");
        }
    }
}

/// Plays a script by all back ends, each on a volume of its own; `check` looks at what they leave,
/// on a mount of the kernel's.
fn everywhere(script: &[&str], failures: std::ops::Range<usize>, check: &dyn Fn(&Path)) {
    let check = |volume: &KernelVolume| {
        volume.assert_clean();
        volume
            .with_mount(|root| {
                check(root);
                Ok(())
            })
            .unwrap();
    };
    let volume = seed();
    let (mounted, root) = kernel_mount(&volume);
    let expected = play(&stock(&root), script);
    let failed = expected.iter().filter(|answer| answer.code != 0).count();
    assert!(failures.contains(&failed), "some are refused, some not: {failed}");
    mounted.unmount_quietly().unwrap();
    check(&volume);

    let volume = seed();
    let (mounted, root) = kernel_mount(&volume);
    compare(script, &play(&ours(&root), script), &expected, "on the kernel's mount");
    mounted.unmount_quietly().unwrap();
    check(&volume);

    let volume = seed();
    with_own_mount(&volume, "noatime", |root| {
        compare(script, &play(&ours(root), script), &expected, "on our mount");
    });
    check(&volume);

    let volume = seed();
    let image = format!("{}:", volume.image().display());
    compare(script, &play(&ours(&image), script), &expected, "on the image");
    check(&volume);
}

#[test]
fn changes_by_every_back_end_are_those_of_the_stock_command() {
    let Some(()) = can_compare() else { return };
    everywhere(SCRIPT, 10..25, &|root| {
        assert!(root.join("again").is_dir() && !root.join("s1").exists());
    });
}

/// Labels, properties, defragmentation.
const SETTINGS: &[&str] = &[
    "filesystem label @/ first",
    "filesystem label @/",
    "filesystem label @/none x",
    "filesystem label @/ LONG",
    "filesystem label @/none LONG",
    "property set @/ label second",
    "property get @/",
    "property set @/file label x",
    "subvolume create @/a",
    "property set @/a ro true",
    "subvolume create @/a/in",
    "property get @/a ro",
    "property set @/a ro maybe",
    "property set @/a ro false",
    "property set -ts @/a ro true",
    "property set @/dir ro true",
    "property set @/a wobble x",
    "property set @/a compression zstd",
    "property set @/a ro false",
    "property set @/a compression lzo",
    "property get @/a",
    "property set @/dir compression zstd",
    "property set @/dir compression zlib",
    "property get @/dir compression",
    "property set @/file compression wobble",
    "property set @/file compression none",
    "property get @/file",
    "property set @/packed compression zlib",
    "property set @/a compression no",
    "property get @/a compression",
    "filesystem defragment @/file",
    "filesystem defragment @/dir",
    "filesystem defragment -r @/dir @/none",
    "filesystem defragment -v -czstd @/dir/loose",
    "filesystem defragment -vr @/dir",
    "filesystem defragment -cwobble @/file",
    "filesystem defragment -s x @/file",
    "filesystem defragment -s 4k -l 64k -t 1m -f @/dir/loose",
    "-v filesystem defragment @/file",
    "filesystem defragment",
];

#[test]
fn settings_by_every_back_end_are_those_of_the_stock_command() {
    let Some(()) = can_compare() else { return };
    everywhere(SETTINGS, 10..20, &|root| {
        let root = text(root);
        assert_eq!(stock(&root).ok("property get @/"), "ro=false\nlabel=second\n");
        assert_eq!(stock(&root).ok("property get @/dir"), "compression=zlib\n");
        let all = std::fs::read(format!("{root}/dir/loose")).unwrap();
        assert!(all.len() == 200 << 10 && all.iter().all(|byte| *byte == b'x'));
    });
}

/// Requests for ioctls do not carry the umask.
#[test]
fn new_subvolumes_have_the_mode_that_the_umask_leaves() {
    const UMASKS: [u32; 3] = [0, 0o027, 0o177];
    let make = |at: &At<'_>| {
        for umask in UMASKS {
            at.ok_with_umask(umask, &format!("subvolume create @/u{umask:o}"));
        }
    };
    let check = |volume: &KernelVolume, what: &str| {
        let mode = |root: &Path, umask| fs::metadata(root.join(format!("u{umask:o}"))).map(|meta| meta.mode() & 0o7777);
        volume
            .with_mount(|root| {
                for umask in UMASKS {
                    assert_eq!(mode(root, umask)?, 0o777 & !umask, "{what}: umask {umask:o}");
                }
                Ok(())
            })
            .unwrap();
    };
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    let (mounted, root) = kernel_mount(&volume);
    make(&stock(&root));
    mounted.unmount_quietly().unwrap();
    check(&volume, "by the stock command");
    let volume = fresh();
    with_own_mount(&volume, "noatime", |root| make(&ours(root)));
    check(&volume, "on our mount");
    let volume = fresh();
    make(&ours(&format!("{}:", volume.image().display())));
    check(&volume, "on the image");
}

/// `create -p` and `delete -R`, which came to btrfs(8) after 6.2.
#[test]
fn parents_are_made_and_nested_subvolumes_deleted() {
    let check = |at: &At<'_>| {
        assert_eq!(
            at.ok("subvolume create -p @/x/y/a @/b"),
            "Create subvolume '@/x/y/a'\nCreate subvolume '@/b'\n"
        );
        for made in ["x/y/a/in", "x/y/a/in/er", "x/y/a/other"] {
            at.ok(&format!("subvolume create @/{made}"));
        }
        let deleted = at.ok("subvolume delete -R @/x/y/a");
        let names: Vec<_> = deleted.lines().filter_map(|line| line.split('\'').nth(1)).collect();
        assert_eq!(names.len(), 4, "{deleted}");
        assert_eq!(names[3], "@/x/y/a");
        let place = |name: &str| names.iter().position(|found| *found == name);
        assert!(place("@/x/y/a/in/er") < place("@/x/y/a/in"), "{deleted}");
        assert!(at.ok("subvolume list @/").ends_with(" path b\n"));
    };
    let scratch = Scratch::new();
    check(&ours(&format!("{}:", scratch.image.display())));
    scratch.assert_clean();
    let Some(()) = can_compare() else { return };
    let volume = seed();
    with_own_mount(&volume, "noatime", |root| check(&ours(root)));
    let volume = seed();
    let (mounted, root) = kernel_mount(&volume);
    check(&ours(&root));
    mounted.unmount_quietly().unwrap();
}

/// `--dry-run` came to btrfs(8) after 6.2.
#[test]
fn dry_run_says_what_would_be_deleted_and_deletes_nothing() {
    let check = |at: &At<'_>| {
        at.ok("subvolume create -p @/a @/a/in @/b");
        let all = at.ok("subvolume list -u @/");
        assert_eq!(at.ok("-q --dry-run subvolume delete @/a"), "");
        let lines = ["-C @/a/in @/b", "-c @/b", "-R @/a", "-i 256 @/"];
        let said = lines.map(|line| at.ok(&format!("--dry-run subvolume delete {line}")));
        assert!(said[0].starts_with("Delete subvolume (commit): '@/a/in'\n"), "{said:?}");
        assert!(said[2].lines().count() == 2, "{said:?}");
        let wrong = at.run("--dry-run subvolume delete @/none @/b");
        assert_eq!(
            (wrong.code, &*wrong.out),
            (1, "Delete subvolume (no-commit): '@/b'\n"),
            "{wrong:?}"
        );
        assert_eq!(at.ok("subvolume list -u @/"), all);
        assert_eq!(at.ok("subvolume delete -R @/a"), said[2]);
    };
    let scratch = Scratch::new();
    check(&ours(&format!("{}:", scratch.image.display())));
    scratch.assert_clean();
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    with_own_mount(&volume, "noatime", |root| check(&ours(root)));
    let volume = fresh();
    let (mounted, root) = kernel_mount(&volume);
    check(&ours(&root));
    mounted.unmount_quietly().unwrap();
}

#[test]
fn default_subvolume_is_refused_before_what_is_nested_in_it_is_deleted() {
    let scratch = Scratch::new();
    let root = format!("{}:", scratch.image.display());
    let at = ours(&root);
    at.ok("subvolume create -p @/a @/a/in");
    at.ok("subvolume set-default @/a");
    let refused = at.run("subvolume delete -R @/a");
    assert_eq!((refused.code, &*refused.out), (1, ""), "{refused:?}");
    assert!(
        refused.err.starts_with("WARNING: not deleting default subvolume id "),
        "{refused:?}"
    );
    assert_eq!(at.ok("subvolume list @/").lines().count(), 2);
}

/// An ordinary user has all of it on an image of their own.
#[test]
fn ordinary_users_work_on_their_images() {
    const USER: u32 = 65534;
    let Some(()) = need::root() else { return };
    let scratch = Scratch::new();
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(&scratch.image, Some(USER), Some(USER)).unwrap();
    let root = format!("{}:", scratch.image.display());
    let ok = |line: &str| {
        let answer = ours(&root).run_as(line, USER);
        assert_eq!(answer.code, 0, "{line}: {answer:?}");
        answer.out
    };
    ok("subvolume create @/a");
    ok("subvolume snapshot -r @/a @/s");
    assert_eq!(ok("subvolume list -r @/").lines().count(), 1);
    ok("subvolume set-default @/s");
    assert!(ok("subvolume get-default @/").ends_with(" path s\n"));
    ok("subvolume delete @/a");
    let stat = run("stat --json -o subvolid=5 {} /s", &[&scratch.image]).ok().json();
    assert_eq!(stat[0]["uid"], USER, "{stat}");
    assert_eq!(stat[0]["mode"], "0755", "{stat}");
    // Of another user: it is not even read.
    fs::set_permissions(&scratch.image, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = ours(&root).run_as("subvolume list @/", USER + 1 - 2);
    assert!(
        refused.code == 1 && refused.err.contains("ermission denied"),
        "{refused:?}"
    );
    scratch.assert_clean();
}

/// Two images in one command, and an image that is mounted.
#[test]
fn volumes_are_not_mixed_up() {
    let (one, two) = (Scratch::new(), Scratch::new());
    let root = format!("{}:", one.image.display());
    ours(&root).ok("subvolume create @/a");
    let across = ours(&root).run(&format!("subvolume snapshot @/a {}:/s", two.image.display()));
    assert_eq!(across.code, 1);
    assert_eq!(across.err, "ERROR: cannot snapshot '@/a': Invalid cross-device link\n");
    // Two names of one image are one volume.
    let link = one.path("link.img");
    std::os::unix::fs::symlink(&one.image, &link).unwrap();
    ours(&root).ok(&format!("subvolume snapshot @/a {}:/s", link.display()));
    assert!(ours(&root).ok("subvolume list @/").contains("path s\n"));
    let Some(()) = can_compare() else { return };
    let mnt: PathBuf = one.mountpoint();
    let _guard = crate::mount::Guard(&mnt);
    run("mount {} {}", &[&one.image, &mnt]).ok();
    let busy = ours(&root).run("subvolume list @/");
    assert!(busy.code == 1 && busy.err.contains("in use by a writer"), "{busy:?}");
    crate::mount::unmount(&mnt);
}

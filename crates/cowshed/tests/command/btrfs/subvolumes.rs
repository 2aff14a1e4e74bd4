//! What `subvolume` shows, beside the stock command: on a mount of the kernel's, then, with the
//! same ids, uuids, times and generations, on a mount of ours and on the image.

use std::collections::BTreeSet;
use std::path::Path;

use cowshed_harness::{KernelVolume, make_subvolume_writable, shell};

use super::{At, can_compare, fresh, kernel_mount, ours, stock, with_own_mount};

/// Nested subvolumes, snapshots of them, received ones, files of each kind of extent.
fn fill(volume: &KernelVolume) {
    let script = r"
        btrfs -q subvolume create a; btrfs -q subvolume create a/n; mkdir -p d/deep
        echo hi >a/f; dd if=/dev/urandom of=a/g bs=64k count=3; sync -f .
        btrfs -q subvolume snapshot a s1; btrfs -q subvolume snapshot -r a s2
        btrfs -q subvolume snapshot a s1/a; btrfs -q subvolume snapshot -r a/n d/deep/n
        mkdir -p s1/dir/deep; btrfs -q subvolume create s1/dir/deep/in
        btrfs -q subvolume create s1/dir/deep/in/er; sync -f .
        truncate -s 1M s1/dir/holes
        dd if=/dev/urandom of=s1/dir/holes bs=4k count=1 seek=20 conv=notrunc
        fallocate -l 64k s1/dir/pre; chattr +c s1/dir
        yes | head -c 200k >s1/dir/comp; head -c 100 /dev/zero >s1/dir/cin; ln s1/dir/comp s1/hard
        btrfs send -q s2 | btrfs receive -q d
        btrfs -q subvolume create gone; btrfs -q subvolume delete gone; btrfs subvolume sync .
        btrfs subvolume set-default s1; sync -f .";
    let fill = |root: &Path| {
        shell(root, script)?;
        // Received, and writable all the same: that is warned of.
        Ok(make_subvolume_writable(&std::fs::File::open(root.join("d/s2"))?)?)
    };
    volume.with_mount(fill).unwrap();
}

const PLACES: [&str; 9] = ["", "a", "d", "s1", "s1/dir", "s1/dir/deep/in", "a/f", "none", "d/s2"];
const LISTS: [&str; 23] = [
    "",
    "-t",
    "-a",
    "-o",
    "-p",
    "-c",
    "-g",
    "-u",
    "-q",
    "-R",
    "-s",
    "-r",
    "-d",
    "-oa",
    "-to",
    "-ts",
    "-tacguqRps",
    "-acguqRps",
    "-G +8",
    "-C -8",
    "--sort=-path",
    "--sort=gen,-ogen,path",
    "--sort=-rootid",
];

/// Lines of the command that change nothing.
fn questions() -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for place in PLACES {
        for how in LISTS {
            lines.push(format!("subvolume list {how} @/{place}"));
        }
        lines.push(format!("subvolume show @/{place}"));
        lines.push(format!("subvolume get-default @/{place}"));
        for generation in [0, 7, 8, 9, 100] {
            lines.push(format!("subvolume find-new @/{place} {generation}"));
        }
    }
    lines.extend((255..270).map(|id| format!("subvolume show -r {id} @/")));
    let short = [
        "sub l @/",
        "subv show @/a",
        "su get @/",
        "sub find @/a 0",
        "sub sync @/",
    ];
    lines.extend(short.map(str::to_owned));
    let bad = [
        "list -G x @/",
        "list --sort=x @/",
        "list",
        "show",
        "find-new @/a",
        "wobble",
        "show --wobble @/",
    ];
    lines.extend(bad.map(|words| format!("subvolume {words}")));
    lines.push("subvolume show -u 01234567-0123-0123-0123-0123456789ab @/".into());
    lines
}

/// Usage is worded in another way, and refused with the same code.
fn is_usage(line: &str, err: &str) -> bool {
    err.contains("sage:") || err.contains("--help") || line.ends_with("x @/")
}

#[track_caller]
fn same(line: &str, ours: &super::Answer, stock: &super::Answer, what: &str) {
    assert_eq!(ours.out, stock.out, "{what}: {line}: {}", ours.err);
    assert_eq!(ours.code, stock.code, "{what}: {line}");
    if !is_usage(line, &ours.err) {
        assert_eq!(ours.err, stock.err, "{what}: {line}");
    }
}

#[test]
fn subvolumes_are_shown_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    fill(&volume);
    let (mounted, root) = {
        // The default is a subvolume: the top level is asked for.
        let mounted = volume.mount_with("noatime,subvolid=5").unwrap();
        let root = super::text(&mounted.dir().canonicalize().unwrap());
        (mounted, root)
    };
    let mut answers = Vec::new();
    for line in questions() {
        let answer = stock(&root).run(&line);
        same(&line, &ours(&root).run(&line), &answer, "on the kernel's mount");
        answers.push((line, answer));
    }
    let texts: BTreeSet<_> = answers.iter().map(|(_, answer)| &answer.out).collect();
    assert!(texts.len() > 60, "the lines differ: {}", texts.len());
    mounted.unmount_quietly().unwrap();

    let image = format!("{}:", volume.image().display());
    let compare = |at: &At<'_>, what: &str| {
        for (line, answer) in &answers {
            // A path in an image has no other name.
            let plain = |mut answer: super::Answer| {
                let err = answer
                    .err
                    .replace("cannot find real path for '@/none'", "Could not statfs");
                answer.err = err.replace("'@/'", "'@'");
                answer
            };
            let (own, answer) = (plain(at.run(line)), plain(answer.clone()));
            same(line, &own, &answer, what);
        }
    };
    compare(&ours(&image), "on the image");
    with_own_mount(&volume, "subvolid=5,noatime", |root| {
        compare(&ours(root), "on our mount")
    });
    volume.assert_clean();
}

#[test]
fn subvolume_that_is_mounted_shows_paths_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    fill(&volume);
    let mounted = volume.mount_with("noatime,subvol=s1").unwrap();
    let root = super::text(&mounted.dir().canonicalize().unwrap());
    let lines: Vec<String> = ["", "dir", "dir/deep/in", "a"]
        .iter()
        .flat_map(|place| {
            let lists = ["", "-a", "-o", "-t"].map(|how| format!("subvolume list {how} @/{place}"));
            let shown = format!("subvolume show @/{place}");
            lists
                .into_iter()
                .chain([shown, format!("subvolume get-default @/{place}")])
        })
        .collect();
    let answers: Vec<_> = lines.iter().map(|line| stock(&root).run(line)).collect();
    for (line, answer) in lines.iter().zip(&answers) {
        same(line, &ours(&root).run(line), answer, "on the kernel's mount");
    }
    mounted.unmount_quietly().unwrap();
    with_own_mount(&volume, "subvol=s1,noatime", |root| {
        for (line, answer) in lines.iter().zip(&answers) {
            same(line, &ours(root).run(line), answer, "on our mount");
        }
    });
}

/// Deleted subvolumes that something has open are listed, and waited for.
#[test]
fn deleted_subvolumes_that_are_in_use_are_listed() {
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    let (mounted, root) = kernel_mount(&volume);
    let check = |at: &At<'_>, root: &str| {
        at.ok("subvolume create @/gone");
        let id = at.ok("subvolume list @/").split(' ').nth(1).unwrap().to_owned();
        let open = std::fs::File::open(Path::new(root).join("gone")).unwrap();
        at.ok("subvolume delete -c @/gone");
        let listed = at.ok("subvolume list -d @/");
        assert!(listed.starts_with(&format!("ID {id} gen ")), "{listed}");
        assert!(listed.ends_with(" top level 0 path DELETED\n"), "{listed}");
        let absolute = at.ok("subvolume list -da @/");
        assert!(absolute.ends_with(" path <FS_TREE>/DELETED\n"), "{absolute}");
        assert_eq!(at.ok("subvolume list @/"), "");
        drop(open);
        let waited = at.ok(&format!("subvolume sync @/ {id}"));
        assert_eq!(
            waited,
            format!("Waiting for 1 subvolume\nSubvolume id {id} is gone (1/1)\n")
        );
        assert_eq!(at.ok("subvolume list -d @/"), "");
        assert_eq!(at.ok("subvolume sync @/"), "");
    };
    check(&stock(&root), &root);
    check(&ours(&root), &root);
    mounted.unmount_quietly().unwrap();
    with_own_mount(&volume, "noatime", |root| check(&ours(root), root));
}

/// The item of names is longer than what one `BTRFS_IOC_TREE_SEARCH` gives; and files beside each
/// other are asked for together.
#[test]
fn find_new_names_files_with_many_names_and_many_files() {
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    let script = r"
        mkdir d; dd if=/dev/zero of=d/many bs=4k count=2
        for i in $(seq 40); do ln d/many d/$(printf %0200d $i); done
        for i in $(seq 100); do echo $i >d/f$i; ln d/f$i d/second$i; done
        rm d/f7; setfattr -n user.a -v 1 d/f9; sync -f .";
    volume.with_mount(|root| shell(root, script)).unwrap();
    let found = |at: &At<'_>| {
        let answer = at.run("subvolume find-new @/ 0");
        assert_eq!((answer.code, &answer.err[..]), (0, ""));
        answer.out
    };
    let mounted = volume.mount_with("noatime").unwrap();
    let by_kernel = found(&ours(&super::text(&mounted.dir().canonicalize().unwrap())));
    mounted.unmount_quietly().unwrap();
    let names: Vec<_> = by_kernel.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    let first = |n| if n == 7 { "d/second7".into() } else { format!("d/f{n}") };
    let wanted = ["d/many".into()].into_iter().chain((1..=100).map(first));
    // The last line is the marker.
    assert_eq!(names[..names.len() - 1], wanted.collect::<Vec<String>>());
    let image = format!("{}:", volume.image().display());
    assert_eq!(found(&ours(&image)), by_kernel, "on the image");
    with_own_mount(&volume, "noatime", |root| assert_eq!(found(&ours(root)), by_kernel));
}

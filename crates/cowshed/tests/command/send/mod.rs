//! `send`: streams of ours are received by the kernel. What it received is compared with what was
//! sent, seen through the kernel.

use std::fs;
use std::path::{Path, PathBuf};

use cowshed_harness::tree::{Tree, snapshot};
use cowshed_harness::{KernelVolume, VolumeOptions, need, shell};

use crate::extents::{Dice, Mounted, mounted};
use crate::mount::{Guard, unmount};
use crate::receive::random::{CHANGES, Changer, ROUNDS};
use crate::receive::{FIRST, SECOND, WAYS, btrfs, can_receive, extents, sent};
use crate::support::{Scratch, run};

/// Sends a subvolume of an image, or of a mount.
fn send(how: &str, at: &dyn Fn(&str) -> PathBuf, what: &str, stream: &Path) {
    let mut line = format!("send -q {how} -f {{}}");
    let mut paths = vec![stream.to_owned()];
    let words: Vec<_> = what.split(' ').collect();
    for word in &words {
        match word.starts_with('-') {
            true => line += &format!(" {word}"),
            false => {
                line += " {}";
                paths.push(at(word));
            }
        }
    }
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    run(&line, &paths).ok();
}

/// Makes snapshots of random changes, one behind the other.
fn make_all(root: &Path, seed: u64) -> anyhow::Result<Vec<Tree>> {
    btrfs(root, "subvolume create s");
    let mut changer = Changer {
        dice: Dice(seed),
        root: root.join("s"),
    };
    let mut trees = Vec::new();
    for round in 0..=ROUNDS {
        let done = (0..CHANGES).filter(|_| changer.change().is_ok()).count();
        assert!(done > CHANGES / 4, "{done} changes");
        btrfs(root, &format!("subvolume snapshot -r s s{round}"));
        trees.push(snapshot(&root.join(format!("s{round}")))?);
    }
    Ok(trees)
}

fn random_changes(seed: u64) {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let [streams, mnt] = ["streams", "mnt"].map(|name| dir.path().join(name));
    fs::create_dir_all(&streams).unwrap();
    fs::create_dir_all(&mnt).unwrap();
    let options = VolumeOptions {
        mount_options: "compress=lzo",
        ..VolumeOptions::default()
    };
    let sending = KernelVolume::make(&options).unwrap();
    let trees = sending.with_mount(|root| make_all(root, seed)).unwrap();
    let image = |name: &str| PathBuf::from(format!("{}:/{name}", sending.image().display()));
    let mounted = |name: &str| mnt.join(name);
    for (way, how) in WAYS {
        // One of the ways from a mount.
        let is_mounted = way == "v2";
        if is_mounted {
            run("mount {} {}", &[sending.image(), &mnt]).ok();
        }
        let _guard = Guard(&mnt);
        let at: &dyn Fn(&str) -> PathBuf = if is_mounted { &mounted } else { &image };
        for round in 0..=ROUNDS {
            let what = match round {
                0 => "s0".to_owned(),
                _ => format!("-p s{} s{round}", round - 1),
            };
            send(how, at, &what, &streams.join(format!("s{round}.{way}")));
        }
        // And back.
        for round in 0..ROUNDS {
            let what = format!("-p s{} s{round}", round + 1);
            send(how, at, &what, &streams.join(format!("back{round}.{way}")));
        }
        if is_mounted {
            unmount(&mnt);
        }
    }
    let target = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let judge = |root: &Path| {
        for (way, _) in WAYS {
            fs::create_dir(root.join(way))?;
            fs::create_dir(root.join(way).join("back"))?;
            let forth = (0..=ROUNDS).map(|round| (round, way.to_owned(), format!("s{round}")));
            let back = (0..ROUNDS).map(|round| (round, format!("{way}/back"), format!("back{round}")));
            for (round, dir, stream) in forth.chain(back) {
                let stream = streams.join(format!("{stream}.{way}"));
                btrfs(root, &format!("receive -q -f {} {dir}", stream.display()));
                let received = snapshot(&root.join(&dir).join(format!("s{round}")))?;
                let differences = trees[round].diff(&received, &sent());
                assert!(differences.is_empty(), "seed {seed}, {dir}, s{round}: {differences}");
            }
        }
        Ok(())
    };
    target.with_mount(judge).unwrap();
}

/// `COWSHED_SEEDS=100..140` selects other seeds, and more of them.
#[test]
fn random_changes_are_received_by_the_kernel() {
    let Some(()) = can_receive() else { return };
    let seeds = std::env::var("COWSHED_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let share = need::share_seed("random changes to send");
    for seed in seeds.unwrap_or(share..share + 2) {
        random_changes(seed);
    }
}

#[test]
fn all_kinds_of_content_are_received_by_the_kernel_and_clones_stay_shared() {
    let Some(()) = can_receive() else { return };
    let options = VolumeOptions {
        mount_options: "compress=zstd",
        ..VolumeOptions::default()
    };
    let sending = KernelVolume::make(&options).unwrap();
    let dir = cowshed_harness::scratch_dir().unwrap();
    let work = |root: &Path| {
        btrfs(root, "subvolume create s");
        btrfs(root, "subvolume create o");
        shell(
            root,
            "dd if=/dev/urandom of=o/blob bs=64k count=20; btrfs subvolume snapshot -r o o1",
        )?;
        shell(root, FIRST)?;
        btrfs(root, "subvolume snapshot -r s s1");
        shell(root, SECOND)?;
        btrfs(root, "subvolume snapshot -r s s2");
        shell(
            root,
            "cp --reflink=always o/blob s/from-other; rm s/third; mv s/later s/a",
        )?;
        btrfs(root, "subvolume snapshot -r s s3");
        let trees = ["o1", "s1", "s2", "s3"].map(|name| snapshot(&root.join(name)));
        trees.into_iter().collect::<Result<Vec<_>, _>>()
    };
    let trees = sending.with_mount(work).unwrap();
    let image = |name: &str| PathBuf::from(format!("{}:/{name}", sending.image().display()));
    let target = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let judge = |root: &Path| {
        for (way, how) in WAYS {
            let to = root.join(way);
            fs::create_dir(&to)?;
            let whats = ["o1", "s1", "-p s1 s2", "-p s2 -c o1 s3"];
            for ((what, name), tree) in whats.into_iter().zip(["o1", "s1", "s2", "s3"]).zip(&trees) {
                let stream = dir.path().join(format!("{name}.{way}"));
                send(how, &image, what, &stream);
                btrfs(root, &format!("receive -q -f {} {way}", stream.display()));
                let received = snapshot(&to.join(name))?;
                let differences = tree.diff(&received, &sent());
                assert!(differences.is_empty(), "{way}, {name}: {differences}");
            }
            shell(root, "sync -f .")?;
            let [a, b] = ["s1/big", "s1/shared"].map(|path| extents(&to.join(path)));
            assert!(a == b && !a.is_empty(), "{way}: {a:?} {b:?}");
            // Those that were received first under a uuid are what later ones share.
            for path in ["s1/big", "s2/hard", "s3/hard", "s3/from-other"] {
                let all = extents(&to.join(path));
                assert!(all.iter().all(|line| line.contains("shared")), "{way}: {path}: {all:?}");
            }
        }
        Ok(())
    };
    target.with_mount(judge).unwrap();
}

/// A process that does not outlive its test.
struct Sending(std::process::Child);

impl Drop for Sending {
    fn drop(&mut self) {
        let _ = cowshed_harness::limit::kill(&mut self.0);
    }
}

/// Between two reads of the sender, the tree of checksums is replaced by commits of the process
/// that serves the mount, and its old blocks are discarded.
#[test]
fn snapshot_is_sent_while_the_mount_goes_on_writing() {
    use std::io::Read as _;
    const FILES: usize = 300;
    let Some(()) = can_receive() else { return };
    let scratch = Scratch::new();
    let mnt = scratch.mountpoint();
    let guard = Guard(&mnt);
    run("mount -o discard=sync {} {}", &[&scratch.image, &mnt]).ok();
    let dir = cowshed_harness::scratch_dir().unwrap();
    run("subvolume create {}", &[&mnt.join("s")]).ok();
    let mut dice = Dice(1);
    let mut random = |len: usize| -> Vec<u8> { (0..len).map(|_| dice.below(256) as u8).collect() };
    // Checksums of what is sent and of what goes share leaves.
    let (kept, gone) = (random(200_000), random(70_000));
    fs::create_dir(mnt.join("gone")).unwrap();
    for n in 0..FILES {
        fs::write(mnt.join(format!("s/{n}")), &kept).unwrap();
        fs::write(mnt.join(format!("gone/{n}")), &gone).unwrap();
    }
    run("subvolume snapshot -r {} {}", &[&mnt.join("s"), &mnt.join("s1")]).ok();
    let mut sending = Sending(
        std::process::Command::new(crate::support::COWSHED)
            .args(["send", "-q"])
            .arg(mnt.join("s1"))
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut stream = vec![0; 1 << 20];
    let mut output = sending.0.stdout.take().unwrap();
    output.read_exact(&mut stream).unwrap();
    for round in 0..FILES / 10 {
        for n in round * 10..(round + 1) * 10 {
            fs::remove_file(mnt.join(format!("gone/{n}"))).unwrap();
            fs::write(mnt.join(format!("new{n}")), &gone).unwrap();
        }
        run("sync {}", &[&mnt]).ok();
    }
    output.read_to_end(&mut stream).unwrap();
    let ended = cowshed_harness::limit::wait(&mut sending.0, crate::support::SOON).unwrap();
    assert!(ended.is_some_and(|status| status.success()), "it is sent");
    fs::write(dir.path().join("stream"), stream).unwrap();
    unmount(&mnt);
    drop(guard);
    scratch.assert_clean();
    let target = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let judge = |root: &Path| {
        btrfs(root, &format!("receive -q -f {}/stream .", dir.path().display()));
        for n in 0..FILES {
            assert!(fs::read(root.join(format!("s1/{n}")))? == kept, "file {n}");
        }
        Ok(())
    };
    target.with_mount(judge).unwrap();
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let Some(()) = can_receive() else { return };
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    let [s, ro, dir, file] = ["s", "ro", "s/dir", "s/file"].map(|name| mnt.join(name));
    run("subvolume create {}", &[&s]).ok();
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "x").unwrap();
    run("subvolume snapshot -r {} {}", &[&s, &ro]).ok();
    let out = scratch.path("out");
    let refused = |line: &str, path: &Path, words: &[&str]| {
        run(&format!("send -f {{}} {line}"), &[&out, path]).fails(words);
    };
    refused("{}", &s, &["not sent", "not read-only"]);
    refused("{}", &dir, &["not a subvolume"]);
    refused("{}", &file, &["s/file"]);
    refused("{}", &mnt.join("missing"), &["No such file"]);
    refused("--proto 3 {}", &ro, &["version 3"]);
    refused("--proto 1 --compressed-data {}", &ro, &["--proto 2"]);
    refused("{}", Path::new("/proc"), &["not on a mount of cowshed's"]);
    run("send -f {} -p {} {}", &[&out, &s, &ro]).fails(&["not read-only"]);
    run("send -f {} -c {} {}", &[&out, &s, &ro]).fails(&["not read-only"]);
    run("send -f {} {}", &[Path::new("/missing/out"), &ro]).fails(&["/missing/out"]);
    run("send -q -f {} {}", &[&out, &ro]).ok();
    unmount(&mnt);
    drop(guard);
    let inside = |path: &str| PathBuf::from(format!("{}:/{path}", scratch.image.display()));
    refused("{}", &inside("s"), &["not read-only"]);
    refused("{}", &inside("ro/dir"), &["not a subvolume"]);
    refused("{}", &inside("none"), &["no such file"]);
    refused("{}", &inside(""), &["not sent", "has no name"]);
    // Sent from the mount and from the image, it is the same.
    let again = scratch.path("again");
    run("send -q -f {} {}", &[&again, &inside("ro")]).ok();
    assert!(fs::read(&out).unwrap() == fs::read(&again).unwrap());
    let dump = run("receive --dump -f {}", &[&again]).ok().text();
    assert!(dump.contains("./ro/file") && !dump.contains("end"), "{dump}");
    let no_data = scratch.path("no-data");
    run("send -q --no-data -f {} {}", &[&no_data, &inside("ro")]).ok();
    let dump = run("receive --dump -f {}", &[&no_data]).ok().text();
    assert!(dump.contains("update_extent") && !dump.contains("write"), "{dump}");
}

//! Commands on files in images, `IMAGE:/PATH`: beside coreutils, bad input, archives.

mod cp;
mod mv;
mod out;
mod places;
mod shell;
mod unread;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cowshed_device_sim::Rng;
use cowshed_harness::tree::{self, Compare, Kinds, MakeOptions};
use cowshed_harness::{KernelVolume, VolumeOptions, limit, need};

use crate::support::{COMMAND_MAX, COWSHED, Ran, Scratch, cowshed, run};

/// A command with paths as `IMAGE:/PATH`; the image's own directory is the current one.
fn here(scratch: &Scratch, line: &str) -> Ran {
    here_with(scratch, line, &[])
}

fn here_with(scratch: &Scratch, line: &str, env: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(COWSHED);
    let words = line.split_whitespace().map(|word| word.replace("I:", "volume.img:"));
    command.args(words).current_dir(scratch.dir.path()).stdin(Stdio::null());
    command.envs(env.iter().copied());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn messages_and_exit_codes_are_those_of_coreutils() {
    let volume = Scratch::filled();
    fs::write(volume.path("f"), "f").unwrap();
    fs::create_dir(volume.path("hostdir")).unwrap();
    let long = "n".repeat(256);
    for (line, message) in [
        ("rm I:/x", "rm: cannot remove 'I:/x': No such file or directory"),
        ("rm I:/dir", "rm: cannot remove 'I:/dir': Is a directory"),
        ("rmdir I:/dir", "rmdir: failed to remove 'I:/dir': Directory not empty"),
        ("mkdir I:/dir", "mkdir: cannot create directory 'I:/dir': File exists"),
        (
            "mkdir I:/no/dir",
            "mkdir: cannot create directory 'I:/no/dir': No such file or directory",
        ),
        ("cp I:/dir I:/d2", "cp: -r not specified; omitting directory 'I:/dir'"),
        (
            "cp -r I:/dir I:/dir/sub",
            "cp: cannot copy a directory, 'I:/dir', into itself, 'I:/dir/sub/dir'",
        ),
        (
            "cp I:/none I:/d2",
            "cp: cannot stat 'I:/none': No such file or directory",
        ),
        ("cp I:/big I:/big", "cp: 'I:/big' and 'I:/big' are the same file"),
        (
            "cp I:/big I:/null I:/none",
            "cp: target 'I:/none': No such file or directory",
        ),
        (
            "cp -r hostdir I:/big",
            "cp: cannot overwrite non-directory 'I:/big' with directory 'hostdir'",
        ),
        (
            "cp f I:/no/f",
            "cp: cannot create regular file 'I:/no/f': No such file or directory",
        ),
        (
            "mv I:/dir I:/dir/sub/x",
            "mv: cannot move 'I:/dir' to a subdirectory of itself, 'I:/dir/sub/x'",
        ),
        (
            "mv -T I:/big I:/dir",
            "mv: cannot overwrite directory 'I:/dir' with non-directory 'I:/big'",
        ),
        ("ln I:/dir I:/x", "ln: I:/dir: hard link not allowed for directory"),
        (
            "chmod 644 I:/x",
            "chmod: cannot access 'I:/x': No such file or directory",
        ),
        ("readlink I:/big", "readlink: I:/big: Invalid argument"),
        ("rm big", "rm: 'big': not in an image: name it as IMAGE:/PATH"),
        ("cp f f2", "cp: no path is in an image: name one as IMAGE:/PATH"),
        ("find I:/ -wobble", "find: unknown predicate '-wobble'"),
        (
            "chown nobody-of-that-name I:/big",
            "chown: invalid user: 'nobody-of-that-name'",
        ),
        ("cat I:/nix", "cat: I:/nix: No such file or directory"),
        ("stat I:/nix", "stat: cannot stat 'I:/nix': No such file or directory"),
    ] {
        let ran = here(&volume, line).code(1);
        let expected = format!("cowshed {}\n", message.replace("I:", "volume.img:"));
        assert_eq!(ran.err, expected, "{line}");
    }
    let ran = here(&volume, &format!("touch I:/{long}")).code(1);
    assert!(ran.err.contains("File name too long"), "{}", ran.err);
    let ran = here(&volume, "rm none.img:/x").code(1);
    assert!(
        ran.err.contains("none.img") && ran.err.contains("No such file"),
        "{}",
        ran.err
    );
    fs::write(volume.path("no.img"), vec![0; 1 << 20]).unwrap();
    here(&volume, "rm no.img:/x").code(1);
    // One operand that is refused does not keep the others from being done.
    here(&volume, "rm I:/big I:/x I:/null").code(1);
    assert_eq!(here(&volume, "ls I:/").ok().text(), "dir\n");
    volume.assert_clean();
}

#[test]
fn image_in_use_is_refused_and_left_alone() {
    let volume = Scratch::filled();
    let open = cowshed::Volume::open_image(&volume.image, &cowshed::OpenOptions::new()).unwrap();
    let ran = here(&volume, "rm I:/big").code(1);
    assert!(ran.err.contains("busy: it is mounted or open elsewhere"), "{}", ran.err);
    assert!(open.exists("big").unwrap());
}

#[test]
fn full_image_is_as_before_the_command() {
    let volume = Scratch::filled();
    let dir = volume.path("much");
    fs::create_dir(&dir).unwrap();
    for name in 0..3 {
        let mut data = vec![0; 100 << 20];
        Rng::new(name).fill(&mut data);
        fs::write(dir.join(name.to_string()), data).unwrap();
    }
    let before = fs::read(&volume.image).unwrap();
    let ran = here(&volume, "cp -a much I:/").code(1);
    assert!(ran.err.contains("No space left on device"), "{}", ran.err);
    assert!(ran.err.contains("nothing was changed"), "{}", ran.err);
    assert_eq!(here(&volume, "ls I:/").ok().text(), "big\ndir\nnull\n");
    let superblock = 65536..65536 + 4096;
    let after = fs::read(&volume.image).unwrap();
    assert!(before[superblock.clone()] == after[superblock], "no commit came");
    volume.assert_clean();
}

/// The reading of a pipe never ends; the command is killed when the file before it was copied.
#[test]
fn killed_command_leaves_the_image_as_before() {
    let volume = Scratch::filled();
    let pipe = volume.path("pipe");
    cowshed_harness::run("mkfifo", &[&pipe]).unwrap();
    fs::write(volume.path("first"), vec![1; 5 << 20]).unwrap();
    let mut command = Command::new(COWSHED);
    command.args(["cp", "-v", "first", "pipe", "volume.img:/dir"]);
    command.current_dir(volume.dir.path()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    assert!(line.contains("first"), "{line}");
    child.kill().unwrap();
    limit::wait(&mut child, COMMAND_MAX).unwrap();
    assert_eq!(here(&volume, "ls I:/dir").ok().text(), "hello\nlink\nsub\n");
    volume.assert_clean();
}

/// Bytes that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::new(len as u64).fill(&mut data);
    data
}

/// A tree with each kind of file, not large.
fn small(seed: u64, entries: usize) -> MakeOptions {
    MakeOptions {
        total_bytes: 4 << 20,
        kinds: Kinds {
            many_links: false,
            collisions: false,
            ..Kinds::all()
        },
        ..MakeOptions::new(seed, entries)
    }
}

/// Archives have none.
fn remove_sockets(dir: &Path) {
    for (path, node) in &tree::snapshot(dir).unwrap().nodes {
        if node.kind == tree::Kind::Socket {
            fs::remove_file(dir.join(path)).unwrap();
        }
    }
}

#[test]
fn tree_goes_in_and_out_and_clones_within() {
    let volume = Scratch::new();
    let source = volume.path("source");
    fs::create_dir(&source).unwrap();
    tree::make(&source, &small(7, 100)).unwrap();
    here(&volume, "cp -a source I:/in").ok();
    let used = || {
        let text = here(&volume, "df I:/").ok().text();
        let line = text.lines().nth(1).unwrap().to_owned();
        line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap()
    };
    let before = used();
    here(&volume, "cp -a I:/in I:/copy").ok();
    let grown = used() - before;
    here(&volume, "cp -a I:/copy out").ok();
    here(&volume, "extract I:/copy extracted").ok();
    for dir in ["out", "extracted"] {
        tree::compare(&source, &volume.path(dir), &Compare::copy())
            .unwrap()
            .assert_none();
    }
    let data: u64 = fs::read_dir(&source)
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().blocks() / 2)
        .sum();
    assert!(grown < 1024 + data / 4, "extents are shared: {grown} KiB for {data}");
    volume.assert_clean();
}

#[test]
fn tar_and_oci_come_back_equal() {
    let Some(()) = need::tool("tar") else { return };
    let volume = Scratch::new();
    let source = volume.path("source");
    fs::create_dir(&source).unwrap();
    tree::make(&source, &small(11, 100)).unwrap();
    remove_sockets(&source);
    let deep = source.join("d".repeat(90)).join("e".repeat(90));
    fs::create_dir_all(&deep).unwrap();
    symlink("t".repeat(150), deep.join("link")).unwrap();
    here(&volume, "cp -a source/. I:/").ok();
    here(&volume, "export tar I:/ a.tar").ok();
    // GNU tar reads it, and what it unpacks is what was there.
    fs::create_dir(volume.path("unpacked")).unwrap();
    let dir = volume.path("unpacked");
    let archive = volume.path("a.tar");
    let args = ["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-xpf"];
    let args = args
        .map(Path::new)
        .into_iter()
        .chain([&*archive, Path::new("-C"), &*dir]);
    cowshed_harness::run("tar", &args.collect::<Vec<_>>()).unwrap();
    tree::compare(&source, &dir, &Compare::copy()).unwrap().assert_none();
    // Built from it, an image gives the same archive again, and so does one from the container.
    here(&volume, "export oci I:/ image").ok();
    for from in ["a.tar", "image"] {
        let (image, again) = (volume.path("again.img"), volume.path("again.tar"));
        let _ = fs::remove_file(&image);
        run("build --from {} {}", &[&volume.path(from), &image]).ok();
        run("export tar {} {}", &[&image, &again]).ok();
        assert!(fs::read(&archive).unwrap() == fs::read(&again).unwrap(), "from {from}");
        run("export oci {} {}", &[&image, &volume.path("image2")]).ok();
        let index = |name: &str| fs::read_to_string(volume.path(name).join("index.json")).unwrap();
        assert_eq!(index("image"), index("image2"));
        fs::remove_dir_all(volume.path("image2")).unwrap();
    }
    let piped = here_with(&volume, "export tar I:/", &[("SOURCE_DATE_EPOCH", "1000")])
        .ok()
        .out;
    let later = here_with(&volume, "export tar I:/", &[("SOURCE_DATE_EPOCH", "1000")])
        .ok()
        .out;
    assert!(piped == later && piped.len().is_multiple_of(512));
}

#[test]
fn extract_never_writes_through_a_symbolic_link() {
    let volume = Scratch::new();
    fs::create_dir_all(volume.path("outside")).unwrap();
    fs::create_dir_all(volume.path("dir")).unwrap();
    fs::write(volume.path("outside/victim"), "as it was").unwrap();
    symlink("../outside", volume.path("dir/evil")).unwrap();
    symlink("../outside/victim", volume.path("dir/file")).unwrap();
    let open = cowshed::Volume::open_image(&volume.image, &cowshed::OpenOptions::new()).unwrap();
    open.create_dir("evil").unwrap();
    open.write("evil/victim", "overwritten").unwrap();
    open.write("file", "overwritten").unwrap();
    open.symlink("/etc", "abs").unwrap();
    open.close().unwrap();
    let ran = here(&volume, "extract I:/ dir").code(1);
    assert!(ran.err.contains("cannot overwrite non-directory"), "{}", ran.err);
    assert_eq!(fs::read(volume.path("outside/victim")).unwrap(), b"as it was");
    assert_eq!(fs::read(volume.path("dir/file")).unwrap(), b"overwritten");
    assert!(fs::symlink_metadata(volume.path("dir/file")).unwrap().is_file());
    assert_eq!(fs::read_link(volume.path("dir/abs")).unwrap(), Path::new("/etc"));
}

#[test]
fn xfs_is_read_and_not_written() {
    let Some(()) = need::kernel_xfs() else { return };
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = dir.path().join("x.img");
    cowshed_harness::run("truncate", &["-s", "320M", image.to_str().unwrap()]).unwrap();
    cowshed_harness::run("mkfs.xfs", &["-q", image.to_str().unwrap()]).unwrap();
    let root = format!("{}:/", image.display());
    cowshed(["ls", &root]).ok();
    cowshed(["find", &root]).ok();
    let ran = cowshed(["touch", &format!("{root}f")]).code(1);
    assert!(
        ran.err.contains("XFS") && ran.err.contains("not written"),
        "{}",
        ran.err
    );
}

/// What one random command is drawn from: names that are there more often than not.
fn random_line(rng: &mut Rng) -> String {
    let name = |rng: &mut Rng| ["a", "b", "c", "d", "e"][rng.index(5)];
    let path = |rng: &mut Rng| {
        let depth = 1 + rng.index(3);
        (0..depth).map(|_| format!("/{}", name(rng))).collect::<String>()
    };
    let (one, two) = (path(rng), path(rng));
    match rng.index(34) {
        0 => format!("cp @{one} @{two}"),
        1 => format!("cp -r @{one} @{two}"),
        2 | 3 => format!("cp -a @{one} @{two}"),
        4 => format!("cp -a -T @{one} @{two}"),
        5 => format!("cp -rp -n @{one} @{two}"),
        6 => format!("cp -a SRC/{} @{two}", name(rng)),
        7 => format!("cp SRC/f{} @{two}", rng.index(3)),
        8 => format!("cp -f --sparse=always SRC/f{} @{two}", rng.index(3)),
        9 | 10 => format!("mv @{one} @{two}"),
        11 => format!("mv -T @{one} @{two}"),
        12 => format!("rm @{one}"),
        13 => format!("rm -rf @{one}"),
        14 => format!("rm -r @{one} @{two}"),
        15 | 16 => format!("mkdir -p @{one}"),
        17 => format!("mkdir -m {} @{one}", ["700", "u=rwx,g+s", "1777", "a=rx"][rng.index(4)]),
        18 => format!("ln @{one} @{two}"),
        19 => format!("ln -s {} @{two}", one.trim_start_matches('/')),
        20 => {
            let mode = ["u+x,go-w", "a+X", "640", "g=u", "u+s,+t", "go=", "7755", "-x"][rng.index(8)];
            format!("chmod {}{mode} @{one}", if rng.one_in(2) { "-R -- " } else { "-- " })
        }
        21 => format!(
            "chown -h {}{}:{} @{one}",
            if rng.one_in(2) { "-R " } else { "" },
            rng.below(9),
            rng.below(9)
        ),
        22 => format!("touch -d @{}.{} @{one}", rng.below(1 << 31), rng.below(1000)),
        23 => format!("touch @{one} @{two}"),
        24 => format!("truncate -s {} @{one}", ["0", "5000", "+100", "1M", "-7"][rng.index(5)]),
        25 => format!("cp -u @{one} @{two}"),
        26 => format!("cp -au @{one} @{two}"),
        27 => format!("cp -l @{one} @{two}"),
        28 => format!("cp -r -l -f @{one} @{two}"),
        29 => format!("cp -P -l @{one} @{two}"),
        30 => format!("cp --parents -r -p %{one} @{two}"),
        31 => format!("cp --parents -r %{one} %{two}"),
        32 => format!("mv -u @{one} @{two}"),
        _ => format!("rmdir @{one}"),
    }
}

/// The same commands by us on an image, by coreutils on a mount of the kernel's.
fn beside_coreutils(seed: u64, commands: usize, between: usize) {
    let Some(()) = need::root() else { return };
    let Some(()) = need::kernel_btrfs() else { return };
    println!("seed {seed}");
    let scratch = Scratch::new();
    let theirs = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let mounted = theirs.mount().unwrap();
    let source = scratch.path("source");
    fs::create_dir(&source).unwrap();
    let mut rng = Rng::new(seed);
    for file in 0..3 {
        let mut data = vec![0; rng.index(200_000)];
        let len = data.len();
        rng.fill(&mut data[len / 2..]);
        fs::write(source.join(format!("f{file}")), data).unwrap();
    }
    for name in ["a", "b", "c", "d", "e"] {
        fs::create_dir(source.join(name)).unwrap();
        tree::make(&source.join(name), &small(rng.next_u64(), 6)).unwrap();
    }
    let mut done = 0;
    let mut log: Vec<String> = Vec::new();
    while done < commands {
        for _ in 0..between.min(commands - done) {
            let line = random_line(&mut rng);
            done += 1;
            // Behind a per cent sign: relative to the root, where the path itself matters.
            let with = |line: &str, root: &str, relative: &str| -> Vec<String> {
                let place = |word: &str| match (word.strip_prefix("@/"), word.strip_prefix("%/")) {
                    (Some(path), _) => format!("{root}/{path}"),
                    (_, Some(path)) => format!("{relative}{path}"),
                    _ => word.replace("SRC", source.to_str().unwrap()),
                };
                line.split_whitespace().map(place).collect()
            };
            let our_root = format!("{}:", scratch.image.display());
            let ours = cowshed(with(&line, &our_root, &format!("{our_root}/")));
            let their_root = mounted.dir().display().to_string();
            let words = with(&line, &their_root, "");
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).stdin(Stdio::null()).env("LC_ALL", "C");
            command.current_dir(mounted.dir());
            let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            log.push(format!("{line} -> {} | {}", ours.err.trim(), said.trim()));
            println!("{done}: {}", log[log.len() - 1]);
            assert_eq!(
                ours.code == 0,
                output.status.success(),
                "seed {seed}, command {done}: {line}\nours: {}\ntheirs: {said}\n{}",
                ours.err,
                log[log.len().saturating_sub(12)..].join("\n")
            );
            if let Some((_, copy)) = ours.err.split_once(", into itself, '") {
                // We refuse; coreutils copy until they meet the copy, if they do.
                let copy = copy.trim_end_matches("'\n").trim_start_matches(&*our_root);
                let copy = copy.trim_start_matches('/');
                cowshed_harness::run("rm", &[Path::new("-rf"), &mounted.dir().join(copy)]).unwrap();
                cowshed(["rm", "-rf", &format!("{our_root}/{copy}")]).ok();
            }
        }
        let out = scratch.path("out");
        let _ = fs::remove_dir_all(&out);
        cowshed([
            "cp".into(),
            "-a".into(),
            format!("{}:/", scratch.image.display()).into(),
            out.clone().into_os_string(),
        ])
        .ok();
        let _ = fs::remove_dir_all(out.join("lost+found"));
        let recent = &log[log.len().saturating_sub(between)..];
        let compare = Compare {
            // Those of directories and links that a command without -p makes are the time of day.
            directory_times: false,
            ..Compare::copy()
        };
        let mut ours = tree::snapshot(&out).unwrap();
        let mut their = tree::snapshot(mounted.dir()).unwrap();
        if recent.iter().any(|line| {
            ["cp -a", "cp -rp", "cp --parents -r -p"]
                .iter()
                .any(|cp| line.starts_with(cp))
        }) {
            forget_special_bits_that_stayed(&ours, &mut their, mounted.dir());
        }
        for tree in [&mut ours, &mut their] {
            forget_recent_times(tree);
            forget_inherited_set_gid(tree);
        }
        let found = ours.diff(&their, &compare);
        assert!(
            found.is_empty(),
            "seed {seed}, after {done}: {found:?}\n{}",
            log[log.len().saturating_sub(between)..].join("\n")
        );
    }
    scratch.assert_clean();
}

/// For the same reason coreutils 9 leaves the special bits of a file or directory that is there
/// where its original has none.
fn forget_special_bits_that_stayed(ours: &tree::Tree, their: &mut tree::Tree, dir: &Path) {
    for (path, node) in &mut their.nodes {
        let Some(our) = ours.nodes.get(path) else { continue };
        if our.kind == node.kind && our.mode & 0o7000 == 0 && our.mode == node.mode & !0o7000 && our.mode != node.mode {
            fs::set_permissions(dir.join(path), fs::Permissions::from_mode(our.mode)).unwrap();
            node.mode = our.mode;
        }
    }
}

/// coreutils 9 leaves the set-group-id bit that a new directory inherits where its original has
/// none: it sets the mode as an access list, which has no such bit.
fn forget_inherited_set_gid(tree: &mut tree::Tree) {
    const SET_GID: u32 = 0o2000;
    let is_set = |node: &tree::Node| node.kind == tree::Kind::Directory && node.mode & SET_GID != 0;
    let set: Vec<PathBuf> = tree
        .nodes
        .iter()
        .filter(|(_, node)| is_set(node))
        .map(|(path, _)| PathBuf::from(path))
        .collect();
    for (path, node) in &mut tree.nodes {
        let inherits = set
            .iter()
            .any(|above| Path::new(path).ancestors().skip(1).any(|dir| dir == above));
        if inherits && node.kind == tree::Kind::Directory {
            node.mode &= !SET_GID;
        }
    }
}

/// Times that are "now" differ between the two runs.
fn forget_recent_times(tree: &mut tree::Tree) {
    let limit = 1_700_000_000;
    for node in tree.nodes.values_mut() {
        if node.mtime.seconds > limit {
            node.mtime.seconds = limit;
            node.mtime.nanoseconds = 0;
        }
    }
}

#[test]
fn random_commands_leave_the_same_tree_as_coreutils() {
    beside_coreutils(need::share_seed("offline commands"), 120, 30);
}

#[test]
#[ignore = "5,000 commands: minutes"]
fn many_random_commands_leave_the_same_tree_as_coreutils() {
    for seed in 0..10 {
        beside_coreutils(seed, 500, 50);
    }
}

#[test]
fn paths_of_hosts_named_like_images_are_of_the_host() {
    let volume = Scratch::filled();
    let odd: PathBuf = volume.path("odd:");
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("f"), "host").unwrap();
    here(&volume, "cp odd:/f I:/f").ok();
    assert_eq!(here(&volume, "cat I:/f").ok().text(), "host");
}

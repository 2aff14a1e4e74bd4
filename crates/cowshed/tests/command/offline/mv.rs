//! What mv must not lose: the original before the copy is durable, files that are moved onto
//! themselves or onto each other, and what shares a file with the target.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use cowshed_harness::limit;

use super::{here, noise};
use crate::support::{COMMAND_MAX, COWSHED, Scratch};

fn cat(volume: &Scratch, path: &str) -> String {
    here(volume, &format!("cat {path}")).ok().text()
}

/// The names in a directory of the host, sorted.
fn host_names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    names
}

#[test]
fn failed_move_into_an_image_leaves_the_files_of_the_host() {
    let volume = Scratch::filled();
    fs::create_dir_all(volume.path("tree/sub")).unwrap();
    fs::write(volume.path("tree/sub/f"), "deep").unwrap();
    fs::write(volume.path("first"), "first").unwrap();
    fs::write(volume.path("large"), noise(300 << 20)).unwrap();
    let ran = here(&volume, "mv first tree large I:/").code(1);
    assert!(ran.err.contains("No space left on device"), "{}", ran.err);
    assert!(ran.err.contains("nothing was changed"), "{}", ran.err);
    assert_eq!(fs::read(volume.path("first")).unwrap(), b"first");
    assert_eq!(fs::read(volume.path("tree/sub/f")).unwrap(), b"deep");
    assert_eq!(here(&volume, "ls I:/").ok().text(), "big\ndir\nnull\n");
    // Without the one that has no room they go.
    here(&volume, "mv first tree I:/").ok();
    assert!(!volume.path("first").exists() && !volume.path("tree").exists());
    assert_eq!(cat(&volume, "I:/first"), "first");
    assert_eq!(cat(&volume, "I:/tree/sub/f"), "deep");
    volume.assert_clean();
}

/// The command is killed while it asks, with the first file moved.
#[test]
fn killed_move_into_an_image_leaves_the_files_of_the_host() {
    let volume = Scratch::filled();
    fs::write(volume.path("first"), "first").unwrap();
    fs::write(volume.path("hello"), "second").unwrap();
    let mut command = Command::new(COWSHED);
    command.args(["mv", "-iv", "first", "hello", "volume.img:/dir"]);
    command
        .current_dir(volume.dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    assert!(line.contains("renamed 'first'"), "{line}");
    child.kill().unwrap();
    limit::wait(&mut child, COMMAND_MAX).unwrap();
    assert_eq!(here(&volume, "ls I:/dir").ok().text(), "hello\nlink\nsub\n");
    assert_eq!(fs::read(volume.path("first")).unwrap(), b"first");
    volume.assert_clean();
}

#[test]
fn what_was_moved_away_is_not_there_for_later_operands() {
    let volume = Scratch::new();
    fs::create_dir(volume.path("d")).unwrap();
    fs::write(volume.path("d/f"), "f").unwrap();
    let ran = here(&volume, "mv d d/f ./d I:/").code(1);
    assert_eq!(
        ran.err,
        "cowshed mv: cannot stat 'd/f': No such file or directory\n\
         cowshed mv: cannot stat './d': No such file or directory\n"
    );
    assert!(!volume.path("d").exists());
    assert_eq!(
        here(&volume, "find I:/").ok().text(),
        "volume.img:/\nvolume.img:/d\nvolume.img:/d/f\n"
    );
    let ran = here(&volume, "mv I:/d/f I:/d/f .").code(1);
    assert_eq!(
        ran.err,
        "cowshed mv: cannot stat 'volume.img:/d/f': No such file or directory\n"
    );
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"f");
    assert_eq!(here(&volume, "ls I:/d").ok().text(), "");
}

#[test]
fn file_moved_onto_itself_by_another_path_stays() {
    let volume = Scratch::new();
    fs::write(volume.path("f"), "contents").unwrap();
    here(&volume, "mkdir I:/d I:/e").ok();
    here(&volume, "ln -s d I:/link").ok();
    here(&volume, "cp f I:/d").ok();
    here(&volume, "cp f I:/x").ok();
    for (line, from, to) in [
        ("mv I:/d/f I:/link/", "volume.img:/d/f", "volume.img:/link/f"),
        ("mv I:/d/f I:/d/../d/", "volume.img:/d/f", "volume.img:/d/../d/f"),
        ("mv -T I:/link/f I:/d/f", "volume.img:/link/f", "volume.img:/d/f"),
        ("mv I:/d I:/e/..", "volume.img:/d", "volume.img:/e/../d"),
    ] {
        let ran = here(&volume, line).code(1);
        assert_eq!(
            ran.err,
            format!("cowshed mv: '{from}' and '{to}' are the same file\n"),
            "{line}"
        );
        assert_eq!(cat(&volume, "I:/d/f"), "contents", "{line}");
    }
    // On the host; the other operand is moved.
    let ran = here(&volume, "mv f I:/x .").code(1);
    assert_eq!(ran.err, "cowshed mv: 'f' and './f' are the same file\n");
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"contents");
    assert_eq!(fs::read(volume.path("x")).unwrap(), b"contents");
    // In the shell, where paths are relative.
    fs::write(volume.path("lines"), "cd d\nmv f ../d\n").unwrap();
    let ran = cowshed_harness::shell(
        volume.dir.path(),
        &format!("{COWSHED} shell volume.img <lines 2>&1 || true"),
    );
    assert!(ran.unwrap().contains("'f' and '../d/f' are the same file"));
    assert_eq!(cat(&volume, "I:/d/f"), "contents");
    // Of two names of one file the first goes, as with mv(1).
    here(&volume, "ln I:/d/f I:/e/f").ok();
    here(&volume, "mv I:/d/f I:/e").ok();
    assert_eq!(here(&volume, "ls I:/d").ok().text(), "");
    assert_eq!(cat(&volume, "I:/e/f"), "contents");
    volume.assert_clean();
}

#[test]
fn operand_does_not_replace_what_another_operand_became() {
    let volume = Scratch::new();
    for name in ["a", "b"] {
        fs::create_dir(volume.path(name)).unwrap();
        fs::write(volume.path(name).join("f"), name).unwrap();
    }
    here(&volume, "mkdir I:/a I:/b I:/d I:/e").ok();
    for (line, command) in [("cp a/f b/f I:/d", "cp"), ("mv a/f b/f I:/e", "mv")] {
        let ran = here(&volume, line).code(1);
        let to = line.split_whitespace().last().unwrap().replace("I:", "volume.img:");
        let said = format!("cowshed {command}: will not overwrite just-created '{to}/f' with 'b/f'\n");
        assert_eq!(ran.err, said);
    }
    assert_eq!(
        (cat(&volume, "I:/d/f"), cat(&volume, "I:/e/f")),
        ("a".into(), "a".into())
    );
    assert!(!volume.path("a/f").exists());
    assert_eq!(fs::read(volume.path("b/f")).unwrap(), b"b");
    // Within an image; hard links, too.
    here(&volume, "cp I:/d/f I:/a").ok();
    here(&volume, "cp b/f I:/b").ok();
    let said = |ran: crate::support::Ran| ran.code(1).err.replace("volume.img:", "I:");
    assert_eq!(
        said(here(&volume, "ln -f I:/a/f I:/b/f I:/d")),
        "cowshed ln: will not overwrite just-created 'I:/d/f' with 'I:/b/f'\n"
    );
    here(&volume, "rm I:/d/f").ok();
    assert_eq!(
        said(here(&volume, "mv I:/a/f I:/b/f I:/d")),
        "cowshed mv: will not overwrite just-created 'I:/d/f' with 'I:/b/f'\n"
    );
    assert_eq!(
        (cat(&volume, "I:/d/f"), cat(&volume, "I:/b/f")),
        ("a".into(), "b".into())
    );
    // The same one twice is copied once.
    let ran = here(&volume, "cp b/f ./b/f I:/a").ok();
    assert_eq!(
        ran.err,
        "cowshed cp: warning: source file './b/f' specified more than once\n"
    );
    // Directories are joined.
    here(&volume, "cp -r I:/d/. I:/b/. I:/e").ok();
    assert_eq!(cat(&volume, "I:/e/f"), "b");
    volume.assert_clean();
}

#[test]
fn move_to_another_subvolume_replaces_the_target_and_keeps_hard_links() {
    let volume = Scratch::new();
    fs::write(volume.path("new"), "new").unwrap();
    fs::write(volume.path("old"), "old").unwrap();
    here(&volume, "subvolume create I:/vol").ok();
    here(&volume, "cp old I:/vol/t").ok();
    here(&volume, "setfattr -n user.old -v 1 I:/vol/t").ok();
    here(&volume, "ln I:/vol/t I:/vol/other").ok();
    here(&volume, "cp new I:/a").ok();
    here(&volume, "ln I:/a I:/b").ok();
    here(&volume, "mv -T I:/a I:/vol/t").ok();
    assert_eq!(cat(&volume, "I:/vol/other"), "old");
    assert_eq!(cat(&volume, "I:/vol/t"), "new");
    assert_eq!(here(&volume, "getfattr -d I:/vol/t").ok().text(), "");
    // From the host, too.
    here(&volume, "mv -T new I:/vol/other").ok();
    assert_eq!(cat(&volume, "I:/vol/other"), "new");
    assert_eq!(here(&volume, "getfattr -d I:/vol/other").ok().text(), "");
    // Two names of one file stay that, to a subvolume and to the host.
    here(&volume, "ln I:/b I:/c").ok();
    here(&volume, "mv I:/b I:/c I:/vol").ok();
    assert_eq!(
        here(&volume, "find I:/vol -links 2").ok().text(),
        "volume.img:/vol/b\nvolume.img:/vol/c\n"
    );
    fs::create_dir(volume.path("out")).unwrap();
    here(&volume, "mv I:/vol/b I:/vol/c out").ok();
    let inode = |name: &str| fs::metadata(volume.path("out").join(name)).unwrap().ino();
    assert_eq!(inode("b"), inode("c"));
    assert_eq!(here(&volume, "ls I:/vol").ok().text(), "other\nt\n");
    volume.assert_clean();
}

#[test]
fn move_to_the_host_replaces_what_is_there_and_does_not_open_it() {
    let volume = Scratch::new();
    fs::write(volume.path("source"), "contents").unwrap();
    fs::write(volume.path("shared"), "shared").unwrap();
    for name in ["fifo", "linked", "symbolic"] {
        here(&volume, &format!("cp source I:/{name}")).ok();
    }
    fs::create_dir(volume.path("out")).unwrap();
    let out = |name: &str| volume.path("out").join(name);
    cowshed_harness::run("mkfifo", &[&out("fifo")]).unwrap();
    fs::hard_link(volume.path("shared"), out("linked")).unwrap();
    symlink("../shared", out("symbolic")).unwrap();
    here(&volume, "mv I:/fifo I:/linked I:/symbolic out").ok();
    assert!(!fs::symlink_metadata(out("fifo")).unwrap().file_type().is_fifo());
    for name in ["fifo", "linked", "symbolic"] {
        assert!(fs::symlink_metadata(out(name)).unwrap().is_file());
        assert_eq!(fs::read(out(name)).unwrap(), b"contents", "{name}");
    }
    assert_eq!(fs::read(volume.path("shared")).unwrap(), b"shared");
    assert_eq!(here(&volume, "ls I:/").ok().text(), "");
    assert_eq!(host_names(&volume.path("out")), ["fifo", "linked", "symbolic"]);
}

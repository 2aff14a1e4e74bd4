//! Options of cp and mv that the random commands do not have: questions, links, other subvolumes.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

use cowshed_harness::{limit, need};

use super::here;
use crate::support::{COMMAND_MAX, COWSHED, Scratch};

/// A command that is answered.
fn answered(volume: &Scratch, line: &str, answers: &str) -> String {
    fs::write(volume.path("answers"), answers).unwrap();
    let line = format!("{COWSHED} {} <answers", line.replace("I:", "volume.img:"));
    let mut command = Command::new("sh");
    command.args(["-c", &line]).current_dir(volume.dir.path());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn interactive_copies_and_moves_ask_before_they_overwrite() {
    let volume = Scratch::new();
    for name in ["a", "b", "c"] {
        fs::write(volume.path(name), name).unwrap();
    }
    here(&volume, "mkdir I:/d").ok();
    here(&volume, "cp a b I:/d").ok();
    fs::write(volume.path("a"), "new a").unwrap();
    fs::write(volume.path("b"), "new b").unwrap();
    // One question for each file that is there, in their order; none for what is new.
    let asked = answered(&volume, "cp -i a b c I:/d", "no\nYes\n");
    assert_eq!(
        asked,
        "cowshed cp: overwrite 'volume.img:/d/a'? cowshed cp: overwrite 'volume.img:/d/b'? "
    );
    let cat = |name: &str| here(&volume, &format!("cat I:/d/{name}")).ok().text();
    assert_eq!((cat("a"), cat("b"), cat("c")), ("a".into(), "new b".into(), "c".into()));
    // No answer is no.
    answered(&volume, "cp -i a I:/d", "");
    assert_eq!(cat("a"), "a");
    assert_eq!(
        answered(&volume, "mv -i I:/d/c I:/d/a", "n\n"),
        "cowshed mv: overwrite 'volume.img:/d/a'? "
    );
    assert_eq!(cat("c"), "c");
    answered(&volume, "mv -i I:/d/c I:/d/a", "y\n");
    assert_eq!(cat("a"), "c");
    // The later one of two options counts.
    assert_eq!(answered(&volume, "cp -i -n a I:/d", "y\n"), "");
    assert_eq!(cat("a"), "c");
    volume.assert_clean();
}

#[test]
fn links_are_made_in_place_of_copies() {
    let volume = Scratch::filled();
    fs::write(volume.path("f"), "host").unwrap();
    here(&volume, "cp -l I:/big I:/linked").ok();
    here(&volume, "cp -rl I:/dir I:/tree").ok();
    assert_eq!(here(&volume, "find I:/big -links 2").ok().text(), "volume.img:/big\n");
    assert_eq!(
        here(&volume, "find I:/tree/sub/deep -links 2").ok().text(),
        "volume.img:/tree/sub/deep\n"
    );
    here(&volume, "cp -s I:/dir/hello I:/dir/sub/s").ok();
    assert_eq!(here(&volume, "readlink I:/dir/sub/s").ok().text(), "/dir/hello\n");
    assert_eq!(here(&volume, "cat I:/dir/sub/s").ok().text(), "hello\n");
    let ran = here(&volume, "cp -l I:/big I:/linked2 I:/dir/hello I:/null").code(1);
    assert!(ran.err.contains("target"), "{}", ran.err);
    let ran = here(&volume, "cp -l I:/dir/hello I:/null").code(1);
    assert_eq!(
        ran.err,
        "cowshed cp: cannot create hard link 'volume.img:/null' to 'volume.img:/dir/hello': File exists\n"
    );
    here(&volume, "cp -lf I:/dir/hello I:/null").ok();
    assert_eq!(here(&volume, "cat I:/null").ok().text(), "hello\n");
    for form in ["-l", "-s"] {
        let ran = here(&volume, &format!("cp {form} f I:/f")).code(1);
        assert!(ran.err.contains("Invalid cross-device link"), "{}", ran.err);
    }
    volume.assert_clean();
}

#[test]
fn one_file_system_leaves_out_what_lies_in_other_subvolumes() {
    let volume = Scratch::filled();
    here(&volume, "subvolume create I:/dir/vol").ok();
    fs::write(volume.path("f"), "inside").unwrap();
    here(&volume, "cp f I:/dir/vol/f").ok();
    here(&volume, "cp -ax I:/dir I:/one").ok();
    here(&volume, "cp -a I:/dir I:/all").ok();
    assert_eq!(here(&volume, "ls I:/one").ok().text(), "hello\nlink\nsub\nvol\n");
    assert_eq!(here(&volume, "ls I:/one/vol").ok().text(), "");
    assert_eq!(here(&volume, "cat I:/all/vol/f").ok().text(), "inside");
    // What is named itself is copied.
    here(&volume, "cp -ax I:/dir/vol I:/itself").ok();
    assert_eq!(here(&volume, "cat I:/itself/f").ok().text(), "inside");
    volume.assert_clean();
}

#[test]
fn parents_are_made_from_the_host_and_to_it() {
    let Some(()) = need::root() else { return };
    let volume = Scratch::new();
    fs::create_dir_all(volume.path("a/b")).unwrap();
    fs::write(volume.path("a/b/f"), "deep").unwrap();
    symlink("f", volume.path("a/b/link")).unwrap();
    cowshed_harness::shell(volume.dir.path(), "chmod 750 a; chown 3:4 a/b; touch -d @1000 a a/b").unwrap();
    // Each operand for itself: a directory that another one made is changed by the file in it.
    here(&volume, "cp -a --parents a/b/link I:/").ok();
    here(&volume, "rm -r I:/a").ok();
    here(&volume, "cp -a --parents a/b/f I:/").ok();
    assert_eq!(
        here(&volume, "find I:/a -maxdepth 0 -perm 750").ok().text(),
        "volume.img:/a\n"
    );
    assert_eq!(
        here(&volume, "find I:/a/b -maxdepth 0 -uid 3 -gid 4").ok().text(),
        "volume.img:/a/b\n"
    );
    fs::create_dir(volume.path("out")).unwrap();
    here(&volume, "cp -a --parents I:/a/b/f out").ok();
    assert_eq!(fs::read(volume.path("out/a/b/f")).unwrap(), b"deep");
    let metadata = fs::metadata(volume.path("out/a/b")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mtime()), (3, 4, 1000));
    let ran = here(&volume, "cp --parents I:/a/b/f I:/none").code(1);
    assert!(
        ran.err.contains("with --parents, the destination must be a directory"),
        "{}",
        ran.err
    );
}

#[test]
fn link_that_cannot_be_made_leaves_the_target() {
    let volume = Scratch::new();
    fs::write(volume.path("f"), "new").unwrap();
    fs::write(volume.path("old"), "old").unwrap();
    here(&volume, "subvolume create I:/vol").ok();
    here(&volume, "cp f I:/f").ok();
    here(&volume, "cp old I:/vol/t").ok();
    let ran = here(&volume, "ln -f I:/f I:/vol/t").code(1);
    assert_eq!(
        ran.err,
        "cowshed ln: failed to create hard link 'volume.img:/vol/t': Invalid cross-device link\n"
    );
    here(&volume, "cp -lf I:/f I:/vol/t").code(1);
    here(&volume, &format!("ln -sf {} I:/vol/t", "n".repeat(5000))).code(1);
    assert_eq!(here(&volume, "cat I:/vol/t").ok().text(), "old");
    assert_eq!(here(&volume, "ls I:/vol").ok().text(), "t\n");
    // The second of two names would be one of a file in another subvolume.
    here(&volume, "mkdir -p I:/from/vol I:/to").ok();
    here(&volume, "subvolume create I:/to/vol").ok();
    here(&volume, "cp f I:/from/a").ok();
    here(&volume, "ln I:/from/a I:/from/vol/b").ok();
    here(&volume, "cp old I:/to/vol/b").ok();
    let ran = here(&volume, "cp -a I:/from/. I:/to").code(1);
    assert!(ran.err.contains("cannot create hard link"), "{}", ran.err);
    assert_eq!(here(&volume, "cat I:/to/vol/b").ok().text(), "old");
    // What can be made replaces what is there, and leaves no other name.
    here(&volume, "ln -f I:/f I:/from/vol/b").ok();
    here(&volume, "ln -f I:/f I:/from/vol/b").ok();
    here(&volume, "ln -sf f I:/from/a").ok();
    assert_eq!(here(&volume, "find I:/f -links 2").ok().text(), "volume.img:/f\n");
    assert_eq!(here(&volume, "readlink I:/from/a").ok().text(), "f\n");
    assert_eq!(
        here(&volume, "ls I:/from I:/from/vol").ok().text().matches('b').count(),
        1
    );
    assert_eq!(here(&volume, "find I:/ -name .*").ok().text(), "");
    volume.assert_clean();
}

#[test]
fn cycles_of_symbolic_links_end_a_copy_that_follows_them() {
    let volume = Scratch::new();
    here(&volume, "mkdir -p I:/d/sub").ok();
    here(&volume, "ln -s . I:/d/l1").ok();
    here(&volume, "ln -s .. I:/d/sub/l2").ok();
    here(&volume, "touch I:/d/sub/z").ok();
    let ran = here(&volume, "cp -rL I:/d I:/e").code(1);
    assert_eq!(
        ran.err.replace("volume.img:", "I:"),
        "cowshed cp: cannot copy cyclic symbolic link 'I:/d/l1'\n\
         cowshed cp: cannot copy cyclic symbolic link 'I:/d/sub/l2'\n"
    );
    assert_eq!(
        here(&volume, "find I:/e").ok().text().replace("volume.img:", "I:"),
        "I:/e\nI:/e/sub\nI:/e/sub/z\n"
    );
    volume.assert_clean();
}

#[test]
fn link_is_copied_into_the_directory_that_it_leads_to() {
    let volume = Scratch::new();
    here(&volume, "mkdir I:/d").ok();
    here(&volume, "ln -s d I:/link").ok();
    here(&volume, "cp -a I:/link I:/d/").ok();
    assert_eq!(here(&volume, "readlink I:/d/link").ok().text(), "d\n");
    here(&volume, "rm I:/d/link").ok();
    // Followed, it is the directory.
    let ran = here(&volume, "cp -rL I:/link I:/d/").code(1);
    assert!(ran.err.contains("into itself"), "{}", ran.err);
    volume.assert_clean();
}

#[test]
fn options_may_be_repeated_and_lists_of_attributes_add_up() {
    let volume = Scratch::new();
    fs::create_dir(volume.path("a")).unwrap();
    fs::write(volume.path("a/f"), "f").unwrap();
    fs::write(volume.path("g"), "g").unwrap();
    cowshed_harness::shell(volume.dir.path(), "chmod 751 a; chmod 613 g; touch -d @1000 g").unwrap();
    here(&volume, "cp -rR -v -v a I:/").ok();
    here(&volume, "cp --preserve=mode --preserve=timestamps g I:/").ok();
    here(&volume, "cp --preserve=mode --preserve=timestamps I:/g back").ok();
    let back = fs::metadata(volume.path("back")).unwrap();
    assert_eq!((back.mode() & 0o7777, back.mtime()), (0o613, 1000));
    here(&volume, "touch -d @5 -d @1000 I:/g").ok();
    here(&volume, "mkdir -p -p I:/x/y").ok();
    here(&volume, "mv -f -f I:/g I:/x").ok();
    here(&volume, "rm -r -r -f -f I:/x").ok();
    assert_eq!(here(&volume, "ls I:/").ok().text(), "a\n");
    fs::write(volume.path("lines"), "rm -r -r a\n").unwrap();
    cowshed_harness::shell(volume.dir.path(), &format!("{COWSHED} shell volume.img <lines")).unwrap();
    assert_eq!(here(&volume, "ls I:/").ok().text(), "");
}

#[test]
fn contents_go_through_links_of_the_image_and_not_through_those_of_the_host() {
    let volume = Scratch::new();
    fs::write(volume.path("new"), "new").unwrap();
    fs::write(volume.path("old"), "old").unwrap();
    let said = |line: &str, code: i32| here(&volume, line).code(code).err.replace("volume.img:", "I:");
    let reset = || {
        here(
            &volume,
            "rm -rf I:/f I:/hard I:/link I:/dangling I:/loop I:/beyond I:/d",
        )
        .ok();
        here(&volume, "cp old I:/f").ok();
        here(&volume, "mkdir I:/d").ok();
        for (target, link) in [("f", "link"), ("none", "dangling"), ("loop", "loop"), ("f/x", "beyond")] {
            here(&volume, &format!("ln -s {target} I:/{link}")).ok();
        }
    };
    let cat = |path: &str| here(&volume, &format!("cat {path}")).ok().text();
    for flag in ["", "-a", "-rp"] {
        reset();
        assert_eq!(said(&format!("cp {flag} new I:/link"), 0), "");
        assert_eq!(cat("I:/f"), "new", "{flag}");
        assert_eq!(here(&volume, "readlink I:/link").ok().text(), "f\n");
        for (to, message) in [
            ("dangling", "not writing through dangling symlink 'I:/dangling'"),
            ("loop", "cannot stat 'I:/loop': Too many levels of symbolic links"),
            ("beyond", "cannot stat 'I:/beyond': Not a directory"),
        ] {
            let expected = format!("cowshed cp: {message}\n");
            assert_eq!(said(&format!("cp {flag} new I:/{to}"), 1), expected, "{flag}");
        }
        let same = "cowshed cp: 'I:/f' and 'I:/link' are the same file\n";
        assert_eq!(said(&format!("cp {flag} I:/f I:/link"), 1), same, "{flag}");
    }
    // A link is not copied over the file that it leads to, and a directory not over a link.
    let same = |command: &str| format!("cowshed {command}: 'I:/link' and 'I:/f' are the same file\n");
    assert_eq!(said("cp -a I:/link I:/f", 1), same("cp"));
    assert_eq!(said("mv I:/link I:/f", 1), same("mv"));
    assert_eq!(cat("I:/f"), "new");
    here(&volume, "ln -s d I:/to-dir").ok();
    assert!(said("cp -rT I:/d I:/to-dir", 1).contains("cannot overwrite non-directory 'I:/to-dir'"));
    assert_eq!(said("cp -f new I:/loop", 0), "");
    assert_eq!(cat("I:/loop"), "new");
    // With -a a target with several names is another file afterwards.
    reset();
    here(&volume, "ln I:/f I:/hard").ok();
    here(&volume, "cp -a new I:/hard").ok();
    assert_eq!((cat("I:/f"), cat("I:/hard")), ("old".into(), "new".into()));
    // touch and truncate make what a link leads to.
    here(&volume, "touch I:/dangling").ok();
    here(&volume, "rm I:/none").ok();
    here(&volume, "truncate -s 3 I:/dangling").ok();
    assert_eq!(cat("I:/none"), "\0\0\0");
    // On the host.
    fs::create_dir(volume.path("out")).unwrap();
    symlink("../old", volume.path("out/f")).unwrap();
    here(&volume, "cp -a I:/f out").ok();
    assert!(fs::symlink_metadata(volume.path("out/f")).unwrap().is_file());
    volume.assert_clean();
}

#[test]
fn parents_keep_attributes_where_one_is_made() {
    let Some(()) = need::root() else { return };
    let volume = Scratch::new();
    let has_mode = |path: &str, mode: u32| {
        let found = here(&volume, &format!("find {path} -maxdepth 0 -perm {mode}"));
        !found.ok().text().is_empty()
    };
    here(&volume, "mkdir -m 700 I:/e").ok();
    here(&volume, "mkdir -m 755 I:/e/e").ok();
    here(&volume, "mkdir I:/e/d").ok();
    here(&volume, "cp --parents -rp I:/e/d I:/e").ok();
    assert!(has_mode("I:/e/e", 755), "none was made");
    here(&volume, "mkdir I:/e/e/x").ok();
    here(&volume, "cp --parents -rp I:/e/e/x I:/e").ok();
    assert!(has_mode("I:/e/e", 700) && has_mode("I:/e/e/e", 755));
    let ran = here(&volume, "cp --parents -rp I:/none/x I:/e").code(1);
    assert_eq!(
        ran.err,
        "cowshed cp: failed to get attributes of '/none': No such file or directory\n"
    );
}

#[test]
fn directory_is_not_copied_onto_itself() {
    let volume = Scratch::new();
    here(&volume, "mkdir -p I:/c/d/e").ok();
    for line in ["cp -r I:/c/d I:/c", "cp -a I:/c/d/ I:/c/", "cp -rT I:/c/d I:/c/d"] {
        let ran = here(&volume, line);
        assert_eq!(ran.code, 1, "{line}");
        assert!(ran.err.contains("are the same file"), "{line}: {}", ran.err);
    }
    // As with coreutils, where nothing would change.
    fs::write(volume.path("d"), "older").unwrap();
    let older = fs::File::options().write(true).open(volume.path("d")).unwrap();
    older.set_modified(std::time::UNIX_EPOCH).unwrap();
    here(&volume, "cp -u d I:/c").ok();
    assert_eq!(here(&volume, "cp d I:/c").code, 1);
    here(&volume, "cp -rn I:/c/d I:/c").ok();
    here(&volume, "cp -rl I:/c/d I:/c").ok();
    assert_eq!(here(&volume, "ls I:/c/d").ok().text(), "e\n");
    volume.assert_clean();
}

#[test]
fn hard_link_is_not_made_over_a_symbolic_link_to_its_file() {
    let volume = Scratch::new();
    fs::write(volume.path("f"), "f").unwrap();
    here(&volume, "cp f I:/f").ok();
    here(&volume, "ln -s f I:/link").ok();
    for line in ["cp -l I:/f I:/link", "cp -l I:/link I:/link", "cp -rl I:/link I:/link"] {
        let ran = here(&volume, line);
        assert_eq!(ran.code, 1, "{line}");
        assert!(ran.err.contains("File exists"), "{line}: {}", ran.err);
    }
    here(&volume, "cp -l I:/f I:/f").ok();
    here(&volume, "cp -lf I:/f I:/link").ok();
    let stat = here(&volume, "stat I:/f").ok().text();
    assert!(stat.contains("Links: 2"), "{stat}");
    volume.assert_clean();
}

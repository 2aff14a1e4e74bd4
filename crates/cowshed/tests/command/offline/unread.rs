//! The standard output and the standard error may be closed: the work is done all the same.

use std::fs;
use std::process::{Command, Stdio};

use cowshed_harness::limit;

use super::here;
use crate::support::{COMMAND_MAX, COWSHED, Scratch};

/// Runs a command whose output and messages have no reader. The exit code.
fn unread(volume: &Scratch, line: &str) -> Option<i32> {
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let mut command = Command::new(COWSHED);
    let words = line.split_whitespace().map(|word| word.replace("I:", "volume.img:"));
    command.args(words).current_dir(volume.dir.path()).stdin(Stdio::null());
    command.stdout(closed()).stderr(closed());
    let mut child = command.spawn().unwrap();
    limit::wait(&mut child, COMMAND_MAX).unwrap()?.code()
}

#[test]
fn all_of_a_command_is_done_where_its_messages_have_no_reader() {
    let volume = Scratch::filled();
    fs::write(volume.path("f"), "f").unwrap();
    assert_eq!(unread(&volume, "rm -v I:/big I:/none I:/null"), Some(1));
    assert_eq!(here(&volume, "ls I:/").ok().text(), "dir\n");
    assert_eq!(unread(&volume, "cp -v f none I:/"), Some(1));
    assert_eq!(here(&volume, "cat I:/f").ok().text(), "f");
    assert_eq!(unread(&volume, "mv -iv I:/f I:/dir"), Some(0));
    assert_eq!(here(&volume, "cat I:/dir/f").ok().text(), "f");
    assert_eq!(unread(&volume, "build --from f.tar out.img"), Some(1));
    fs::create_dir(volume.path("root")).unwrap();
    assert_eq!(unread(&volume, "build --from root out.img"), Some(0));
    assert_eq!(unread(&volume, "mkfs -b 200M --rootdir root new.img"), Some(0));
    assert!(volume.path("out.img").exists() && volume.path("new.img").exists());
    volume.assert_clean();
}

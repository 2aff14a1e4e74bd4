//! Both ways of reaching files below a directory, against trees that would lead out of it. The
//! portable one is what systems other than Linux have.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use btrfs_image::{MkfsOptions, mkfs};
use cowshed::{BlockDevice, MemDevice, OpenOptions, Volume};
use cowshed_device::OpenMode;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::linux::Linux;
use super::portable::Portable;
use super::*;
use crate::commands::files::copy::{Copier, Options};
use crate::commands::files::session::{Base, Place, Session};

const SYSTEMS: [(&str, &dyn System); 2] = [("Linux", &Linux), ("portable", &Portable)];

/// A directory for extractions with links that lead out of it, and beside it one with `secret`.
struct Trap {
    _top: tempfile::TempDir,
    inside: PathBuf,
    outside: PathBuf,
}

impl Trap {
    fn new() -> Trap {
        let top = tempfile::tempdir().unwrap();
        let (inside, outside) = (top.path().join("inside"), top.path().join("outside"));
        std::fs::create_dir_all(inside.join("dir/sub")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "secret").unwrap();
        std::fs::set_permissions(outside.join("secret"), std::fs::Permissions::from_mode(0o640)).unwrap();
        std::fs::write(inside.join("dir/file"), "file").unwrap();
        symlink(&outside, inside.join("absolute")).unwrap();
        symlink("../outside", inside.join("relative")).unwrap();
        symlink("../../outside", inside.join("dir/up")).unwrap();
        symlink("dir", inside.join("within")).unwrap();
        symlink(outside.join("secret"), inside.join("file-link")).unwrap();
        symlink(outside.join("new"), inside.join("dangling")).unwrap();
        Trap {
            _top: top,
            inside,
            outside,
        }
    }

    /// Nothing outside was read, written, or changed.
    fn assert_untouched(&self, what: &str) {
        let names: Vec<_> = std::fs::read_dir(&self.outside)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["secret"], "{what}");
        let secret = self.outside.join("secret");
        assert_eq!(std::fs::read(&secret).unwrap(), b"secret", "{what}");
        let stat = secret.metadata().unwrap();
        assert_eq!((stat.mode() & 0o7777, stat.nlink()), (0o640, 1), "{what}");
        assert_ne!(stat.mtime(), 7, "{what}");
        let top = self.inside.parent().unwrap();
        assert_ne!(top.metadata().unwrap().mode() & 0o7777, 0o777, "{what}");
        assert_eq!(std::fs::read_dir(top).unwrap().count(), 2, "{what}");
    }
}

/// Every call that takes a path, on one path.
fn all_calls(host: &Host, path: &Path) -> Vec<(&'static str, Result<()>)> {
    let time = Some(Timestamp::new(7, 0));
    let inner = path.join("new");
    vec![
        ("stat", host.stat(path, Follow::Yes).map(drop)),
        ("names", host.names(path).map(drop)),
        ("open", host.open(path).map(drop)),
        (
            "create",
            host.create(path, Create::Over, 0o777)
                .and_then(|sink| sink.write_at(0, b"x")),
        ),
        ("create inside", host.create(&inner, Create::New, 0o777).map(drop)),
        ("make_dir", host.make_dir(&inner, 0o777)),
        ("make_symlink", host.make_symlink(OsStr::new("x"), &inner)),
        ("link to", host.link(Path::new("dir/file"), &inner)),
        ("link from", host.link(&path.join("secret"), Path::new("stolen"))),
        ("rename to", host.rename(Path::new("dir/file"), &inner)),
        ("rename from", host.rename(&path.join("secret"), Path::new("stolen"))),
        ("unlink", host.unlink(&path.join("secret"))),
        ("remove_dir", host.remove_dir(&path.join("secret"))),
        ("set_perm", host.set_perm(path, 0o777)),
        ("set_perm inside", host.set_perm(&path.join("secret"), 0o777)),
        (
            "set_times",
            host.set_times(&path.join("secret"), time, time, Follow::Yes),
        ),
        (
            "set_owner",
            host.set_owner(&path.join("secret"), Some(7), None, Follow::Yes),
        ),
        ("xattrs", host.xattrs(&path.join("secret")).map(drop)),
        ("set_xattr", host.set_xattr(&path.join("secret"), b"user.x", b"x")),
        ("remove_xattr", host.remove_xattr(&path.join("secret"), b"user.x")),
    ]
}

#[test]
fn paths_that_would_lead_out_of_the_directory_are_refused() {
    for (name, system) in SYSTEMS {
        for path in [
            "absolute",
            "relative",
            "dir/up",
            "..",
            "../outside",
            "dir/../..",
            "dir/../../outside",
            "within/up",
        ] {
            let trap = Trap::new();
            let host = Host::beneath_by(&trap.inside, system).unwrap();
            for (call, done) in all_calls(&host, Path::new(path)) {
                // What is known of the link itself is inside.
                if !(call == "stat" && !path.contains("..") && path != "within/up") {
                    assert!(done.is_err(), "{name}: {call} of {path}");
                }
                trap.assert_untouched(&format!("{name}: {call} of {path}"));
            }
        }
    }
}

#[test]
fn absolute_path_below_a_directory_stays_there() {
    for (name, system) in SYSTEMS {
        let trap = Trap::new();
        let host = Host::beneath_by(&trap.inside, system).unwrap();
        let _ = all_calls(&host, &trap.outside);
        trap.assert_untouched(name);
    }
}

#[test]
fn symbolic_links_at_the_end_are_meant_themselves() {
    for (name, system) in SYSTEMS {
        for path in ["file-link", "dangling"] {
            let trap = Trap::new();
            let host = Host::beneath_by(&trap.inside, system).unwrap();
            let path = Path::new(path);
            assert!(host.stat(path, Follow::Yes).unwrap().is_symlink(), "{name}");
            assert!(host.open(path).is_err(), "{name}");
            assert!(host.create(path, Create::Over, 0o777).is_err(), "{name}");
            assert!(host.create(path, Create::New, 0o777).is_err(), "{name}");
            assert_eq!(
                host.set_perm(path, 0o777).unwrap_err().raw_os_error(),
                Some(libc::ELOOP),
                "{name}"
            );
            let time = Some(Timestamp::new(7, 0));
            host.set_times(path, time, time, Follow::Yes).unwrap();
            let _ = host.set_xattr(path, b"user.x", b"x");
            trap.assert_untouched(name);
            host.rename(Path::new("dir/file"), path).unwrap();
            trap.assert_untouched(name);
        }
    }
}

#[test]
fn files_inside_are_reached() {
    for (name, system) in SYSTEMS {
        let trap = Trap::new();
        let host = Host::beneath_by(&trap.inside, system).unwrap();
        let file = Path::new("./dir/sub/new");
        host.create(file, Create::New, 0o600)
            .unwrap()
            .write_at(0, b"new")
            .unwrap();
        let mut read = [0; 8];
        assert_eq!(host.open(file).unwrap().read_at(0, &mut read).unwrap(), 3, "{name}");
        assert_eq!(host.open(file).unwrap().data_from(1).unwrap(), Some((1, 3)), "{name}");
        assert_eq!(host.open(file).unwrap().data_from(3).unwrap(), None, "{name}");
        host.set_perm(file, 0o751).unwrap();
        assert_eq!(host.stat(file, Follow::No).unwrap().perm, 0o751, "{name}");
        host.set_perm(Path::new("."), 0o750).unwrap();
        assert_eq!(host.stat(Path::new("."), Follow::No).unwrap().perm, 0o750, "{name}");
        // Not all file systems have them.
        if host.set_xattr(file, b"user.x", b"value").is_ok() {
            let expected = vec![(b"user.x".to_vec(), b"value".to_vec())];
            assert_eq!(host.xattrs(file).unwrap(), expected, "{name}");
            host.remove_xattr(file, b"user.x").unwrap();
        }
        assert_eq!(host.xattrs(file).unwrap(), [], "{name}");
        assert_eq!(host.names(Path::new("dir")).unwrap(), ["file", "sub", "up"], "{name}");
        assert_eq!(host.names(Path::new("within")).map_err(drop), Err(()), "{name}");
    }
}

/// A directory and a link that leads out of it change places all the time, while files are written
/// below.
#[test]
fn link_that_takes_the_place_of_a_directory_meanwhile_leads_nowhere() {
    const WRITTEN: u32 = 200;
    const TRIES_MAX: u32 = 50_000;
    for (name, system) in SYSTEMS {
        let trap = Trap::new();
        let host = Host::beneath_by(&trap.inside, system).unwrap();
        let (dir, link) = (trap.inside.join("dir"), trap.inside.join("absolute"));
        std::fs::write(trap.inside.join("dir/secret"), "inside").unwrap();
        let (is_over, swaps) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            });
            let (mut written, mut refused, mut tries) = (0, 0, 0);
            while (written < WRITTEN || refused < WRITTEN) && tries < TRIES_MAX {
                tries += 1;
                let path = Path::new("dir/secret");
                let outcome = host
                    .create(path, Create::Over, 0o777)
                    .and_then(|sink| sink.write_at(0, b"mine"));
                match outcome.and_then(|()| host.set_perm(path, 0o777)) {
                    Ok(()) => written += 1,
                    Err(_) => refused += 1,
                }
                let _ = host.create(Path::new("dir/new"), Create::New, 0o777);
                let _ = host.unlink(Path::new("dir/new"));
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(
                written > 0 && refused > 0,
                "{name}: {written} written, {refused} refused"
            );
        });
        assert!(swaps.into_inner() > 0, "{name}");
        trap.assert_untouched(name);
    }
}

/// An image whose names are those of links that the destination has.
#[test]
fn extraction_over_links_that_lead_out_stays_inside() {
    for (name, system) in SYSTEMS {
        let trap = Trap::new();
        let disk = empty_disk();
        let volume = Volume::open([disk.clone()], &OpenOptions::new()).unwrap();
        volume.create_dir_all("absolute/sub").unwrap();
        volume.write("absolute/secret", "overwritten").unwrap();
        volume.create_dir_all("dir/up").unwrap();
        volume.write("dir/up/secret", "overwritten").unwrap();
        volume.write("dir/file", "from the image").unwrap();
        volume.write("file-link", "overwritten").unwrap();
        volume.write("dangling", "overwritten").unwrap();
        volume.symlink("/etc", "etc").unwrap();
        volume.close().unwrap();

        let base = Base::Host;
        let session = Session::new("extract", &base).with_disk("no-such-file.img", disk);
        let from = Path::new("no-such-file.img:/");
        let (_, from) = session.in_image(from, OpenMode::ReadOnly).unwrap();
        let host = Host::beneath_by(&trap.inside, system).unwrap();
        let to = Place {
            side: Rc::new(host),
            path: PathBuf::from("."),
            shown: trap.inside.clone().into(),
        };
        // Directories take no links' places, which is complained about.
        assert!(!Copier::new(&session, Options::whole()).copy(&from, &to), "{name}");
        trap.assert_untouched(name);
        let read = |path: &str| std::fs::read_to_string(trap.inside.join(path)).unwrap();
        assert_eq!(read("dir/file"), "from the image", "{name}");
        assert_eq!(
            (read("file-link"), read("dangling")),
            ("overwritten".into(), "overwritten".into()),
            "{name}"
        );
        assert!(!trap.inside.join("file-link").is_symlink(), "{name}");
        assert_eq!(
            std::fs::read_link(trap.inside.join("etc")).unwrap(),
            Path::new("/etc"),
            "{name}"
        );
    }
}

fn empty_disk() -> Arc<dyn BlockDevice> {
    let disk: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("disk", 128 << 20));
    mkfs(std::slice::from_ref(&disk), &MkfsOptions::new([7; 16])).unwrap();
    disk
}

/// Copies what `fill` puts into an image by the portable side, and returns where it is and whether
/// nothing was complained about.
fn copied_by_portable(fill: &dyn Fn(&dyn Side)) -> (tempfile::TempDir, bool) {
    let base = Base::Host;
    let session = Session::new("extract", &base).with_disk("no-such-file.img", empty_disk());
    let image = Path::new("no-such-file.img:/");
    let (_, from) = session.in_image(image, OpenMode::ReadWrite).unwrap();
    fill(&*from.side);
    let dir = tempfile::tempdir().unwrap();
    let to = Place {
        side: Rc::new(Host::beneath_by(dir.path(), &Portable).unwrap()),
        path: PathBuf::from("."),
        shown: dir.path().into(),
    };
    let is_well = Copier::new(&session, Options::whole()).copy(&from, &to);
    (dir, is_well)
}

fn write(side: &dyn Side, path: &str, perm: u32) {
    let sink = side.create(Path::new(path), Create::New, perm).unwrap();
    sink.write_at(0, path.as_bytes()).unwrap();
}

#[test]
fn nodes_are_refused_by_the_portable_side_and_the_rest_is_copied() {
    let (dir, is_well) = copied_by_portable(&|image| {
        image
            .make_node(Path::new("/device"), FileKind::CharDevice, 0o666, (1, 3))
            .unwrap();
        image
            .make_node(Path::new("/pipe"), FileKind::Fifo, 0o600, (0, 0))
            .unwrap();
        write(image, "/zero", 0o640);
    });
    assert!(!is_well);
    let names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["zero"]);
    assert_eq!(std::fs::read(dir.path().join("zero")).unwrap(), b"/zero");
    assert_eq!(dir.path().join("zero").metadata().unwrap().mode() & 0o7777, 0o640);
}

#[test]
fn other_attributes_than_those_of_users_are_skipped_by_the_portable_side() {
    let (dir, is_well) = copied_by_portable(&|image| {
        write(image, "/file", 0o600);
        image.set_xattr(Path::new("/file"), b"user.name", b"value").unwrap();
        image.set_xattr(Path::new("/file"), b"trusted.name", b"value").unwrap();
        image.set_xattr(Path::new("/file"), b"security.name", b"value").unwrap();
    });
    assert!(is_well);
    let host = Host::beneath_by(dir.path(), &Linux).unwrap();
    let found = host.xattrs(Path::new("file")).unwrap();
    // The file system of this test need not have any.
    let expected = (b"user.name".to_vec(), b"value".to_vec());
    assert!(found.iter().all(|attribute| *attribute == expected), "{found:?}");
    let refused = Host::beneath_by(dir.path(), &Portable).unwrap();
    let refused = refused.set_xattr(Path::new("file"), b"trusted.name", b"value");
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
}

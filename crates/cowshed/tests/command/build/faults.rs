//! What goes wrong while an image is built: nothing half made is left.

use std::fs;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use cowshed_harness::{LoopDevice, need};

use super::{Tmpfs, noise, run_with, small_tree, source};
use crate::support::run;

#[test]
fn fakeroot_without_its_library_in_the_process_is_refused() {
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    for variable in [
        ("FAKEROOTKEY", "1"),
        ("PSEUDO_PREFIX", "/usr"),
        ("LD_PRELOAD", "/none/libfakeroot-sysv.so"),
    ] {
        run_with(&[variable], "build -q --from {} {}", &[&root, &image]).fails_with(1, &[variable.0, "owners"]);
        run_with(&[variable], "mkfs -q -b 200m -r {} {}", &[&root, &image]).fails(&[variable.0]);
    }
    assert!(!image.exists());
    let off = [("PSEUDO_PREFIX", "/usr"), ("PSEUDO_DISABLED", "1")];
    run_with(&off, "build -q --from {} {}", &[&root, &image]).ok();
}

#[test]
fn source_that_changes_while_it_is_read_is_named() {
    let (dir, root) = source();
    small_tree(&root);
    let path = root.join("log");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&noise(1 << 20)).unwrap();
    let image = dir.path().join("image");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = &file;
            while !stop.load(Ordering::Relaxed) {
                file.write_all(b"line\n").unwrap();
            }
        });
        for flags in ["", "--dedupe"] {
            // Now and then nothing is written meanwhile.
            let mut runs = (0..50).map(|_| run(&format!("build -q {flags} --from {{}} {{}}"), &[&root, &image]));
            let failed = runs.find(|ran| ran.code != 0);
            if let Some(ran) = &failed
                && ran.code == 1
                && ran.err.contains("root/log: changed while it was read")
            {
                continue;
            }
            stop.store(true, Ordering::Relaxed);
            panic!("{flags}: {:?}", failed.map(|ran| ran.err));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1 + usize::from(image.exists()), "nothing half made is left");
}

#[test]
fn archive_that_changes_while_it_is_read_is_named() {
    let Some(()) = need::tool("tar") else { return };
    let (dir, root) = source();
    small_tree(&root);
    fs::write(root.join("large"), noise(1 << 20)).unwrap();
    let (tar, image) = (dir.path().join("a.tar"), dir.path().join("image"));
    cowshed_harness::shell(dir.path(), "tar -cf a.tar -C root .").unwrap();
    run("build -q --from {} {}", &[&tar, &image]).ok();
    fs::remove_file(&image).unwrap();
    let file = fs::File::options().write(true).open(&tar).unwrap();
    let head = fs::read(&tar).unwrap()[..512].to_vec();
    let stop = AtomicBool::new(false);
    let failed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // The same bytes again: only the times tell.
                std::os::unix::fs::FileExt::write_all_at(&file, &head, 0).unwrap();
            }
        });
        // Now and then nothing is written meanwhile.
        let mut runs = (0..50).map(|_| run("build -q --from {} {}", &[&tar, &image]));
        let failed = runs.find(|ran| ran.code != 0);
        stop.store(true, Ordering::Relaxed);
        failed
    });
    failed
        .expect("a change is seen")
        .fails_with(1, &["a.tar: changed while it was read"]);
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 2 + usize::from(image.exists()), "nothing half made is left");
}

#[test]
fn unreadable_file_is_named_and_nothing_is_made() {
    let Some(()) = need::root() else { return };
    let Some(()) = need::tool("setpriv") else { return };
    let (dir, root) = source();
    small_tree(&root);
    let script = format!(
        "chmod 777 .; chmod 644 root/etc/hostname; chmod 600 root/etc/notes; chown -R root root; chmod go+rx root root/etc root/home
         setpriv --reuid=65534 --regid=65534 --clear-groups {} build -q --from root image 2>said && exit 9
         test $? = 1 && cat said; chmod 644 root/etc/notes; chmod 700 root/etc/conf.d
         setpriv --reuid=65534 --regid=65534 --clear-groups {0} build -q --from root image 2>said && exit 9
         test $? = 1 && cat said; ls",
        crate::support::COWSHED
    );
    let said = cowshed_harness::shell(dir.path(), &script).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].contains("notes") && lines[0].contains("Permission denied"),
        "{said}"
    );
    assert!(
        lines[1].contains("etc/conf.d") && lines[1].contains("Permission denied"),
        "{said}"
    );
    assert_eq!(lines[2..], ["root", "said"], "nothing is made");
}

#[test]
fn device_too_small_by_a_block_is_said_to_hold_nothing_and_holds_nothing() {
    let Some(()) = need::loop_devices() else { return };
    let (dir, root) = source();
    small_tree(&root);
    let (image, disk) = (dir.path().join("image"), dir.path().join("disk"));
    for compress in ["", "--compress zstd"] {
        let planned = run(
            &format!("build --json --dry-run {compress} --from {{}} {{}}"),
            &[&root, &image],
        );
        let needed = planned.ok().json()["needed_bytes"].as_u64().unwrap();
        for (bytes, fits) in [(needed - 4096, false), (needed, true)] {
            fs::File::create(&disk).unwrap().set_len(bytes).unwrap();
            let device = LoopDevice::attach(&disk).unwrap();
            let ran = run(
                &format!("build -q {compress} --from {{}} {{}}"),
                &[&root, device.path()],
            );
            if fits {
                ran.ok();
            } else {
                ran.fails_with(1, &["4096 bytes are missing", "holds no volume"]);
                run("ls {} /", &[device.path()]).fails(&["btrfs"]);
            }
        }
        run("check --check-data-csum {}", &[&disk]).ok();
    }
}

#[test]
fn full_disk_of_the_host_leaves_nothing_half_made() {
    let Some(()) = need::root() else { return };
    let (dir, root) = source();
    small_tree(&root);
    fs::write(root.join("large"), noise(8 << 20)).unwrap();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let tmpfs = Tmpfs::new(&small, "size=4m");
    let image = small.join("image");
    let ran = run("build -q --from {} {}", &[&root, &image]);
    let before = fs::read_dir(&small).unwrap().count();
    let tar = format!(
        "tar -C root -czf a.tar.gz .; TMPDIR=small {} build -q --from a.tar.gz - > /dev/null",
        crate::support::COWSHED
    );
    let piped = cowshed_harness::shell(dir.path(), &tar);
    drop(tmpfs);
    ran.fails_with(1, &["image", "No space left"]);
    assert_eq!(before, 0, "nothing is left");
    let said = format!("{:#}", piped.unwrap_err());
    assert!(said.contains("No space left"), "{said}");
}

#[test]
fn reason_of_a_failure_is_named_once() {
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    let none = dir.path().join("none");
    for (line, paths, file) in [
        ("build -q --from {} {}", [&none, &image], &none),
        (
            "build -q --from {} {}",
            [&root, &none.join("image")],
            &none.join("image"),
        ),
        ("build -q --layers x --from {} {}", [&none, &image], &none),
        ("mkfs -q -b 200m -r {} {}", [&none, &image], &none),
    ] {
        let ran = run(line, &[paths[0], paths[1]]);
        assert_ne!(ran.code, 0, "{line}");
        let reason = format!("{}: No such file or directory (os error 2)\n", file.display());
        assert!(ran.err.ends_with(&reason), "{line}: {}", ran.err);
        assert_eq!(ran.err.matches("No such file").count(), 1, "{line}: {}", ran.err);
    }
    assert!(!image.exists());
}

//! What goes wrong while an image is built: nothing half made is left.

use std::fs;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use cowshed_harness::need;

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

//! A full volume on a mount. Stores through a mapping: what finds no space is an error of msync, and harms nothing else. Each
//! operation: [`steps`].

mod brim;
mod steps;

use std::fs;
use std::time::Duration;

use cowshed_harness::{KernelVolume, need, run_in};

use crate::extents::{Mounted, can_compare, mounted};
use crate::mount::Guard;
use crate::support::run;

const SCRIPT: &str = r#"
import errno, mmap, os
BLOCK = 4096
def mapped(name):
    with open(name, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)
def fill(name):
    with open(name, "wb", buffering=0) as file:
        for step in (1 << 20, 1 << 16, BLOCK):
            try:
                while True:
                    file.write(b"f" * step)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
def flush_fails(mapping):
    try:
        mapping.flush()
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.EIO), error
        return True
    return False
with open("old", "wb") as file:
    file.write(b"o" * (1 << 20))
with open("hole", "wb") as file:
    file.truncate(8 << 20)
with open("promised", "wb") as file:
    os.posix_fallocate(file.fileno(), 0, 1 << 20)
os.fsync(os.open(".", os.O_RDONLY))
fill("filler")
hole = mapped("hole")
hole[0:4 << 20] = b"h" * (4 << 20)
assert flush_fails(hole), "a store without space"
promised = mapped("promised")
promised[100:500000] = b"p" * 499900
promised.flush()
os.remove("filler")
os.fsync(os.open(".", os.O_RDONLY))
again = mapped("hole")
again[0:1 << 20] = b"i" * (1 << 20)
again.flush()
"#;

#[test]
fn stores_through_a_mapping_of_a_full_volume_fail_at_msync_and_harm_nothing() {
    let (Some(()), Some(())) = (can_compare(), need::tool("python3")) else {
        return;
    };
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    run_in(&mnt, "python3", &["-c", SCRIPT]).unwrap_or_else(|e| panic!("{e:#}"));
    let mut promised = vec![0; 1 << 20];
    promised[100..500_000].fill(b'p');
    let is_right = |dir: &std::path::Path| {
        assert!(fs::read(dir.join("old")).unwrap() == vec![b'o'; 1 << 20]);
        assert!(fs::read(dir.join("promised")).unwrap() == promised);
        let hole = fs::read(dir.join("hole")).unwrap();
        assert!(hole.len() == 8 << 20 && hole[..1 << 20] == vec![b'i'; 1 << 20]);
        assert!(
            hole[1 << 20..].iter().all(|b| [0, b'h'].contains(b)),
            "stored, or a hole"
        );
    };
    is_right(&mnt);
    // The unmount reports the error once more. A mount that is busy for a moment is tried again.
    let mut told = String::new();
    for _ in 0..100 {
        let ran = run("umount {}", &[&mnt]);
        told += &ran.err;
        if !ran.err.contains("busy") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(told.contains("not everything could be written"), "{told}");
    scratch.assert_clean();
    let volume = KernelVolume::copy_of(&[&scratch.image]).unwrap();
    volume.assert_clean();
    let by_kernel = |dir: &std::path::Path| {
        is_right(dir);
        Ok(())
    };
    volume.with_mount(by_kernel).unwrap();
}

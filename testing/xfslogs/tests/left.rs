//! An unlinked inode whose attributes have lost their root or values: Linux leaves it, we free it.

use std::fs;
use std::sync::Arc;

use cowshed_device::{FileDevice, Locking, OpenMode};
use cowshed_harness::run;
use cowshed_harness::xfs::{XfsOptions, XfsVolume};
use cowshed_xfs::{OpenOptions, Volume};
use cowshed_xfslogs::{is_able, judge_kept};
use xfs_format::attr::{AttrLeafBlock, AttrNew, AttrValueView};
use xfs_format::{DaBlock, Daddr, Expect, Ino, Lsn};

/// What is wrong with the attributes of the first file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    Nothing,
    /// Their root is gone, as a cancel leaves it.
    Root,
    /// A leaf names a value that has no blocks.
    Value,
}

/// The leaf with its large value in another place.
fn without_value(volume: &XfsVolume, block: &[u8], at: u64, ino: u64) -> Vec<u8> {
    const LSN_AT: usize = 24;
    let device = FileDevice::open_with(volume.image(), OpenMode::ReadOnly, Locking::Unlocked).unwrap();
    let options = OpenOptions {
        no_recovery: true,
        ..OpenOptions::default()
    };
    let opened = Volume::open(Arc::new(device), &options).unwrap();
    let expect = Expect::of_inode(opened.geometry(), Daddr(at / 512), Ino(ino));
    let leaf = AttrLeafBlock::verify(block.to_vec(), &expect).unwrap();
    let mut moved = 0;
    let entries = leaf.entries().map(|entry| AttrNew {
        flags: entry.flags,
        name: entry.name,
        value: match entry.value {
            AttrValueView::Remote { len_bytes, .. } => {
                moved += 1;
                let block = DaBlock(5000);
                AttrValueView::Remote { block, len_bytes }
            }
            local @ AttrValueView::Local(_) => local,
        },
    });
    let entries: Vec<_> = entries.collect();
    assert_eq!(moved, 1);
    let bytes = AttrLeafBlock::build(&entries, leaf.siblings(), &expect).unwrap();
    let lsn = u64::from_be_bytes(block[LSN_AT..LSN_AT + 8].try_into().unwrap());
    AttrLeafBlock::seal(bytes, &expect, Lsn(lsn)).unwrap().bytes().to_vec()
}

/// A dirty volume: files 0 and 1 with attributes were at home, then unlinked while they were open.
fn image(broken: Broken) -> XfsVolume {
    let options = XfsOptions {
        size_bytes: 320 << 20,
        ..XfsOptions::new("-m rmapbt=1,reflink=1")
    };
    let volume = XfsVolume::make(&options).unwrap();
    let first = volume
        .with_mount(|dir| {
            for name in ["0", "1"] {
                let path = dir.join(name);
                fs::write(&path, b"")?;
                for number in 0..3 {
                    let large = broken == Broken::Value && number == 1;
                    let value = match (broken, large) {
                        (_, true) => vec![b'a'; 20_000],
                        (Broken::Value, false) => vec![b'a'; 300],
                        _ => vec![b'a'; 3000],
                    };
                    rustix::fs::setxattr(&path, format!("user.{number}"), &value, rustix::fs::XattrFlags::empty())?;
                }
            }
            Ok(std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir.join("0"))?))
        })
        .unwrap();
    let mounted = volume.mount_with("").unwrap();
    let dir = mounted.dir().to_path_buf();
    let open = ["0", "1"].map(|name| fs::File::open(dir.join(name)).unwrap());
    for name in ["0", "1"] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    let args = ["-x".as_ref(), "-c".as_ref(), "shutdown -f".as_ref(), dir.as_os_str()];
    run("xfs_io", &args).unwrap();
    drop(open);
    mounted.unmount().unwrap();
    if broken != Broken::Nothing {
        let mut bytes = fs::read(volume.image()).unwrap();
        let is_root =
            |block: &[u8]| matches!(block[8..10], [0x3b, 0xee] | [0x3e, 0xbe]) && block[48..56] == first.to_be_bytes();
        let blocks = (0..bytes.len()).step_by(4096);
        let roots: Vec<usize> = blocks.filter(|at| is_root(&bytes[*at..*at + 4096])).collect();
        assert!(!roots.is_empty());
        for at in roots {
            let new = match broken {
                Broken::Value => without_value(&volume, &bytes[at..at + 4096], at as u64, first),
                _ => vec![0; 4096],
            };
            bytes[at..at + 4096].copy_from_slice(&new);
        }
        fs::write(volume.image(), bytes).unwrap();
    }
    volume
}

#[test]
fn unlinked_inode_without_a_root_or_value_of_its_attributes_is_freed() {
    if !is_able() {
        return;
    }
    for (broken, left) in [(Broken::Nothing, 0), (Broken::Root, 1), (Broken::Value, 1)] {
        let volume = image(broken);
        let seen = judge_kept(volume.image()).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!((seen.unlinked, seen.left), (2, left), "{seen}");
        assert_eq!(seen.repaired, 1, "{seen}");
    }
}

//! Extended attributes, access lists, properties, flags.

use btrfs_format::KeyType;
use cowshed_harness::tree::colliding_names;
use cowshed_vfs::acl::{ACCESS_NAME, Acl, DEFAULT_NAME, Named};
use cowshed_vfs::{Access, Error, FileSystem, Ioctl, SetAttr, SetXattrFlags};

use crate::rig::{ROOT, Rig, can_run, kernel_can};

#[test]
fn values_are_set_replaced_and_removed() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.create("f").unwrap();
    assert_eq!(rig.xattr("f", "user.a"), Err(Error::NoData));
    let node = rig.node("f").unwrap();
    let set = |value: &[u8], flags| rig.fs.setxattr(&ROOT, node, b"user.a", value, flags);
    assert_eq!(set(b"x", SetXattrFlags::REPLACE), Err(Error::NoData));
    set(b"one", SetXattrFlags::CREATE).unwrap();
    assert_eq!(set(b"two", SetXattrFlags::CREATE), Err(Error::Exists));
    set(b"three", SetXattrFlags::REPLACE).unwrap();
    for name in ["trusted.t", "security.s", "user.empty"] {
        rig.set_xattr("f", name, b"").unwrap();
    }
    assert_eq!(rig.set_xattr("f", "nonsense.x", b""), Err(Error::NotSupported));
    let rig = rig.remount();
    assert_eq!(rig.xattr("f", "user.a").unwrap(), b"three");
    assert_eq!(
        rig.xattr_names("f"),
        ["security.s", "trusted.t", "user.a", "user.empty"]
    );
    let node = rig.node("f").unwrap();
    rig.fs.removexattr(&ROOT, node, b"user.a").unwrap();
    assert_eq!(rig.fs.removexattr(&ROOT, node, b"user.a"), Err(Error::NoData));
    assert_eq!(rig.xattr("f", "user.a"), Err(Error::NoData));
    rig.finish();
}

#[test]
fn values_end_where_a_leaf_ends() {
    if !kernel_can() {
        return;
    }
    let rig = Rig::with_nodesize(16384);
    rig.create("f").unwrap();
    // 16384 - 101 (header) - 25 (item) - 30 (entry) - 6 (name)
    let most = 16222;
    assert_eq!(rig.set_xattr("f", "user.x", &vec![1; most + 1]), Err(Error::NoSpace));
    rig.set_xattr("f", "user.x", &vec![1; most]).unwrap();
    assert_eq!(rig.set_xattr("f", "user.y", &vec![1; 65537]), Err(Error::TooBig));
    let volume = rig.finish();
    volume
        .with_mount(|root| {
            let out = cowshed_harness::run(
                "getfattr",
                &[
                    "--only-values".as_ref(),
                    "-n".as_ref(),
                    "user.x".as_ref(),
                    root.join("f").as_os_str(),
                ],
            )?;
            assert_eq!(out.len(), most);
            Ok(())
        })
        .unwrap();
}

#[test]
fn colliding_attributes_share_an_item() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let ino = rig.create("f").unwrap().attr.ino;
    let names: Vec<String> = colliding_names(20).iter().map(|n| format!("user.{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        rig.set_xattr("f", name, &[n as u8; 9]).unwrap();
    }
    assert_eq!(rig.items(ino, KeyType::XATTR_ITEM).len(), 1);
    rig.cool();
    let node = rig.node("f").unwrap();
    rig.fs.removexattr(&ROOT, node, names[7].as_bytes()).unwrap();
    rig.set_xattr("f", &names[8], b"changed").unwrap();
    assert_eq!(rig.xattr("f", &names[7]), Err(Error::NoData));
    assert_eq!(rig.xattr("f", &names[8]).unwrap(), b"changed");
    assert_eq!(rig.xattr("f", &names[9]).unwrap(), [9; 9]);
    rig.finish();
}

fn list(owner: u32, user: u32, mask: u32) -> Acl {
    let access = |n| Access::from_bits_truncate(n);
    Acl {
        owner: access(owner),
        users: vec![Named {
            id: 7,
            perm: access(user),
        }],
        group: access(5),
        groups: Vec::new(),
        mask: Some(access(mask)),
        other: access(5),
    }
}

#[test]
fn default_lists_are_inherited_and_chmod_moves_the_mask() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("d").unwrap();
    let default = list(7, 7, 7);
    rig.set_xattr("d", "system.posix_acl_default", &default.to_bytes())
        .unwrap();
    rig.create("d/f").unwrap();
    rig.mkdir("d/sub").unwrap();
    let stored = |rig: &Rig, path: &str, name: &[u8]| {
        Acl::parse(&rig.xattr(path, std::str::from_utf8(name).unwrap()).unwrap())
            .unwrap()
            .unwrap()
    };
    // Asked for 0644: the mask is cut to the group's bits, which the mode shows.
    assert_eq!(rig.attr("d/f").unwrap().perm, 0o644);
    assert_eq!(stored(&rig, "d/f", ACCESS_NAME).mask, Some(Access::READ));
    assert_eq!(stored(&rig, "d/sub", DEFAULT_NAME), default);
    let chmod = SetAttr {
        perm: Some(0o670),
        ..SetAttr::default()
    };
    rig.setattr("d/f", &chmod).unwrap();
    let rig = rig.remount();
    let after = stored(&rig, "d/f", ACCESS_NAME);
    assert_eq!(after.mask, Some(Access::READ | Access::WRITE | Access::EXEC));
    assert_eq!(after.group, Access::READ | Access::EXEC, "the group itself stays");
    assert_eq!(rig.attr("d/f").unwrap().perm, 0o670);
    // A list that says what the mode says is not stored; removing what is not there is fine.
    rig.set_xattr("d/f", "system.posix_acl_access", &Acl::from_mode(0o640).to_bytes())
        .unwrap();
    assert_eq!(rig.attr("d/f").unwrap().perm, 0o640);
    assert_eq!(rig.xattr_names("d/f"), Vec::<String>::new());
    let node = rig.node("d/f").unwrap();
    rig.fs.removexattr(&ROOT, node, ACCESS_NAME).unwrap();
    rig.finish();
}

fn flags(rig: &Rig, path: &str) -> u32 {
    let mut out = [0; 8];
    let call = Ioctl {
        cmd: 0x8008_6601,
        arg: 0,
        compat: false,
    };
    let node = rig.node(path).unwrap();
    let handle = cowshed_vfs::Handle::NONE;
    rig.fs.ioctl(&ROOT, node, handle, &call, &[], &mut out).unwrap();
    u32::from_le_bytes(out[..4].try_into().unwrap())
}

fn set_flags(rig: &Rig, path: &str, flags: u32) -> Result<(), Error> {
    let call = Ioctl {
        cmd: 0x4008_6602,
        arg: 0,
        compat: false,
    };
    let node = rig.node(path).unwrap();
    let handle = cowshed_vfs::Handle::NONE;
    rig.fs
        .ioctl(&ROOT, node, handle, &call, &flags.to_le_bytes(), &mut [])
        .map(drop)
}

const COMPR: u32 = 0x4;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NOCOW: u32 = 0x80_0000;
const NOCOMP: u32 = 0x400;

#[test]
fn compression_is_a_property_and_a_flag() {
    if !kernel_can() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("d").unwrap();
    assert_eq!(rig.set_xattr("d", "btrfs.compression", b"gzip"), Err(Error::Invalid));
    assert_eq!(rig.set_xattr("d", "btrfs.other", b"x"), Err(Error::Invalid));
    rig.set_xattr("d", "btrfs.compression", b"zstd:3").unwrap();
    assert_eq!(flags(&rig, "d"), COMPR);
    rig.create("d/f").unwrap();
    assert_eq!(
        rig.xattr("d/f", "btrfs.compression").unwrap(),
        b"zstd",
        "without the level"
    );
    rig.set_xattr("d", "btrfs.compression", b"none").unwrap();
    rig.create("d/g").unwrap();
    assert_eq!((flags(&rig, "d"), flags(&rig, "d/g")), (NOCOMP, NOCOMP));
    assert_eq!(rig.xattr("d/g", "btrfs.compression"), Err(Error::NoData));
    rig.create("h").unwrap();
    set_flags(&rig, "h", COMPR).unwrap();
    assert_eq!(rig.xattr("h", "btrfs.compression").unwrap(), b"zlib");
    set_flags(&rig, "h", 0).unwrap();
    assert_eq!(rig.xattr("h", "btrfs.compression"), Err(Error::NoData));
    set_flags(&rig, "h", NOCOW).unwrap();
    assert_eq!(rig.set_xattr("h", "btrfs.compression", b"lzo"), Err(Error::Invalid));
    let volume = rig.finish();
    volume
        .with_mount(|root| {
            let out = cowshed_harness::run("lsattr", &["-d".as_ref(), root.join("h").as_os_str()])?;
            assert!(out.split(' ').next().unwrap().contains('C'), "{out}");
            Ok(())
        })
        .unwrap();
}

#[test]
fn immutable_and_append_only_are_kept() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.create("i").unwrap();
    rig.create("a").unwrap();
    rig.mkdir("d").unwrap();
    rig.create("d/f").unwrap();
    set_flags(&rig, "i", IMMUTABLE).unwrap();
    set_flags(&rig, "a", APPEND).unwrap();
    set_flags(&rig, "d", APPEND).unwrap();
    let chmod = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    for path in ["i", "a"] {
        assert_eq!(rig.setattr(path, &chmod), Err(Error::NotPermitted), "{path}");
        assert_eq!(rig.unlink(path), Err(Error::NotPermitted), "{path}");
        assert_eq!(rig.link(path, "l").unwrap_err(), Error::NotPermitted, "{path}");
        assert_eq!(rig.set_xattr(path, "user.x", b""), Err(Error::NotPermitted), "{path}");
        assert_eq!(
            rig.rename(path, "z", cowshed_vfs::RenameFlags::empty()),
            Err(Error::NotPermitted)
        );
        let open = rig.fs.open(&ROOT, rig.node(path).unwrap(), &crate::rig::CREATE);
        assert_eq!(open.unwrap_err(), Error::NotPermitted, "{path}");
    }
    rig.create("d/new").unwrap();
    assert_eq!(
        rig.unlink("d/f"),
        Err(Error::NotPermitted),
        "names do not leave an append-only directory"
    );
    set_flags(&rig, "d", IMMUTABLE).unwrap();
    assert_eq!(rig.create("d/newer").unwrap_err(), Error::NotPermitted);
    for path in ["i", "a", "d"] {
        set_flags(&rig, path, 0).unwrap();
    }
    rig.unlink("i").unwrap();
    rig.finish();
}

/// As the kernel has it: a property's value is looked at before what is there already, and what
/// takes no properties takes all.
#[test]
fn properties_are_judged_before_flags() {
    use cowshed_vfs::SetXattrFlags as How;
    if !crate::rig::can_run() {
        return;
    }
    let rig = Rig::new();
    let file = rig.create("f").unwrap().node;
    let link = rig.symlink("l", b"f").unwrap().node;
    let set = |node, value: &[u8], how| rig.fs.setxattr(&ROOT, node, b"btrfs.compression", value, how);
    for how in [How::empty(), How::CREATE, How::REPLACE] {
        for value in [&b"zst"[..], b"noo", b"x"] {
            assert_eq!(set(file, value, how), Err(Error::Invalid));
        }
        for value in [&b""[..], b"zlib", b"none"] {
            assert_eq!(set(link, value, how), Ok(()));
        }
    }
    assert_eq!(set(file, b"zlib", How::REPLACE), Err(Error::NoData));
    assert_eq!(set(file, b"zlib", How::CREATE), Ok(()));
    assert_eq!(set(file, b"lzo", How::CREATE), Err(Error::Exists));
    assert_eq!(set(file, b"lzx", How::CREATE), Err(Error::Invalid));
    rig.finish();
}

//! Permissions checked by the file system itself, for callers of the library.

use cowshed_harness::{KernelVolume, VolumeOptions};
use cowshed_vfs::{
    Access, Context, Credentials, Error, FileSystem, InitInfo, NodeId, PermissionChecks, RenameFlags, SetAttr,
};

use crate::rig::{CREATE, ROOT, Rig, can_run};

fn checking() -> Rig {
    let volume = KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs");
    let init = InitInfo {
        checks: PermissionChecks::FileSystem,
        ..InitInfo::TRUSTED
    };
    Rig::mounted(volume, Default::default(), init)
}

fn user(uid: u32) -> Context {
    Context::new(Credentials::new(uid, uid), 0, 0o022)
}

#[test]
fn mode_bits_rule() {
    if !can_run() {
        return;
    }
    let rig = checking();
    let (alice, bob) = (user(1000), user(1001));
    let fs = &rig.fs;
    assert_eq!(fs.mkdir(&alice, NodeId::ROOT, b"x", 0o755), Err(Error::AccessDenied));
    let home = rig.mkdir("home").unwrap().node;
    let chown = SetAttr {
        uid: Some(1000),
        gid: Some(1000),
        ..SetAttr::default()
    };
    rig.setattr("home", &chown).unwrap();
    let (file, _) = fs.create(&alice, home, b"f", 0o666, &CREATE).unwrap();
    assert_eq!((file.attr.uid, file.attr.gid, file.attr.perm), (1000, 1000, 0o644));
    assert_eq!(fs.open(&bob, file.node, &CREATE).unwrap_err(), Error::AccessDenied);
    assert_eq!(fs.unlink(&bob, home, b"f"), Err(Error::AccessDenied));
    assert_eq!(fs.access(&bob, file.node, Access::READ), Ok(()));
    assert_eq!(fs.access(&bob, file.node, Access::EXEC), Err(Error::AccessDenied));
    let chmod = |perm| SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    assert_eq!(
        fs.setattr(&bob, file.node, None, &chmod(0o777)),
        Err(Error::NotPermitted)
    );
    fs.setattr(&alice, file.node, None, &chmod(0o600)).unwrap();
    assert_eq!(fs.access(&bob, file.node, Access::READ), Err(Error::AccessDenied));
    // A list lets bob in again.
    let list = cowshed_vfs::acl::Acl {
        users: vec![cowshed_vfs::acl::Named {
            id: 1001,
            perm: Access::READ,
        }],
        mask: Some(Access::READ),
        ..cowshed_vfs::acl::Acl::from_mode(0o600)
    };
    rig.set_xattr("home/f", "system.posix_acl_access", &list.to_bytes())
        .unwrap();
    assert_eq!(fs.access(&bob, file.node, Access::READ), Ok(()));
    fs.setattr(&alice, home, None, &chmod(0o700)).unwrap();
    assert_eq!(fs.lookup(&bob, home, b"f").unwrap_err(), Error::AccessDenied);
    assert_eq!(fs.opendir(&bob, home).unwrap_err(), Error::AccessDenied);
    fs.unlink(&alice, home, b"f").unwrap();
    rig.finish();
}

#[test]
fn sticky_directories_protect_names() {
    if !can_run() {
        return;
    }
    let rig = checking();
    let (alice, bob) = (user(1000), user(1001));
    let tmp = rig.mkdir("tmp").unwrap().node;
    let chmod = SetAttr {
        perm: Some(0o1777),
        ..SetAttr::default()
    };
    rig.setattr("tmp", &chmod).unwrap();
    rig.fs.create(&alice, tmp, b"a", 0o666, &CREATE).unwrap();
    rig.fs.create(&bob, tmp, b"b", 0o666, &CREATE).unwrap();
    assert_eq!(rig.fs.unlink(&bob, tmp, b"a"), Err(Error::NotPermitted));
    let plain = RenameFlags::empty();
    assert_eq!(
        rig.fs.rename(&bob, tmp, b"b", tmp, b"a", plain),
        Err(Error::NotPermitted)
    );
    assert_eq!(
        rig.fs.rename(&bob, tmp, b"a", tmp, b"c", plain),
        Err(Error::NotPermitted)
    );
    rig.fs.rename(&bob, tmp, b"b", tmp, b"c", plain).unwrap();
    rig.fs.unlink(&ROOT, tmp, b"a").unwrap();
    rig.finish();
}

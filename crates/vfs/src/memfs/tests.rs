use std::ops::ControlFlow;

use super::MemFs;
use crate::*;

static ROOT: Context = Context::root();

fn open(raw: i32) -> OpenRequest {
    OpenRequest {
        flags: OpenFlags::from_raw(raw),
        kill_suidgid: false,
    }
}

fn make(fs: &MemFs, name: &str) -> NodeId {
    let (entry, opened) = fs
        .create(&ROOT, NodeId::ROOT, name.as_bytes(), 0o644, &open(libc::O_RDWR))
        .unwrap();
    fs.release(entry.node, opened.handle);
    entry.node
}

fn list(fs: &MemFs, from: u64, max: usize) -> Vec<(String, u64)> {
    let mut out = Vec::new();
    fs.readdir(&ROOT, NodeId::ROOT, Handle::NONE, from, &mut |e| {
        if out.len() == max {
            return ControlFlow::Break(());
        }
        out.push((String::from_utf8(e.name.to_vec()).unwrap(), e.cookie));
        ControlFlow::Continue(())
    })
    .unwrap();
    out
}

#[test]
fn nodes_live_until_forgotten() {
    let fs = MemFs::default();
    let node = make(&fs, "a");
    fs.unlink(&ROOT, NodeId::ROOT, b"a").unwrap();
    assert_eq!(fs.getattr(&ROOT, node, None).unwrap().nlink, 0);
    fs.forget(node, 1);
    assert_eq!(fs.getattr(&ROOT, node, None), Err(Error::Stale));
    assert_eq!(fs.node_count(), 1);
}

#[test]
fn listings_resume_while_names_go() {
    let fs = MemFs::default();
    for i in 0..6 {
        make(&fs, &format!("f{i}"));
    }
    let first = list(&fs, 0, 5);
    assert_eq!(
        first.iter().map(|e| e.0.as_str()).collect::<Vec<_>>(),
        [".", "..", "f0", "f1", "f2"]
    );
    fs.unlink(&ROOT, NodeId::ROOT, b"f2").unwrap();
    fs.unlink(&ROOT, NodeId::ROOT, b"f3").unwrap();
    let rest = list(&fs, first[4].1, 9);
    assert_eq!(rest.iter().map(|e| e.0.as_str()).collect::<Vec<_>>(), ["f4", "f5"]);
}

#[test]
fn holes_read_as_zeros_and_are_found() {
    let fs = MemFs::default();
    let n = make(&fs, "sparse");
    fs.write(&ROOT, n, Handle::NONE, 10_000, b"data", WriteFlags::empty())
        .unwrap();
    let mut buf = [1; 8];
    assert_eq!(fs.read(&ROOT, n, Handle::NONE, 9_996, &mut buf), Ok(8));
    assert_eq!(&buf, b"\0\0\0\0data");
    assert_eq!(fs.read(&ROOT, n, Handle::NONE, 10_004, &mut buf), Ok(0));
    assert_eq!(fs.lseek(&ROOT, n, Handle::NONE, 0, SeekKind::Data), Ok(8192));
    assert_eq!(fs.lseek(&ROOT, n, Handle::NONE, 8_200, SeekKind::Hole), Ok(10_004));
    assert_eq!(
        fs.lseek(&ROOT, n, Handle::NONE, 10_004, SeekKind::Hole),
        Err(Error::NoSuchDevice)
    );
    let cut = SetAttr {
        size_bytes: Some(10_002),
        ..Default::default()
    };
    fs.setattr(&ROOT, n, None, &cut).unwrap();
    let grow = SetAttr {
        size_bytes: Some(10_004),
        ..Default::default()
    };
    fs.setattr(&ROOT, n, None, &grow).unwrap();
    assert_eq!(fs.read(&ROOT, n, Handle::NONE, 9_996, &mut buf), Ok(8));
    assert_eq!(&buf, b"\0\0\0\0da\0\0", "what was cut off does not come back");
}

#[test]
fn permissions_are_checked_when_asked_for() {
    let fs = MemFs::default();
    let info = InitInfo {
        checks: PermissionChecks::FileSystem,
        ..InitInfo::TRUSTED
    };
    fs.init(&info).unwrap();
    let user = Context::new(Credentials::new(10, 10), 0, 0o022);
    let denied = fs.create(&user, NodeId::ROOT, b"x", 0o644, &open(libc::O_RDWR));
    assert_eq!(denied.unwrap_err(), Error::AccessDenied);
    fs.own_root(0, 0, 0o1777);
    make(&fs, "root's");
    assert_eq!(fs.unlink(&user, NodeId::ROOT, b"root's"), Err(Error::NotPermitted));
    let (mine, _) = fs
        .create(&user, NodeId::ROOT, b"x", 0o666, &open(libc::O_RDWR))
        .unwrap();
    assert_eq!((mine.attr.perm, mine.attr.uid), (0o644, 10));
}

#[test]
fn directories_do_not_move_into_themselves() {
    let fs = MemFs::default();
    let a = fs.mkdir(&ROOT, NodeId::ROOT, b"a", 0o755).unwrap().node;
    let b = fs.mkdir(&ROOT, a, b"b", 0o755).unwrap().node;
    let into = |flags| fs.rename(&ROOT, NodeId::ROOT, b"a", b, b"c", flags);
    assert_eq!(into(RenameFlags::empty()), Err(Error::Invalid));
    let swap = fs.rename(&ROOT, a, b"b", NodeId::ROOT, b"a", RenameFlags::EXCHANGE);
    assert_eq!(swap, Err(Error::Invalid));
}

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cowshed_vfs::PermissionChecks;
use cowshed_vfs::acl::{self, Acl};
use cowshed_vfs::memfs::MemFs;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::proto::flags::{SetattrValid, WireWriteFlags};
use crate::proto::wire::*;

const WISHES: Wishes = Wishes {
    checks: PermissionChecks::FrontEnd,
    read_only: false,
    io_bytes_max: 64 << 10,
    writeback_cache: false,
    skip_open: false,
    skip_xattrs: false,
    io_uring: false,
    background_max: 128,
};

fn bytes(opcode: Opcode, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader {
        len,
        opcode: opcode as u32,
        unique: 7,
        nodeid: node,
        ..Default::default()
    };
    [header.as_bytes(), &body].concat()
}

fn call(server: &Server, opcode: Opcode, node: u64, parts: &[&[u8]]) -> (After, i32, Vec<u8>) {
    let mut data = vec![0; 64 << 10];
    let (after, reply) = server.handle(0, &bytes(opcode, node, parts), &mut data, None);
    let (head, bulk) = reply.body();
    (after, reply.errno(), [head, bulk].concat())
}

fn started(fs: Arc<MemFs>, on_panic: Option<OnPanic>) -> Server {
    started_by(InitFlags::all(), 45, fs, on_panic)
}

/// By a kernel that has these features and this minor version of the protocol.
fn started_by(features: InitFlags, minor: u32, fs: Arc<MemFs>, on_panic: Option<OnPanic>) -> Server {
    let server = Server::new(fs, WISHES, 2, on_panic);
    let init = InitIn {
        major: 7,
        minor,
        flags: features.bits() as u32,
        flags2: (features.bits() >> 32) as u32,
        ..Default::default()
    };
    let (after, errno, out) = call(&server, Opcode::Init, 0, &[init.as_bytes()]);
    assert_eq!((after, errno, out.len()), (After::Send, 0, 64));
    server
}

#[test]
fn a_file_lives_through_the_protocol() {
    let server = started(Arc::default(), None);
    let create = CreateIn {
        flags: libc::O_RDWR as u32,
        mode: 0o100644,
        umask: 0o022,
        open_flags: 0,
    };
    let (_, errno, out) = call(&server, Opcode::Create, 1, &[create.as_bytes(), b"f\0"]);
    assert_eq!((errno, out.len()), (0, 144));
    let (entry, rest) = EntryOut::read_from_prefix(&out).unwrap();
    let open = OpenOut::read_from_bytes(rest).unwrap();
    let write = WriteIn {
        fh: open.fh,
        size: 5,
        offset: 2,
        ..Default::default()
    };
    let (_, errno, out) = call(&server, Opcode::Write, entry.nodeid, &[write.as_bytes(), b"hello"]);
    assert_eq!((errno, WriteOut::read_from_bytes(&out).unwrap().size), (0, 5));
    let read = ReadIn {
        fh: open.fh,
        size: 100,
        ..Default::default()
    };
    assert_eq!(
        call(&server, Opcode::Read, entry.nodeid, &[read.as_bytes()]).2,
        b"\0\0hello"
    );
    let list = call(&server, Opcode::Readdirplus, 1, &[read.as_bytes()]).2;
    assert_eq!(list.len(), 0, "100 bytes hold no entry");
    let list = call(&server, Opcode::Readdir, 1, &[read.as_bytes()]).2;
    assert_eq!(list.len(), 96, "., .. and f");
    let (after, ..) = call(&server, Opcode::Forget, entry.nodeid, &[1u64.as_bytes()]);
    assert_eq!(after, After::Nothing);
}

/// As [`call`], by another user than the superuser.
fn call_as(uid: u32, server: &Server, opcode: Opcode, node: u64, parts: &[&[u8]]) -> (i32, Vec<u8>) {
    let mut request = bytes(opcode, node, parts);
    let (header, _) = InHeader::mut_from_prefix(&mut request).unwrap();
    (header.uid, header.gid) = (uid, uid);
    let mut data = vec![0; 64 << 10];
    let (_, reply) = server.handle(0, &request, &mut data, None);
    let (head, bulk) = reply.body();
    (reply.errno(), [head, bulk].concat())
}

/// Before 5.11 Linux does not say whether a caller may keep set-id bits when it writes and
/// truncates, before 5.13 not when it sets access lists.
#[test]
fn set_id_bits_go_although_an_old_kernel_does_not_ask_for_it() {
    const USER: u32 = 1000;
    let old = InitFlags::HANDLE_KILLPRIV | InitFlags::POSIX_ACL | InitFlags::DONT_MASK;
    let server = started_by(old, 32, Arc::default(), None);
    let create = CreateIn {
        flags: libc::O_RDWR as u32,
        mode: 0o100644,
        ..Default::default()
    };
    let (_, errno, out) = call(&server, Opcode::Create, 1, &[create.as_bytes(), b"f\0"]);
    assert_eq!(errno, 0);
    let (entry, rest) = EntryOut::read_from_prefix(&out).unwrap();
    let (fh, node) = (OpenOut::read_from_bytes(rest).unwrap().fh, entry.nodeid);
    let set = |uid, valid: SetattrValid, mode, size| {
        let args = SetattrIn {
            valid: valid.bits(),
            mode,
            size,
            uid: USER,
            ..Default::default()
        };
        let (errno, _) = call_as(uid, &server, Opcode::Setattr, node, &[args.as_bytes()]);
        assert_eq!(errno, 0);
    };
    let write = |uid, write_flags| {
        let args = WriteIn {
            fh,
            size: 1,
            write_flags,
            ..Default::default()
        };
        assert_eq!(
            call_as(uid, &server, Opcode::Write, node, &[args.as_bytes(), b"x"]).0,
            0
        );
    };
    let list = |uid| {
        let list = Acl::from_mode(0o664).to_bytes();
        // Without SETXATTR_EXT: no `setxattr_flags`.
        let (size, flags) = (list.len() as u32, 0u32);
        let head = [size.to_ne_bytes(), flags.to_ne_bytes()].concat();
        let parts = [&head[..], acl::ACCESS_NAME, b"\0", &list];
        assert_eq!(call_as(uid, &server, Opcode::Setxattr, node, &parts).0, 0);
    };
    let attrs = GetattrIn::default();
    let mode = || {
        let (_, errno, out) = call(&server, Opcode::Getattr, node, &[attrs.as_bytes()]);
        assert_eq!(errno, 0);
        AttrOut::read_from_bytes(&out).unwrap().attr.mode & 0o7777
    };
    set(0, SetattrValid::UID, 0, 0);
    let cases: [(&dyn Fn(u32), u32); 4] = [
        (&|uid| write(uid, 0), 0o664),
        (&|uid| set(uid, SetattrValid::SIZE, 0, 0), 0o664),
        (&|uid| list(uid), 0o4664),
        // Pages of a mapping, of an unknown caller.
        (&|uid| write(uid, WireWriteFlags::CACHE.bits()), 0o6664),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        for (uid, expected) in [(0, 0o6664), (USER, expected)] {
            set(0, SetattrValid::MODE, 0o6664, 0);
            change(uid);
            assert_eq!(
                format!("{:o}", mode()),
                format!("{expected:o}"),
                "case {number} by {uid}"
            );
        }
    }
}

/// The names of a directory of 300 files in replies of 4 KiB, each with the node that it came with.
fn listed(server: &Server, dir: u64) -> Vec<(Vec<u8>, u64)> {
    let mut read = ReadIn {
        size: 4096,
        ..Default::default()
    };
    let mut all = Vec::new();
    loop {
        let (_, errno, list) = call(server, Opcode::Readdirplus, dir, &[read.as_bytes()]);
        assert_eq!(errno, 0);
        let mut rest = &list[..];
        while !rest.is_empty() {
            let (entry, after) = EntryOut::read_from_prefix(rest).unwrap();
            let (head, names) = Dirent::read_from_prefix(after).unwrap();
            all.push((names[..head.namelen as usize].to_vec(), entry.nodeid));
            read.offset = head.off;
            let record = size_of::<EntryOut>() + size_of::<Dirent>() + head.namelen as usize;
            rest = &rest[record.next_multiple_of(8)..];
        }
        if list.is_empty() {
            return all;
        }
    }
}

#[test]
fn each_name_is_listed_once_and_counts_as_a_lookup_where_it_comes_with_its_node() {
    const FILES: usize = 300;
    let fs: Arc<MemFs> = Arc::default();
    let server = started(fs.clone(), None);
    let mkdir = MkdirIn { mode: 0o755, umask: 0 };
    let make_dir = |name: &[u8]| {
        let (_, errno, out) = call(&server, Opcode::Mkdir, 1, &[mkdir.as_bytes(), name]);
        assert_eq!(errno, 0);
        EntryOut::read_from_prefix(&out).unwrap().0.nodeid
    };
    let names: Vec<Vec<u8>> = (0..FILES).map(|n| format!("f{n:03}").into_bytes()).collect();
    let forget = |node: u64| drop(call(&server, Opcode::Forget, node, &[1u64.as_bytes()]));
    let mut with_nodes = Vec::new();
    for dir in [&b"a\0"[..], b"b\0"] {
        let dir = make_dir(dir);
        for name in &names {
            let mknod = MknodIn {
                mode: 0o100644,
                ..Default::default()
            };
            let (_, errno, out) = call(&server, Opcode::Mknod, dir, &[mknod.as_bytes(), name, b"\0"]);
            assert_eq!(errno, 0);
            forget(EntryOut::read_from_prefix(&out).unwrap().0.nodeid);
        }
        let mut listed = listed(&server, dir);
        listed.retain(|(name, _)| name.starts_with(b"f"));
        listed.sort();
        assert_eq!(
            listed.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            names.iter().collect::<Vec<_>>()
        );
        let nodes: Vec<_> = listed.iter().map(|(_, node)| *node).filter(|node| *node != 0).collect();
        for name in &names {
            let (_, errno, _) = call(&server, Opcode::Unlink, dir, &[name, b"\0"]);
            assert_eq!(errno, 0);
        }
        assert_eq!(fs.node_count(), 2 + with_nodes.len() + nodes.len());
        nodes.iter().for_each(|node| forget(*node));
        assert_eq!(fs.node_count(), 2 + with_nodes.len(), "each was counted once");
        with_nodes.push(nodes.len());
    }
    // The sample of the first one, in its second reply, is not looked up.
    assert!(
        (20..FILES).contains(&with_nodes[0]) && with_nodes[1..] == [0],
        "{with_nodes:?}"
    );
}

#[test]
fn dot_and_dotdot_find_forgotten_nodes_by_number() {
    let fs: Arc<MemFs> = Arc::default();
    let server = started(fs.clone(), None);
    let entry = |out: &[u8]| {
        let (entry, _) = EntryOut::read_from_prefix(out).unwrap();
        (entry.nodeid, entry.generation)
    };
    let mkdir = MkdirIn { mode: 0o755, umask: 0 };
    let (_, _, out) = call(&server, Opcode::Mkdir, 1, &[mkdir.as_bytes(), b"d\0"]);
    let (dir, _) = entry(&out);
    let (_, _, out) = call(&server, Opcode::Mkdir, dir, &[mkdir.as_bytes(), b"below\0"]);
    let (below, generation) = entry(&out);
    for node in [dir, below] {
        call(&server, Opcode::Forget, node, &[1u64.as_bytes()]);
    }
    let (_, errno, out) = call(&server, Opcode::Lookup, below, &[b".\0"]);
    assert_eq!((errno, entry(&out)), (0, (below, generation)));
    let (_, errno, out) = call(&server, Opcode::Lookup, below, &[b"..\0"]);
    assert_eq!((errno, entry(&out).0), (0, dir));
    let (_, errno, out) = call(&server, Opcode::Lookup, dir, &[b"..\0"]);
    assert_eq!((errno, entry(&out)), (0, (1, 0)), "the kernel's root has generation 0");
    let remembered = call(&server, Opcode::Rmdir, dir, &[b"below\0"]).1;
    assert_eq!(remembered, 0);
    for (node, name) in [(below, &b".\0"[..]), (below, b"..\0"), (999, b".\0")] {
        assert_eq!(call(&server, Opcode::Lookup, node, &[name]).1, libc::ESTALE, "{node}");
    }
}

#[test]
fn requests_before_init_and_after_destroy_are_refused() {
    let fs = Arc::new(MemFs::default());
    let server = Server::new(fs.clone(), WISHES, 2, None);
    assert_eq!(call(&server, Opcode::Statfs, 1, &[]).1, libc::EIO);
    let old = InitIn {
        major: 7,
        minor: 30,
        ..Default::default()
    };
    assert_eq!(call(&server, Opcode::Init, 0, &[old.as_bytes()]).1, libc::EOPNOTSUPP);
    let server = started(fs.clone(), None);
    assert_eq!(call(&server, Opcode::Destroy, 0, &[]).1, 0);
    server.finish();
    assert_eq!(fs.destroyed.load(Ordering::SeqCst), 1);
    assert_eq!(call(&server, Opcode::Statfs, 1, &[]).1, libc::ENOTCONN);
}

#[test]
fn a_newer_major_version_is_talked_down() {
    let server = Server::new(Arc::new(MemFs::default()), WISHES, 1, None);
    let newer = InitIn {
        major: 8,
        minor: 2,
        ..Default::default()
    };
    let (_, errno, out) = call(&server, Opcode::Init, 0, &[newer.as_bytes()]);
    assert_eq!((errno, InitOut::read_from_bytes(&out).unwrap().major), (0, 7));
    assert!(server.agreed().is_none());
}

#[test]
fn a_panic_becomes_an_error_and_is_told() {
    let mut fs = MemFs::default();
    fs.panic_name = Some(b"boom");
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let hook: OnPanic = Arc::new(move |message| {
        assert_eq!(message, "asked to panic");
        count.fetch_add(1, Ordering::SeqCst);
    });
    let server = started(Arc::new(fs), Some(hook));
    assert_eq!(call(&server, Opcode::Lookup, 1, &[b"boom\0"]).1, libc::EIO);
    assert_eq!(told.load(Ordering::SeqCst), 1);
    assert_eq!(call(&server, Opcode::Statfs, 1, &[]).1, 0, "and life goes on");
}

/// Keeps what is sent late.
#[derive(Default)]
struct Outbox(Arc<parking_lot::Mutex<Vec<(u64, i32)>>>);

impl Post for Outbox {
    fn sender(&self) -> SendLate {
        let sent = self.0.clone();
        Box::new(move |reply| sent.lock().push((reply.header().unique, reply.errno())))
    }
    fn will_wait(&self) {}
}

#[test]
fn the_reply_to_fsync_comes_by_the_post() {
    let server = started(Arc::default(), None);
    let post = Outbox::default();
    let fsync = FsyncIn::default();
    for opcode in [Opcode::Fsync, Opcode::Fsyncdir] {
        for (node, errno) in [(1, 0), (99, libc::ESTALE)] {
            let request = bytes(opcode, node, &[fsync.as_bytes()]);
            let (after, _) = server.handle(0, &request, &mut [], Some(&post));
            assert_eq!(after, After::Nothing, "{opcode:?}");
            let sent: Vec<_> = post.0.lock().drain(..).collect();
            assert_eq!(sent, [(7, errno)], "{opcode:?} of node {node}");
        }
    }
}

#[test]
fn what_is_not_done_is_said_so() {
    let server = started(Arc::default(), None);
    let flush = FlushIn::default();
    for (opcode, body) in [
        (Opcode::Poll, &[][..]),
        (Opcode::Getlk, &[]),
        (Opcode::Flush, flush.as_bytes()),
        (Opcode::Access, 5u64.as_bytes()),
    ] {
        let (after, errno, out) = call(&server, opcode, 1, &[body]);
        assert_eq!((after, errno, out.len()), (After::Send, libc::ENOSYS, 0), "{opcode:?}");
    }
    let (after, errno, _) = call(&server, Opcode::Interrupt, 1, &[5u64.as_bytes()]);
    assert_eq!((after, errno), (After::Nothing, 0), "it has no reply");
    let ioctl = IoctlIn {
        cmd: 0x1234,
        ..Default::default()
    };
    assert_eq!(call(&server, Opcode::Ioctl, 1, &[ioctl.as_bytes()]).1, libc::ENOTTY);
    let rename = Rename2In {
        newdir: 1,
        flags: 0x80,
        padding: 0,
    };
    assert_eq!(
        call(&server, Opcode::Rename2, 1, &[rename.as_bytes(), b"a\0b\0"]).1,
        libc::EINVAL
    );
}

/// Garbage after INIT: never a panic (which would be told to the hook), always an answer or
/// silence.
#[test]
fn garbage_is_survived() {
    let hook: OnPanic = Arc::new(|message| assert_eq!(message, "never forgotten more often than looked up"));
    let server = started(Arc::default(), Some(hook));
    let mut seed = 42u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        seed >> 33
    };
    for round in 0..6_000 {
        let opcode = Opcode::ALL[next() as usize % Opcode::ALL.len()];
        if matches!(opcode, Opcode::Destroy | Opcode::Forget | Opcode::BatchForget) {
            continue;
        }
        let body: Vec<u8> = (0..next() % 120)
            .map(|_| {
                if round % 3 == 0 {
                    next() as u8
                } else {
                    (next() % 2) as u8
                }
            })
            .collect();
        call(&server, opcode, next() % 4, &[&body]);
    }
    let mut data = [0; 64];
    assert_eq!(server.handle(0, &[1, 2, 3], &mut data, None).0, After::Nothing);
}

//! Set-id bits and file capabilities go with every change of contents, whatever call makes it. What
//! is expected here was watched on the kernel's btrfs (Linux 6.18), call by call.

use cowshed_harness::{KernelVolume, VolumeOptions};
use cowshed_vfs::{
    Context, Credentials, Error, Exchange, FallocateFlags as F, FileSystem, Freshness, Handle, InitInfo, Ioctl, NodeId,
    OpenFlags, OpenRequest, PermissionChecks, Result, SetAttr, SetTime, Timestamp, Volume as _, WriteFlags,
};
use cowshed_vfs_ioctl::wire::{self, Remap, Token, op};
use zerocopy::{FromZeros, IntoBytes};

use crate::rig::{ROOT, Rig, can_run};

const OWNER: u32 = 1000;
const CAPABILITY: &str = "security.capability";
const SIZE: u64 = 64 << 10;
const START_ATOMIC_WRITE: u32 = 0xf501;
const COMMIT_ATOMIC_WRITE: u32 = 0xf502;
const ABORT_ATOMIC_WRITE: u32 = 0xf505;

/// The file that changes, and another.
struct Files<'r> {
    rig: &'r Rig,
    ctx: &'r Context,
    node: NodeId,
    handle: Handle,
    other: (NodeId, Handle),
}

impl Files<'_> {
    fn ioctl(&self, (node, handle): (NodeId, Handle), cmd: u32, input: &[u8], output: &mut [u8]) -> Result<()> {
        let call = Ioctl {
            cmd,
            arg: 0,
            compat: false,
        };
        let fs = &self.rig.fs;
        fs.ioctl(self.ctx, node, handle, &call, input, output).map(drop)
    }
    fn write(&self, data: &[u8]) -> Result<()> {
        // As Linux sets the flag, which knows which callers may keep the bits.
        let flags = if self.ctx.creds.is_privileged() {
            WriteFlags::empty()
        } else {
            WriteFlags::KILL_SUIDGID
        };
        let fs = &self.rig.fs;
        fs.write(self.ctx, self.node, self.handle, 0, data, flags).map(drop)
    }
    fn allocate(&self, mode: F, offset: u64, len: u64) -> Result<()> {
        let fs = &self.rig.fs;
        fs.fallocate(self.ctx, self.node, self.handle, offset, len, mode)
    }
    fn copy(&self, from: u64, len: u64) -> Result<()> {
        let src = (self.other.0, self.other.1, from);
        let dst = (self.node, self.handle, 0);
        self.rig.fs.copy_file_range(self.ctx, src, dst, len).map(drop)
    }
    fn remap(&self, op: u32, src_offset: u64, len_bytes: u64) -> Result<()> {
        let mut token = Token([0; 16]);
        self.ioctl(self.other, wire::LEND, &[], token.as_mut_bytes())?;
        let mut call: Remap = FromZeros::new_zeroed();
        call.token = token;
        call.op = op.into();
        call.src_offset = src_offset.into();
        call.len_bytes = len_bytes.into();
        let mut out = call;
        self.ioctl(
            (self.node, self.handle),
            wire::REMAP,
            call.as_bytes(),
            out.as_mut_bytes(),
        )
    }
    fn atomic(&self, end: u32) -> Result<()> {
        let this = (self.node, self.handle);
        self.ioctl(this, START_ATOMIC_WRITE, &[], &mut [])?;
        self.write(&[9; 4096])?;
        self.ioctl(this, end, &[], &mut [])
    }
}

type Call = fn(&Files<'_>) -> Result<()>;

/// Calls, and whether they change contents.
const CALLS: &[(&str, bool, Call)] = &[
    ("fallocate", true, |f| f.allocate(F::empty(), 0, 4096)),
    ("fallocate that grows", true, |f| f.allocate(F::empty(), SIZE, 4096)),
    ("fallocate behind the end", true, |f| {
        f.allocate(F::KEEP_SIZE, SIZE, 4096)
    }),
    ("punch", true, |f| f.allocate(F::PUNCH_HOLE | F::KEEP_SIZE, 4096, 4096)),
    ("punch of a hole", false, |f| {
        f.allocate(F::PUNCH_HOLE | F::KEEP_SIZE, 1 << 20, 4096)
    }),
    ("zero", true, |f| f.allocate(F::ZERO_RANGE, 4096, 4096)),
    ("zero a few bytes", true, |f| f.allocate(F::ZERO_RANGE, 100, 20)),
    ("copy of blocks", true, |f| f.copy(0, 8192)),
    ("copy of bytes", true, |f| f.copy(100, 50)),
    ("copy of nothing", false, |f| f.copy(1 << 20, 50)),
    ("clone", true, |f| f.remap(op::CLONE, 0, 4096)),
    ("clone of nothing", false, |f| f.remap(op::CLONE, SIZE, 0)),
    ("clone that is refused", false, |f| {
        assert!(f.remap(op::CLONE, 1, 4096).is_err());
        Ok(())
    }),
    ("dedupe", false, |f| f.remap(op::DEDUPE, 0, 4096)),
    ("exchange", true, |f| f.remap(op::EXCHANGE, 0, SIZE)),
    ("exchange that is refused", false, |f| {
        assert_eq!(f.remap(op::EXCHANGE, 1, 4096), Err(Error::Invalid));
        Ok(())
    }),
    ("fallocate that is refused", false, |f| {
        assert_eq!(f.allocate(F::empty(), 0, 1 << 63), Err(Error::FileTooBig));
        Ok(())
    }),
    ("atomic group", true, |f| f.atomic(COMMIT_ATOMIC_WRITE)),
    ("atomic group that is dropped", false, |f| f.atomic(ABORT_ATOMIC_WRITE)),
];

fn fresh(rig: &Rig, name: &str, perm: u32) -> NodeId {
    let _ = rig.unlink(name);
    let node = rig.create(name).unwrap().node;
    let data = [7; SIZE as usize];
    let flags = WriteFlags::empty();
    rig.fs.write(&ROOT, node, Handle::NONE, 0, &data, flags).unwrap();
    let set = SetAttr {
        uid: Some(OWNER),
        gid: Some(OWNER),
        ..SetAttr::default()
    };
    rig.setattr(name, &set).unwrap();
    rig.set_xattr(name, CAPABILITY, b"caps").unwrap();
    let set = SetAttr {
        perm: Some(perm),
        mtime: Some(SetTime::At(Timestamp::new(1000, 0))),
        ..SetAttr::default()
    };
    rig.setattr(name, &set).unwrap();
    node
}

#[test]
fn every_change_of_contents_takes_them_away() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let user = |uid| Context::new(Credentials::new(uid, uid), 0, 0);
    // (caller, before, after): set-group-id without the right to execute stays with members of the
    // group.
    let cases = [
        (Context::root(), 0o6777, 0o6777),
        (user(OWNER), 0o6777, 0o777),
        (user(OWNER), 0o2767, 0o2767),
        (user(2000), 0o6777, 0o777),
        (user(2000), 0o2767, 0o767),
    ];
    for (name, changes, call) in CALLS {
        for (ctx, before, after) in &cases {
            let node = fresh(&rig, "f", *before);
            let other = fresh(&rig, "other", 0o777);
            let open = OpenRequest {
                flags: OpenFlags::READ | OpenFlags::WRITE,
                kill_suidgid: false,
            };
            let open = |node| (node, rig.fs.open(ctx, node, &open).unwrap().handle);
            let files = Files {
                rig: &rig,
                ctx,
                node,
                handle: open(node).1,
                other: open(other),
            };
            let told = format!("{name} by {} on {before:o}", ctx.creds.uid);
            call(&files).unwrap_or_else(|e| panic!("{told}: {e}"));
            let attr = rig.attr("f").unwrap();
            let expected = if *changes { after } else { before };
            assert_eq!(attr.perm, *expected, "{told}");
            assert_eq!(rig.xattr("f", CAPABILITY).is_err(), *changes, "{told}: capability");
            assert_eq!(attr.mtime.secs != 1000, *changes, "{told}: mtime");
            rig.fs.release(node, files.handle);
            rig.fs.release(other, files.other.1);
        }
    }
    rig.finish();
}

/// Linux removes capabilities with a call that carries the writer's credentials: the right to write
/// is enough for it.
#[test]
fn callers_that_may_write_may_remove_capabilities() {
    if !can_run() {
        return;
    }
    for checks in [PermissionChecks::FrontEnd, PermissionChecks::FileSystem] {
        let init = InitInfo {
            checks,
            ..InitInfo::TRUSTED
        };
        let volume = KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs");
        let rig = Rig::mounted(volume, Default::default(), init);
        let stranger = Context::new(Credentials::new(2000, 2000), 0, 0);
        let remove = |node| rig.fs.removexattr(&stranger, node, CAPABILITY.as_bytes());
        remove(fresh(&rig, "all", 0o777)).unwrap();
        assert!(rig.xattr("all", CAPABILITY).is_err());
        if checks == PermissionChecks::FileSystem {
            let own = fresh(&rig, "own", 0o755);
            assert!(remove(own).is_err());
            rig.xattr("own", CAPABILITY).unwrap();
        }
        rig.finish();
    }
}

/// The front end decides which callers may keep set-id bits: a superuser without that capability
/// may not.
#[test]
fn set_id_bits_go_where_the_front_end_demands_it() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    for (flags, perm) in [(WriteFlags::empty(), 0o6755), (WriteFlags::KILL_SUIDGID, 0o755)] {
        let node = fresh(&rig, "f", 0o6755);
        rig.fs.write(&ROOT, node, Handle::NONE, 0, b"new", flags).unwrap();
        assert_eq!(rig.attr("f").unwrap().perm, perm, "{flags:?}");
    }
    rig.finish();
}

/// Judging comes first, and taking the capability away does not make the file another one than was
/// asked for.
#[test]
fn an_exchange_with_a_file_as_it_was_takes_both_capabilities_and_a_refused_one_none() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let (a, b) = (fresh(&rig, "f", 0o777), fresh(&rig, "other", 0o777));
    let exchange = |fresh_b| Exchange {
        a_offset: 0,
        b_offset: 0,
        len_bytes: SIZE,
        to_eof: false,
        only_written: false,
        fresh_b: Some(fresh_b),
        dry_run: false,
    };
    let is = rig.fs.freshness(b).unwrap();
    let was = Freshness {
        mtime: Timestamp::new(999, 0),
        ..is
    };
    assert_eq!(rig.fs.exchange_range(None, a, b, &exchange(was)), Err(Error::Busy));
    let has = |name| rig.xattr(name, CAPABILITY).is_ok();
    assert_eq!((has("f"), has("other")), (true, true));
    rig.fs.exchange_range(None, a, b, &exchange(is)).unwrap();
    assert_eq!((has("f"), has("other")), (false, false));
    rig.finish();
}

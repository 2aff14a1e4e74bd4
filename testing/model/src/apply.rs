//! What each operation does and answers. Where several errors are due, the order is that of
//! [`cowshed_vfs::FileSystem`]'s btrfs.

use cowshed_vfs::{Error, FallocateFlags, FileKind, RenameFlags, Result, SetXattrFlags, Timestamp};

use crate::content::pattern;
use crate::op::chattr;
use crate::{
    Answer, At, Body, Content, Id, Model, MountRules, Name, Node, Op, Outcome, PROPERTY, PROPERTY_VALUES, Place,
    SeekFrom, Touch, xattr_name,
};

const SET_GID: u32 = 0o2000;

impl Model {
    /// Applies an operation. One that fails changes nothing.
    pub fn apply(&mut self, op: &Op, now: Timestamp) -> Outcome {
        match op {
            Op::Create {
                place,
                perm,
                exclusive,
                truncate,
            } => self.create(place, *perm, *exclusive, *truncate, now),
            Op::Mknod {
                place,
                kind,
                perm,
                rdev,
            } => {
                let body = match kind {
                    FileKind::Regular => Body::File(Content::default()),
                    _ => Body::Special,
                };
                let id = self.make(place, *kind, *perm, body, now)?;
                self.node_mut(id).rdev = *rdev;
                Ok(Answer::Done)
            }
            Op::Mkdir { place, perm } => {
                let parent = self.resolve(&place.dir)?;
                let names = Default::default();
                self.make(place, FileKind::Directory, *perm, Body::Dir { names, parent }, now)?;
                Ok(Answer::Done)
            }
            Op::Symlink {
                place,
                target_bytes,
                fill,
            } => self.symlink(place, *target_bytes, *fill, now),
            Op::Link { at, place } => self.link(at, place, now),
            Op::Unlink { place } => self.remove(place, false, now),
            Op::Rmdir { place } => self.remove(place, true, now),
            Op::Rename { from, to, flags } => self.rename(from, to, *flags, now),
            Op::Tmpfile {
                slot,
                dir,
                perm,
                exclusive,
            } => self.tmpfile(*slot, dir, *perm, *exclusive, now),
            Op::Open { slot, at } => {
                let id = self.resolve(at)?;
                self.hold(*slot, Some(id));
                Ok(Answer::Done)
            }
            Op::Close { slot } => {
                self.slot(*slot).ok_or(Error::BadHandle)?;
                self.hold(*slot, None);
                Ok(Answer::Done)
            }
            Op::Write {
                at,
                offset,
                len,
                fill,
                append,
            } => self.write(at, *offset, (*len, *fill), *append, now),
            Op::Truncate { at, size } => self.truncate(at, *size, now),
            Op::Fallocate { at, mode, offset, len } => self.fallocate(at, *mode, *offset, *len, now),
            Op::Read { at, offset, len } => {
                let id = self.resolve(at)?;
                Ok(Answer::Bytes(
                    self.node_mut(id).content()?.read(*offset, u64::from(*len)),
                ))
            }
            Op::Seek { at, offset, what } => self.seek(at, *offset, *what),
            Op::Copy {
                src,
                src_offset,
                dst,
                dst_offset,
                len,
            } => self.copy((src, *src_offset), (dst, *dst_offset), *len, now),
            Op::Defrag { at, .. } => {
                let id = self.resolve(at)?;
                self.file_content(id).map(|_| Answer::Done)
            }
            Op::Map { at } => {
                let id = self.resolve(at)?;
                let content = self.file_content(id)?;
                let end = content.size_bytes;
                let held = content
                    .block_offsets()
                    .filter(|block| *block < end && !content.is_zero(*block, end.min(block + crate::BLOCK_BYTES)));
                Ok(Answer::Blocks(held.map(|block| block / crate::BLOCK_BYTES).collect()))
            }
            Op::Clone { .. } | Op::Dedupe { .. } | Op::Exchange { .. } => self.remap(op, now),
            Op::Stage {
                group,
                at,
                offset,
                len,
                fill,
            } => self.stage((*group, at), *offset, (*len, *fill)),
            Op::EndGroup { group, commit } => self.end_group(*group, *commit, now),
            Op::ReadStaged { group, offset, len } => self.read_staged(*group, *offset, *len),
            Op::Property { at, value } => self.set_property(at, *value, now),
            Op::SetXattr {
                at,
                name,
                len,
                fill,
                flags,
            } => self.set_xattr(at, *name, (*len, *fill), *flags, now),
            Op::RemoveXattr { at, name } => self.remove_xattr(at, *name, now),
            Op::Chmod { .. } | Op::Chown { .. } | Op::Utimes { .. } | Op::Flags { .. } => self.change(op, now),
            Op::List { at } => {
                let id = self.resolve(at)?;
                let mut names: Vec<_> = self.names(id)?.keys().map(|n| n.bytes()).collect();
                names.sort();
                Ok(Answer::Names(names))
            }
            Op::Fsync { at } => self.resolve(at).map(|_| Answer::Done),
            Op::Sync | Op::Commit | Op::Cool => Ok(Answer::Done),
            Op::Remount => {
                self.close_all();
                Ok(Answer::Done)
            }
        }
    }

    fn hold(&mut self, slot: u8, id: Option<Id>) {
        let old = std::mem::replace(&mut self.slots[usize::from(slot)], id);
        if let Some(old) = old.filter(|old| Some(*old) != id) {
            self.reap(old);
        }
    }

    /// The directory in which a name is to be made. Errors: `NotDirectory`, `NotFound` (it is
    /// unlinked).
    fn dir_for_new(&self, dir: Id) -> Result<()> {
        self.names(dir)?;
        if self.node(dir).nlink == 0 {
            return Err(Error::NotFound);
        }
        Ok(())
    }

    fn new_node(&mut self, dir: Id, kind: FileKind, perm: u32, body: Body, now: Timestamp) -> Id {
        let parent = self.node(dir);
        let group_passes = parent.perm & SET_GID != 0;
        let mut perm = if kind == FileKind::Symlink { 0o777 } else { perm };
        if kind == FileKind::Directory && group_passes {
            perm |= SET_GID;
        }
        let (flags, property) = self.inherited(parent, kind);
        let node = Node {
            kind,
            perm,
            uid: 0,
            gid: if group_passes { parent.gid } else { 0 },
            rdev: 0,
            flags,
            nlink: 0,
            subvolume: parent.subvolume,
            linkable: false,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: property.map(|value| (PROPERTY, value)).into_iter().collect(),
            body,
        };
        let id = Id(self.next_id);
        self.next_id += 1;
        self.nodes.insert(id, node);
        id
    }

    fn make(&mut self, place: &Place, kind: FileKind, perm: u32, body: Body, now: Timestamp) -> Result<Id> {
        let dir = self.resolve(&place.dir)?;
        if place.name == Name::TOO_LONG {
            return Err(Error::NameTooLong);
        }
        self.dir_for_new(dir)?;
        if self.child(dir, place.name)?.is_some() {
            return Err(Error::Exists);
        }
        let id = self.new_node(dir, kind, perm, body, now);
        self.node_mut(id).nlink = 1;
        self.names_mut(dir).insert(place.name, id);
        self.node_mut(dir).changed(now);
        Ok(id)
    }

    fn create(&mut self, place: &Place, perm: u32, exclusive: bool, truncate: bool, now: Timestamp) -> Outcome {
        let body = Body::File(Content::default());
        match self.make(place, FileKind::Regular, perm, body, now) {
            Ok(_) => return Ok(Answer::Done),
            Err(Error::Exists) if !exclusive => {}
            Err(other) => return Err(other),
        }
        let dir = self.resolve(&place.dir)?;
        let id = self.child(dir, place.name)?.expect("it exists");
        let node = self.node_mut(id);
        if node.is_dir() {
            return Err(Error::IsDirectory);
        }
        if truncate && let Body::File(content) = &mut node.body {
            content.truncate(0);
            node.changed(now);
        }
        Ok(Answer::Done)
    }

    fn symlink(&mut self, place: &Place, target_bytes: u16, fill: u64, now: Timestamp) -> Outcome {
        self.resolve(&place.dir)?;
        if place.name == Name::TOO_LONG {
            return Err(Error::NameTooLong);
        }
        if usize::from(target_bytes) > self.target_bytes_max {
            return Err(Error::NameTooLong);
        }
        if target_bytes == 0 {
            return Err(Error::NotFound);
        }
        let body = Body::Symlink(Op::target(target_bytes, fill));
        self.make(place, FileKind::Symlink, 0o777, body, now)?;
        Ok(Answer::Done)
    }

    fn link(&mut self, at: &At, place: &Place, now: Timestamp) -> Outcome {
        let id = self.resolve(at)?;
        let dir = self.resolve(&place.dir)?;
        if place.name == Name::TOO_LONG {
            return Err(Error::NameTooLong);
        }
        self.same_subvolume(id, dir)?;
        let node = self.node(id);
        if node.is_dir() {
            return Err(Error::NotPermitted);
        }
        self.dir_for_new(dir)?;
        if node.nlink >= Self::LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        if node.nlink == 0 && !node.linkable {
            return Err(Error::NotFound);
        }
        if self.child(dir, place.name)?.is_some() {
            return Err(Error::Exists);
        }
        self.names_mut(dir).insert(place.name, id);
        self.node_mut(dir).changed(now);
        let node = self.node_mut(id);
        (node.nlink, node.linkable, node.ctime) = (node.nlink + 1, false, now);
        Ok(Answer::Done)
    }

    fn drop_link(&mut self, id: Id, now: Timestamp) {
        let node = self.node_mut(id);
        (node.nlink, node.ctime) = (node.nlink - 1, now);
        self.reap(id);
    }

    fn remove(&mut self, place: &Place, want_dir: bool, now: Timestamp) -> Outcome {
        let dir = self.resolve(&place.dir)?;
        let id = self.child(dir, place.name)?.ok_or(Error::NotFound)?;
        match (want_dir, self.node(id).is_dir()) {
            (true, false) => return Err(Error::NotDirectory),
            (false, true) => return Err(Error::IsDirectory),
            (true, true) if !self.names(id)?.is_empty() => return Err(Error::NotEmpty),
            (true, true) if self.is_subvolume_root(id) => return Err(Error::NotPermitted),
            _ => {}
        }
        self.names_mut(dir).remove(&place.name);
        self.node_mut(dir).changed(now);
        self.drop_link(id, now);
        Ok(Answer::Done)
    }

    fn rename(&mut self, from: &Place, to: &Place, flags: RenameFlags, now: Timestamp) -> Outcome {
        let (old_dir, new_dir) = (self.resolve(&from.dir)?, self.resolve(&to.dir)?);
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags != RenameFlags::EXCHANGE {
            return Err(Error::Invalid);
        }
        for (dir, name) in [(old_dir, from.name), (new_dir, to.name)] {
            self.names(dir)?;
            if name == Name::TOO_LONG {
                return Err(Error::NameTooLong);
            }
        }
        let moving = self.child(old_dir, from.name)?.ok_or(Error::NotFound)?;
        let there = self.child(new_dir, to.name)?;
        // Roots of subvolumes alone go from one to another.
        let mut moved = std::iter::once(moving).chain(there.filter(|_| exchange));
        if !moved.all(|id| self.is_subvolume_root(id)) {
            self.same_subvolume(old_dir, new_dir)?;
        }
        match there {
            Some(_) if flags.contains(RenameFlags::NO_REPLACE) => return Err(Error::Exists),
            Some(there) if there == moving => return Ok(Answer::Done),
            None if exchange => return Err(Error::NotFound),
            _ => {}
        }
        if self.node(moving).is_dir() && self.is_above(moving, new_dir) {
            return Err(Error::Invalid);
        }
        match there {
            None => self.dir_for_new(new_dir)?,
            Some(there) => self.check_replaced(moving, there, old_dir, exchange)?,
        }
        self.move_names((old_dir, from.name), (new_dir, to.name), moving, there, exchange, now);
        if flags.contains(RenameFlags::WHITEOUT) {
            let id = self.new_node(old_dir, FileKind::CharDevice, 0, Body::Special, now);
            self.node_mut(id).nlink = 1;
            self.names_mut(old_dir).insert(from.name, id);
        }
        Ok(Answer::Done)
    }

    fn check_replaced(&self, moving: Id, there: Id, old_dir: Id, exchange: bool) -> Result<()> {
        let there_is_dir = self.node(there).is_dir();
        if there_is_dir && self.is_above(there, old_dir) {
            return Err(if exchange { Error::Invalid } else { Error::NotEmpty });
        }
        match (self.node(moving).is_dir(), there_is_dir) {
            _ if exchange => Ok(()),
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) if !self.names(there)?.is_empty() => Err(Error::NotEmpty),
            (true, true) if self.is_subvolume_root(there) => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    fn move_names(
        &mut self,
        (old_dir, old_name): (Id, Name),
        (new_dir, new_name): (Id, Name),
        moving: Id,
        there: Option<Id>,
        exchange: bool,
        now: Timestamp,
    ) {
        self.names_mut(old_dir).remove(&old_name);
        self.names_mut(new_dir).insert(new_name, moving);
        for dir in [old_dir, new_dir] {
            self.node_mut(dir).changed(now);
        }
        self.node_mut(moving).ctime = now;
        self.set_parent(moving, new_dir);
        match there {
            Some(there) if exchange => {
                self.names_mut(old_dir).insert(old_name, there);
                self.set_parent(there, old_dir);
                self.node_mut(there).ctime = now;
            }
            Some(there) => self.drop_link(there, now),
            None => {}
        }
    }

    fn set_parent(&mut self, id: Id, dir: Id) {
        if let Body::Dir { parent, .. } = &mut self.node_mut(id).body {
            *parent = dir;
        }
    }

    fn tmpfile(&mut self, slot: u8, dir: &At, perm: u32, exclusive: bool, now: Timestamp) -> Outcome {
        let dir = self.resolve(dir)?;
        self.dir_for_new(dir)?;
        let id = self.new_node(dir, FileKind::Regular, perm, Body::File(Content::default()), now);
        self.node_mut(id).linkable = !exclusive;
        self.hold(slot, Some(id));
        Ok(Answer::Done)
    }

    fn write(&mut self, at: &At, offset: u64, (len, fill): (u32, u64), append: bool, now: Timestamp) -> Outcome {
        let id = self.resolve(at)?;
        let node = self.node_mut(id);
        let content = node.content()?;
        if len == 0 {
            return Ok(Answer::Count(0));
        }
        let offset = if append { content.size_bytes } else { offset };
        let end = offset.checked_add(u64::from(len));
        if end.is_none_or(|end| end > Self::FILE_BYTES_MAX) {
            return Err(Error::FileTooBig);
        }
        content.write(offset, &pattern(fill, len as usize));
        node.changed(now);
        Ok(Answer::Count(u64::from(len)))
    }

    /// As truncate(2) by path: the size that a file has already leaves its times, but for size 0,
    /// which over FUSE may be an opening with O_TRUNC.
    fn truncate(&mut self, at: &At, size: u64, now: Timestamp) -> Outcome {
        let id = self.resolve(at)?;
        let node = self.node_mut(id);
        let content = node.content()?;
        if size > Self::FILE_BYTES_MAX {
            return Err(Error::FileTooBig);
        }
        if size > 0 && size == content.size_bytes {
            return Ok(Answer::Done);
        }
        content.truncate(size);
        node.changed(now);
        Ok(Answer::Done)
    }

    fn fallocate(&mut self, at: &At, mode: FallocateFlags, offset: u64, len: u64, now: Timestamp) -> Outcome {
        use FallocateFlags as F;
        let id = self.resolve(at)?;
        let node = self.node_mut(id);
        let content = node.content()?;
        let is_known = [
            F::empty(),
            F::KEEP_SIZE,
            F::PUNCH_HOLE | F::KEEP_SIZE,
            F::ZERO_RANGE,
            F::ZERO_RANGE | F::KEEP_SIZE,
        ];
        if !is_known.contains(&mode) {
            return Err(Error::NotSupported);
        }
        if len == 0 {
            return Err(Error::Invalid);
        }
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= Self::FILE_BYTES_MAX)
            .ok_or(Error::FileTooBig)?;
        if mode.intersects(F::PUNCH_HOLE | F::ZERO_RANGE) {
            content.zero(offset, len);
        }
        if !mode.contains(F::KEEP_SIZE) {
            content.size_bytes = content.size_bytes.max(end);
        }
        node.changed(now);
        Ok(Answer::Done)
    }

    /// The answer is the first place that must be data; a file system may name an earlier one. For
    /// holes: the end.
    fn seek(&mut self, at: &At, offset: u64, what: SeekFrom) -> Outcome {
        let id = self.resolve(at)?;
        let content = self.node_mut(id).content()?;
        if offset >= content.size_bytes {
            return Err(Error::NoSuchDevice);
        }
        match what {
            SeekFrom::Hole => Ok(Answer::Count(content.size_bytes)),
            SeekFrom::Data => {
                let end = content.size_bytes;
                let first = content.block_offsets().find_map(|block| {
                    let (from, to) = (offset.max(block), end.min(block + crate::BLOCK_BYTES));
                    (from < to && !content.is_zero(from, to)).then_some(from)
                });
                first.map(Answer::Count).ok_or(Error::NoSuchDevice)
            }
        }
    }

    fn copy(&mut self, src: (&At, u64), dst: (&At, u64), len: u64, now: Timestamp) -> Outcome {
        let (from, to) = (self.resolve(src.0)?, self.resolve(dst.0)?);
        let size = self.node_mut(from).content()?.size_bytes;
        self.node_mut(to).content()?;
        let max = Self::FILE_BYTES_MAX;
        if src.1.max(dst.1).checked_add(len).is_none() {
            return Err(Error::Overflow);
        }
        if src.1.max(dst.1) > max {
            return Err(Error::Invalid);
        }
        if dst.1 == max {
            return Err(Error::FileTooBig);
        }
        let len = len.min(size.saturating_sub(src.1)).min(max - dst.1);
        if from == to && len > 0 && src.1 < dst.1 + len && dst.1 < src.1 + len {
            return Err(Error::Invalid);
        }
        if len == 0 {
            return Ok(Answer::Count(0));
        }
        let data = self.node_mut(from).content()?.read(src.1, len);
        let node = self.node_mut(to);
        node.content()?.write(dst.1, &data);
        node.changed(now);
        Ok(Answer::Count(len))
    }

    /// `user.` attributes live on files and directories.
    fn may_set_xattr(node: &Node, name: u8) -> Result<()> {
        let is_user = xattr_name(name).starts_with(b"user.");
        if is_user && !matches!(node.kind, FileKind::Regular | FileKind::Directory) {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    fn set_xattr(
        &mut self,
        at: &At,
        name: u8,
        (len, fill): (u32, u64),
        flags: SetXattrFlags,
        now: Timestamp,
    ) -> Outcome {
        let bytes_max = self.xattr_bytes_max;
        let id = self.resolve(at)?;
        let node = self.node_mut(id);
        if len > 65536 {
            return Err(Error::TooBig);
        }
        Self::may_set_xattr(node, name)?;
        let exists = node.xattrs.contains_key(&name);
        if exists && flags.contains(SetXattrFlags::CREATE) {
            return Err(Error::Exists);
        }
        if !exists && flags.contains(SetXattrFlags::REPLACE) {
            return Err(Error::NoData);
        }
        // Those with the same hash share an item.
        let others: usize = match name {
            5 | 6 => node
                .xattrs
                .get(&(11 - name))
                .map_or(0, |v| 30 + xattr_name(11 - name).len() + v.len()),
            _ => 0,
        };
        if xattr_name(name).len() + len as usize + others > bytes_max {
            return Err(Error::NoSpace);
        }
        node.xattrs.insert(name, pattern(fill, len as usize));
        node.ctime = now;
        Ok(Answer::Done)
    }

    fn remove_xattr(&mut self, at: &At, name: u8, now: Timestamp) -> Outcome {
        let id = self.resolve(at)?;
        let node = self.node_mut(id);
        Self::may_set_xattr(node, name)?;
        node.xattrs.remove(&name).ok_or(Error::NoData)?;
        node.ctime = now;
        Ok(Answer::Done)
    }

    /// Attributes.
    fn change(&mut self, op: &Op, now: Timestamp) -> Outcome {
        let at = &op.touched()[0];
        let id = self.resolve(at)?;
        let mount = self.mount;
        let node = self.node_mut(id);
        match op {
            Op::Chmod { perm, .. } => node.perm = *perm,
            Op::Chown { uid, gid, .. } => {
                node.uid = uid.unwrap_or(node.uid);
                node.gid = gid.unwrap_or(node.gid);
                if !node.is_dir() && (uid.is_some() || gid.is_some()) {
                    node.strip_set_id();
                }
            }
            Op::Utimes { atime, mtime, .. } => {
                for (touch, field) in [(atime, &mut node.atime), (mtime, &mut node.mtime)] {
                    match touch {
                        Touch::Keep => {}
                        Touch::Now => *field = now,
                        Touch::At(time) => *field = *time,
                    }
                }
            }
            Op::Flags { flags, .. } => set_flags(node, *flags, mount)?,
            _ => unreachable!("only these are given"),
        }
        node.ctime = now;
        Ok(Answer::Done)
    }
}

/// `FS_IOC_SETFLAGS`. Errors: `Invalid` (compressed and not compressed, or written in place, at
/// once or one after the other).
fn set_flags(node: &mut Node, wanted: u32, mount: MountRules) -> Result<()> {
    use chattr::{COMPR, NOCOMP, NOCOW};
    let has = |bit| wanted & bit != 0;
    let contradicts = has(COMPR) && (has(NOCOMP) || has(NOCOW));
    let crosses =
        (node.flags & NOCOW != 0 && (has(COMPR) || has(NOCOMP))) || (has(NOCOW) && node.flags & (COMPR | NOCOMP) != 0);
    if contradicts || crosses {
        return Err(Error::Invalid);
    }
    // What a file holds has checksums or not; and a mount that is nodatacow does not give that up.
    let is_regular = node.kind == FileKind::Regular;
    let keeps = is_regular && (node.size_bytes() > 0 || (mount.nodatacow && !has(NOCOW)));
    let kept = if keeps { NOCOW } else { 0 };
    node.flags = (wanted & !kept) | (node.flags & kept);
    node.xattrs.remove(&PROPERTY);
    if has(COMPR) {
        let algorithm = mount.compress.unwrap_or("zlib");
        node.xattrs.insert(PROPERTY, algorithm.into());
    }
    Ok(())
}

impl Model {
    /// Flags and property of a new node.
    fn inherited(&self, parent: &Node, kind: FileKind) -> (u32, Option<Vec<u8>>) {
        use chattr::{COMPR, NOCOMP, NOCOW};
        let mut flags = parent.flags & NOCOW;
        if kind == FileKind::Regular && self.mount.nodatacow {
            flags |= NOCOW;
        }
        flags |= match parent.flags & (COMPR | NOCOMP) {
            both if both & NOCOMP != 0 => NOCOMP,
            one => one,
        };
        let takes = matches!(kind, FileKind::Regular | FileKind::Directory) && flags & NOCOW == 0;
        let algorithm = |value: &Vec<u8>| Some(value[..].split(|b| *b == b':').next()?.to_vec());
        let property = parent.xattrs.get(&PROPERTY).filter(|_| takes && flags & COMPR != 0);
        (flags, property.and_then(algorithm))
    }

    /// `Invalid`: a value that means nothing, or a file that is written in place.
    fn set_property(&mut self, at: &At, value: Option<u8>, now: Timestamp) -> Outcome {
        use chattr::{COMPR, NOCOMP, NOCOW};
        let id = self.resolve(at)?;
        let node = self.node_mut(id);
        // Nothing but files and directories has a use for it; the rest takes what is valid, and
        // forgets it.
        let is_ignored = !matches!(node.kind, FileKind::Regular | FileKind::Directory);
        let Some(value) = value.map(|value| PROPERTY_VALUES[usize::from(value)]) else {
            if is_ignored {
                return Ok(Answer::Done);
            }
            node.xattrs.remove(&PROPERTY).ok_or(Error::NoData)?;
            node.flags &= !(COMPR | NOCOMP);
            node.ctime = now;
            return Ok(Answer::Done);
        };
        let flag = match value {
            b"" => 0,
            _ if node.flags & NOCOW != 0 => return Err(Error::Invalid),
            b"no" | b"none" => NOCOMP,
            b"lz4" => return Err(Error::Invalid),
            _ => COMPR,
        };
        if is_ignored {
            return Ok(Answer::Done);
        }
        node.flags = node.flags & !(COMPR | NOCOMP) | flag;
        node.xattrs.remove(&PROPERTY);
        if !value.is_empty() {
            node.xattrs.insert(PROPERTY, value.to_vec());
        }
        node.ctime = now;
        Ok(Answer::Done)
    }
}

impl Op {
    /// The target of a symbolic link: letters.
    pub fn target(target_bytes: u16, fill: u64) -> Vec<u8> {
        let mut bytes = pattern(fill | 1, usize::from(target_bytes));
        bytes.iter_mut().for_each(|b| *b = b'a' + *b % 26);
        bytes
    }
}

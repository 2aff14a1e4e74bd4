//! The permission rules of POSIX and Linux: which caller may do what, and how mode and group change
//! with it. Pure functions of attributes, lists and credentials; each returns
//! [`Error::AccessDenied`] or [`Error::NotPermitted`] as the system call would.

use crate::acl::{self, Acl};
use crate::{Access, Attr, Context, Credentials, Error, FileKind, Result, SetAttr, SetTime};

/// Set-user-id, set-group-id and sticky bits.
pub(crate) const SET_UID: u32 = 0o4000;
/// Set-group-id bit.
pub const SET_GID: u32 = 0o2000;
pub(crate) const STICKY: u32 = 0o1000;
const GROUP_EXEC: u32 = 0o010;
const ANY_EXEC: u32 = 0o111;

/// Checks access by mode bits or, where there is one, by the access list. The superuser may do
/// everything but execute a file without any execute bit.
pub fn check(creds: &Credentials, attr: &Attr, list: Option<&Acl>, want: Access) -> Result<()> {
    if creds.is_privileged() {
        let can_exec = attr.is_dir() || attr.perm & ANY_EXEC != 0;
        return if want.contains(Access::EXEC) && !can_exec {
            Err(Error::AccessDenied)
        } else {
            Ok(())
        };
    }
    let granted = match list {
        Some(list) => list.grants(creds, attr.uid, attr.gid, want),
        None => {
            let shift = if creds.uid == attr.uid {
                6
            } else if class_bits(attr.perm, 3) == class_bits(attr.perm, 0) {
                0 // same answer whether a member or not: do not fetch the groups
            } else if creds.in_group(attr.gid) {
                3
            } else {
                0
            };
            class_bits(attr.perm, shift).contains(want)
        }
    };
    if granted { Ok(()) } else { Err(Error::AccessDenied) }
}

fn class_bits(perm: u32, shift: u32) -> Access {
    Access::from_bits_truncate((perm >> shift) & 7)
}

/// May a name that leads to a node owned by `target_uid` leave this directory? (The sticky rule;
/// write and search are [`check`]ed apart.)
pub fn check_sticky(creds: &Credentials, dir: &Attr, target_uid: u32) -> Result<()> {
    let free = dir.perm & STICKY == 0 || creds.uid == target_uid || creds.uid == dir.uid || creds.is_privileged();
    if free { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Checks a change of attributes. `list` is the node's access list; it matters for truncation and
/// for setting times to now.
pub fn check_setattr(creds: &Credentials, attr: &Attr, list: Option<&Acl>, set: &SetAttr) -> Result<()> {
    if creds.is_privileged() {
        return Ok(());
    }
    let is_owner = creds.uid == attr.uid;
    if set.perm.is_some() && !is_owner {
        return Err(Error::NotPermitted);
    }
    if set.uid.is_some_and(|uid| !is_owner || uid != attr.uid) {
        return Err(Error::NotPermitted);
    }
    if set
        .gid
        .is_some_and(|gid| !is_owner || !(gid == attr.gid || creds.in_group(gid)))
    {
        return Err(Error::NotPermitted);
    }
    if set.size_bytes.is_some() {
        check(creds, attr, list, Access::WRITE)?;
    }
    let times = [set.atime, set.mtime];
    if !is_owner && times.iter().any(Option::is_some) {
        if times.iter().any(|t| matches!(t, Some(SetTime::At(_)))) {
            return Err(Error::NotPermitted);
        }
        check(creds, attr, list, Access::WRITE)?;
    }
    if set.ctime.is_some() && !is_owner {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// The permission bits after a write or truncation by a caller that may not keep set-id bits:
/// set-user-id goes; set-group-id goes if the group may execute (without that it once meant
/// mandatory locking).
pub fn perm_after_write(perm: u32) -> u32 {
    let perm = perm & !SET_UID;
    if perm & GROUP_EXEC != 0 { perm & !SET_GID } else { perm }
}

/// Which set-id bits a change of content takes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strips {
    /// None: the caller may keep them.
    #[default]
    Nothing,
    /// Those of programs: see [`perm_after_write`].
    SetIds,
    /// Set-group-id without the group's right to execute, too: the caller is no member of it.
    AllSetIds,
}

impl Strips {
    /// What a change of content by this caller takes away of a file with these permission bits and
    /// this group. Watched on Linux: every call that changes content does it, down to `fallocate`;
    /// dedupe and stores through a mapping do not.
    pub fn by(creds: &Credentials, perm: u32, gid: u32) -> Strips {
        if perm & (SET_UID | SET_GID) == 0 || creds.is_privileged() {
            return Strips::Nothing;
        }
        if perm & (SET_GID | GROUP_EXEC) == SET_GID && !creds.in_group(gid) {
            return Strips::AllSetIds;
        }
        Strips::SetIds
    }

    /// The same where the front end has found that the caller may not keep them, whatever the
    /// caller is called: a superuser without that capability, say.
    pub fn demanded(creds: &Credentials, perm: u32, gid: u32) -> Strips {
        match perm & (SET_UID | SET_GID) {
            0 => Strips::Nothing,
            _ => Strips::by(creds, perm, gid).max(Strips::SetIds),
        }
    }

    /// The permission bits afterwards.
    pub fn apply(self, perm: u32) -> u32 {
        match self {
            Strips::Nothing => perm,
            Strips::SetIds => perm_after_write(perm),
            Strips::AllSetIds => perm & !(SET_UID | SET_GID),
        }
    }
}

/// The permission bits after a change of owner or group, by any caller. Directories keep theirs.
pub fn perm_after_chown(kind: FileKind, perm: u32) -> u32 {
    if kind == FileKind::Directory {
        perm
    } else {
        perm_after_write(perm)
    }
}

/// The permission bits that chmod really sets: set-group-id only by a member of the file's group
/// (`gid`: after the change, if it changes too) or the superuser.
pub fn perm_for_chmod(creds: &Credentials, perm: u32, gid: u32) -> u32 {
    if perm & SET_GID != 0 && !creds.is_privileged() && !creds.in_group(gid) {
        perm & !SET_GID
    } else {
        perm
    }
}

/// Owner, group, mode and lists of a node to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNodeAttrs {
    /// Owner: that of the caller.
    pub uid: u32,
    /// Group: that of the caller, or of a set-group-id parent.
    pub gid: u32,
    /// Permission bits, after umask or default list ([`crate::PERM_MASK`]).
    pub perm: u32,
    /// To be stored as [`acl::ACCESS_NAME`]; None where the mode says it all.
    pub access: Option<Acl>,
    /// To be stored as [`acl::DEFAULT_NAME`]; only for directories.
    pub default: Option<Acl>,
}

/// Computes them for a child of `parent`: the group and, for directories, the bit come from a
/// set-group-id parent; a set-group-id executable in such a directory is only made by members of
/// the group; the rest is [`acl::inherit`].
pub fn new_node(ctx: &Context, parent: &Attr, parent_default: Option<&Acl>, kind: FileKind, perm: u32) -> NewNodeAttrs {
    let creds = &ctx.creds;
    if kind == FileKind::Symlink {
        let gid = if parent.perm & SET_GID != 0 {
            parent.gid
        } else {
            creds.gid
        };
        return NewNodeAttrs {
            uid: creds.uid,
            gid,
            perm: 0o777,
            access: None,
            default: None,
        };
    }
    let is_dir = kind == FileKind::Directory;
    let mut perm = perm & crate::PERM_MASK;
    let mut gid = creds.gid;
    if parent.perm & SET_GID != 0 {
        gid = parent.gid;
        let made_set_gid_exec = perm & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC;
        if is_dir {
            perm |= SET_GID;
        } else if made_set_gid_exec && !creds.is_privileged() && !creds.in_group(gid) {
            perm &= !SET_GID;
        }
    }
    let inherited = acl::inherit(parent_default, perm, ctx.umask, is_dir);
    NewNodeAttrs {
        uid: creds.uid,
        gid,
        perm: inherited.perm,
        access: inherited.access,
        default: inherited.default,
    }
}

/// Owner, group and permission bits of a source inode or its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyAttrs {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub perm: u32,
}

/// Owner, group and mode of a copy of `source` that shall be like it as far as the caller may have
/// it so: as `cp -a` does it. The superuser keeps all. Other callers own their copies, which keep
/// the group if the caller is in it (else it is `new_gid`), and set-id and sticky bits only where
/// owner and group are those of the source.
pub fn of_copy(creds: &Credentials, source: CopyAttrs, new_gid: u32) -> CopyAttrs {
    if creds.is_privileged() {
        return source;
    }
    let keeps_group = creds.in_group(source.gid);
    let is_as_it_was = creds.uid == source.uid && keeps_group;
    CopyAttrs {
        uid: creds.uid,
        gid: if keeps_group { source.gid } else { new_gid },
        perm: match is_as_it_was {
            true => source.perm,
            false => source.perm & !(SET_UID | SET_GID | STICKY),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Groups, Timestamp};

    fn attr(kind: FileKind, perm: u32, uid: u32, gid: u32) -> Attr {
        let t = Timestamp::default();
        Attr {
            ino: 5,
            size_bytes: 0,
            blocks_512: 0,
            is_estimate: false,
            blksize: 4096,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
        }
    }

    fn file(perm: u32) -> Attr {
        attr(FileKind::Regular, perm, 10, 20)
    }

    fn caller(uid: u32, gid: u32) -> Credentials {
        Credentials::new(uid, gid)
    }

    #[test]
    fn owner_group_other_in_this_order() {
        let f = file(0o074);
        assert_eq!(check(&caller(10, 20), &f, None, Access::READ), Err(Error::AccessDenied));
        assert_eq!(check(&caller(11, 20), &f, None, Access::READ | Access::EXEC), Ok(()));
        assert_eq!(check(&caller(11, 21), &f, None, Access::READ), Ok(()));
        assert_eq!(
            check(&caller(11, 21), &f, None, Access::WRITE),
            Err(Error::AccessDenied)
        );
        let member = Credentials {
            uid: 11,
            gid: 21,
            groups: Groups::known([20]),
        };
        assert_eq!(check(&member, &f, None, Access::WRITE), Ok(()));
    }

    #[test]
    fn groups_are_not_fetched_when_they_cannot_matter() {
        let creds = Credentials {
            uid: 11,
            gid: 21,
            groups: Groups::lazy(1, |_| panic!("fetched")),
        };
        assert_eq!(check(&creds, &file(0o644), None, Access::READ), Ok(()));
        assert_eq!(
            check(&creds, &file(0o700), None, Access::READ),
            Err(Error::AccessDenied)
        );
    }

    #[test]
    fn superuser_needs_one_exec_bit() {
        let root = Credentials::root();
        assert_eq!(check(&root, &file(0), None, Access::READ | Access::WRITE), Ok(()));
        assert_eq!(check(&root, &file(0o666), None, Access::EXEC), Err(Error::AccessDenied));
        assert_eq!(check(&root, &file(0o001), None, Access::EXEC), Ok(()));
        assert_eq!(
            check(&root, &attr(FileKind::Directory, 0, 1, 1), None, Access::EXEC),
            Ok(())
        );
    }

    #[test]
    fn sticky_directories_protect_names() {
        let dir = attr(FileKind::Directory, 0o1777, 10, 20);
        assert_eq!(check_sticky(&caller(11, 0), &dir, 12), Err(Error::NotPermitted));
        assert_eq!(check_sticky(&caller(11, 0), &dir, 11), Ok(()));
        assert_eq!(check_sticky(&caller(10, 0), &dir, 12), Ok(()));
        assert_eq!(check_sticky(&caller(0, 0), &dir, 12), Ok(()));
        let free = attr(FileKind::Directory, 0o777, 10, 20);
        assert_eq!(check_sticky(&caller(11, 0), &free, 12), Ok(()));
    }

    #[test]
    fn setattr_rules() {
        let f = file(0o646);
        let ok = |creds: &Credentials, set: SetAttr| check_setattr(creds, &f, None, &set);
        let chmod = SetAttr {
            perm: Some(0o600),
            ..Default::default()
        };
        assert_eq!(ok(&caller(10, 20), chmod), Ok(()));
        assert_eq!(ok(&caller(11, 20), chmod), Err(Error::NotPermitted));
        assert_eq!(ok(&caller(0, 0), chmod), Ok(()));
        let chown = |uid, gid| SetAttr {
            uid,
            gid,
            ..Default::default()
        };
        assert_eq!(ok(&caller(10, 20), chown(Some(11), None)), Err(Error::NotPermitted));
        assert_eq!(ok(&caller(10, 20), chown(Some(10), None)), Ok(()));
        assert_eq!(ok(&caller(10, 33), chown(None, Some(33))), Ok(()));
        assert_eq!(ok(&caller(10, 20), chown(None, Some(33))), Err(Error::NotPermitted));
        let touch = SetAttr {
            mtime: Some(SetTime::Now),
            ..Default::default()
        };
        assert_eq!(ok(&caller(11, 21), touch), Ok(()), "other may write");
        assert_eq!(ok(&caller(11, 20), touch), Err(Error::AccessDenied), "group may not");
        let set = SetAttr {
            mtime: Some(SetTime::At(Timestamp::default())),
            ..Default::default()
        };
        assert_eq!(ok(&caller(11, 21), set), Err(Error::NotPermitted));
        assert_eq!(ok(&caller(10, 21), set), Ok(()));
        let cut = SetAttr {
            size_bytes: Some(0),
            ..Default::default()
        };
        assert_eq!(ok(&caller(11, 20), cut), Err(Error::AccessDenied));
    }

    #[test]
    fn set_id_bits_are_stripped() {
        assert_eq!(perm_after_write(0o6755), 0o755);
        assert_eq!(perm_after_write(0o6744), 0o2744);
        assert_eq!(perm_after_chown(FileKind::Directory, 0o6755), 0o6755);
        assert_eq!(perm_after_chown(FileKind::Regular, 0o4711), 0o711);
        assert_eq!(perm_for_chmod(&caller(10, 21), 0o2755, 20), 0o755);
        assert_eq!(perm_for_chmod(&caller(10, 20), 0o2755, 20), 0o2755);
        assert_eq!(perm_for_chmod(&caller(0, 0), 0o2755, 20), 0o2755);
    }

    #[test]
    fn copies_keep_owners_for_root_and_set_id_bits_for_the_owner() {
        let source = CopyAttrs {
            uid: 10,
            gid: 20,
            perm: 0o6755,
        };
        let kept = |creds: &Credentials| {
            let copy = of_copy(creds, source, 99);
            (copy.uid, copy.gid, copy.perm)
        };
        assert_eq!(kept(&caller(0, 0)), (10, 20, 0o6755));
        assert_eq!(kept(&caller(10, 20)), (10, 20, 0o6755));
        assert_eq!(kept(&caller(11, 20)), (11, 20, 0o755));
        assert_eq!(kept(&caller(10, 21)), (10, 99, 0o755), "not in the group");
    }

    #[test]
    fn set_group_id_parents_pass_on_their_group() {
        let parent = attr(FileKind::Directory, 0o2775, 1, 77);
        let ctx = Context::new(Credentials::new(10, 20), 0, 0o022);
        let dir = new_node(&ctx, &parent, None, FileKind::Directory, 0o777);
        assert_eq!((dir.uid, dir.gid, dir.perm), (10, 77, 0o2755));
        let file = new_node(&ctx, &parent, None, FileKind::Regular, 0o2775);
        assert_eq!((file.gid, file.perm), (77, 0o755));
        let plain = attr(FileKind::Directory, 0o755, 1, 77);
        let file = new_node(&ctx, &plain, None, FileKind::Regular, 0o666);
        assert_eq!((file.gid, file.perm), (20, 0o644));
        let link = new_node(&ctx, &plain, Some(&Acl::from_mode(0o700)), FileKind::Symlink, 0);
        assert_eq!((link.perm, link.access), (0o777, None));
    }
}

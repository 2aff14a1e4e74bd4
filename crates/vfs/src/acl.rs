//! POSIX access control lists: the value of `system.posix_acl_access` and
//! `system.posix_acl_default`, and what creating and chmod do to them.
//!
//! The value is Linux' `posix_acl_xattr` version 2, little-endian: a 32-bit version, then entries
//! of 8 bytes: tag (16 bits), permissions (16 bits), id (32 bits). See acl(5) for the meaning.

use crate::{Access, Error, Result};

/// The attribute that holds a node's own list.
pub const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// The attribute that holds what a directory passes on.
pub const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// What entries without a qualifier carry as id.
const ID_UNDEFINED: u32 = u32::MAX;
/// More entries than fit in the largest extended attribute cannot exist (65536 bytes).
const ENTRIES_MAX: usize = (65536 - HEADER_BYTES) / ENTRY_BYTES;

const TAG_USER_OBJ: u16 = 0x01;
const TAG_USER: u16 = 0x02;
const TAG_GROUP_OBJ: u16 = 0x04;
const TAG_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHER: u16 = 0x20;

/// A permission for one user or group by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// User or group number.
    pub id: u32,
    /// What is granted, before the mask.
    pub perm: Access,
}

/// A valid access control list: always the three base entries, and a mask if there is a named user
/// or group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// Of the node's owner.
    pub owner: Access,
    /// Sorted by id, without repetition.
    pub users: Vec<Named>,
    /// Of the node's group, before the mask.
    pub group: Access,
    /// Sorted by id, without repetition.
    pub groups: Vec<Named>,
    /// Upper bound of all permissions but those of owner and other.
    pub mask: Option<Access>,
    /// Of all other callers.
    pub other: Access,
}

fn bits(mode: u32, shift: u32) -> Access {
    Access::from_bits_truncate((mode >> shift) & 7)
}

impl Acl {
    /// The list that says what the mode says.
    pub fn from_mode(perm: u32) -> Acl {
        Acl {
            owner: bits(perm, 6),
            users: Vec::new(),
            group: bits(perm, 3),
            groups: Vec::new(),
            mask: None,
            other: bits(perm, 0),
        }
    }

    /// Reads an attribute value. `Ok(None)` for a value without entries, which stands for "no
    /// list". Errors: `NotSupported` (version), `Invalid` (anything else). Entries may come in any
    /// order of ids but in Linux' order of tags.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>> {
        let (version, body) = value.split_first_chunk::<HEADER_BYTES>().ok_or(Error::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Error::NotSupported);
        }
        let (entries, rest) = body.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() || entries.len() > ENTRIES_MAX {
            return Err(Error::Invalid);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let mut base: [Option<Access>; 4] = [None; 4]; // owner, group, mask, other
        let mut users = Vec::new();
        let mut groups = Vec::new();
        let mut last_tag = 0;
        for entry in entries {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let perm = u16::from_le_bytes([entry[2], entry[3]]);
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let perm = Access::from_bits(perm.into()).ok_or(Error::Invalid)?;
            let repeatable = matches!(tag, TAG_USER | TAG_GROUP);
            if tag < last_tag || (tag == last_tag && !repeatable) || (repeatable && id == ID_UNDEFINED) {
                return Err(Error::Invalid);
            }
            last_tag = tag;
            match tag {
                TAG_USER_OBJ => base[0] = Some(perm),
                TAG_USER => users.push(Named { id, perm }),
                TAG_GROUP_OBJ => base[1] = Some(perm),
                TAG_GROUP => groups.push(Named { id, perm }),
                TAG_MASK => base[2] = Some(perm),
                TAG_OTHER => base[3] = Some(perm),
                _ => return Err(Error::Invalid),
            }
        }
        let [Some(owner), Some(group), mask, Some(other)] = base else {
            return Err(Error::Invalid);
        };
        for list in [&mut users, &mut groups] {
            list.sort_by_key(|n: &Named| n.id);
            if list.windows(2).any(|w| w[0].id == w[1].id) {
                return Err(Error::Invalid);
            }
        }
        if mask.is_none() && !(users.is_empty() && groups.is_empty()) {
            return Err(Error::Invalid);
        }
        Ok(Some(Acl {
            owner,
            users,
            group,
            groups,
            mask,
            other,
        }))
    }

    /// The attribute value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let entries = 3 + self.users.len() + self.groups.len() + usize::from(self.mask.is_some());
        let mut out = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * entries);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let mut put = |tag: u16, perm: Access, id: u32| {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&(perm.bits() as u16).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        };
        put(TAG_USER_OBJ, self.owner, ID_UNDEFINED);
        self.users.iter().for_each(|n| put(TAG_USER, n.perm, n.id));
        put(TAG_GROUP_OBJ, self.group, ID_UNDEFINED);
        self.groups.iter().for_each(|n| put(TAG_GROUP, n.perm, n.id));
        if let Some(mask) = self.mask {
            put(TAG_MASK, mask, ID_UNDEFINED);
        }
        put(TAG_OTHER, self.other, ID_UNDEFINED);
        out
    }

    /// Says no more than nine mode bits can: need not be stored beside the mode.
    pub fn is_mode(&self) -> bool {
        self.mask.is_none() && self.users.is_empty() && self.groups.is_empty()
    }

    /// The nine mode bits that stand for this list: the group bits show the mask where there is
    /// one.
    pub fn mode_bits(&self) -> u32 {
        self.owner.bits() << 6 | self.mask.unwrap_or(self.group).bits() << 3 | self.other.bits()
    }

    /// What chmod does: owner and other follow the mode, and so does the mask, or the group where
    /// there is no mask.
    pub fn set_mode(&mut self, perm: u32) {
        self.owner = bits(perm, 6);
        self.other = bits(perm, 0);
        match &mut self.mask {
            Some(mask) => *mask = bits(perm, 3),
            None => self.group = bits(perm, 3),
        }
    }

    /// Does the list grant `want` to this caller? `owner_uid` and `owner_gid` are those of the
    /// node. The caller's privileges are not looked at.
    pub(crate) fn grants(&self, creds: &crate::Credentials, owner_uid: u32, owner_gid: u32, want: Access) -> bool {
        let masked = |perm: Access| perm & self.mask.unwrap_or(Access::all());
        if creds.uid == owner_uid {
            return self.owner.contains(want);
        }
        if let Some(user) = self.users.iter().find(|n| n.id == creds.uid) {
            return masked(user.perm).contains(want);
        }
        let mut is_member = false;
        if creds.in_group(owner_gid) {
            is_member = true;
            if masked(self.group).contains(want) {
                return true;
            }
        }
        for group in self.groups.iter().filter(|n| creds.in_group(n.id)) {
            is_member = true;
            if masked(group.perm).contains(want) {
                return true;
            }
        }
        !is_member && self.other.contains(want)
    }
}

/// What a new node gets: permission bits and lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Permission bits of the node, after umask or default list.
    pub perm: u32,
    /// To be stored as [`ACCESS_NAME`]; None where the mode says it all.
    pub access: Option<Acl>,
    /// To be stored as [`DEFAULT_NAME`]; only for directories.
    pub default: Option<Acl>,
}

/// Computes mode and lists of a node created with `perm` in a directory that has `parent_default`.
/// Without a default list the umask applies; with one it does not, and the list limits what `perm`
/// asks for. Not for symbolic links, which have no mode of their own.
pub fn inherit(parent_default: Option<&Acl>, perm: u32, umask: u32, is_dir: bool) -> Inherited {
    let Some(default) = parent_default else {
        return Inherited {
            perm: perm & !(umask & 0o777),
            access: None,
            default: None,
        };
    };
    let mut access = default.clone();
    access.owner &= bits(perm, 6);
    access.other &= bits(perm, 0);
    match &mut access.mask {
        Some(mask) => *mask &= bits(perm, 3),
        None => access.group &= bits(perm, 3),
    }
    let perm = (perm & !0o777) | access.mode_bits();
    Inherited {
        perm,
        access: (!access.is_mode()).then_some(access),
        default: is_dir.then(|| default.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Credentials, Groups};

    fn rwx(text: &str) -> Access {
        text.bytes().fold(Access::empty(), |a, c| {
            a | match c {
                b'r' => Access::READ,
                b'w' => Access::WRITE,
                b'x' => Access::EXEC,
                _ => Access::empty(),
            }
        })
    }

    fn sample() -> Acl {
        Acl {
            owner: rwx("rwx"),
            users: vec![Named {
                id: 1000,
                perm: rwx("rw-"),
            }],
            group: rwx("r-x"),
            groups: vec![Named {
                id: 50,
                perm: rwx("rwx"),
            }],
            mask: Some(rwx("r-x")),
            other: rwx("---"),
        }
    }

    fn raw(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut v = 2u32.to_le_bytes().to_vec();
        for &(t, p, id) in entries {
            v.extend([t.to_le_bytes(), p.to_le_bytes()].concat());
            v.extend(id.to_le_bytes());
        }
        v
    }

    #[test]
    fn value_round_trips() {
        let acl = sample();
        let bytes = acl.to_bytes();
        assert_eq!(bytes.len(), 4 + 6 * 8);
        assert_eq!(Acl::parse(&bytes), Ok(Some(acl)));
        assert_eq!(Acl::parse(&raw(&[])), Ok(None));
    }

    #[test]
    fn bad_values_are_refused() {
        let u = ID_UNDEFINED;
        let base = [(1, 7, u), (4, 5, u), (0x20, 0, u)];
        assert!(Acl::parse(&raw(&base)).is_ok());
        for bad in [
            raw(&[(1, 7, u), (4, 5, u)]),                                                   // no other
            raw(&[(4, 5, u), (1, 7, u), (0x20, 0, u)]),                                     // order
            raw(&[(1, 7, u), (1, 7, u), (4, 5, u), (0x20, 0, u)]),                          // owner twice
            raw(&[(1, 8, u), (4, 5, u), (0x20, 0, u)]),                                     // permission bits
            raw(&[(1, 7, u), (2, 5, 7), (4, 5, u), (0x20, 0, u)]),                          // named without mask
            raw(&[(1, 7, u), (2, 5, u), (4, 5, u), (0x10, 7, u), (0x20, 0, u)]),            // named without id
            raw(&[(1, 7, u), (2, 5, 7), (2, 5, 7), (4, 5, u), (0x10, 7, u), (0x20, 0, u)]), // named twice
            raw(&[(1, 7, u), (4, 5, u), (0x20, 0, u), (0x40, 0, u)]),                       // unknown tag
            raw(&base)[..11].to_vec(),                                                      // cut
            vec![2, 0],                                                                     // no header
        ] {
            assert_eq!(Acl::parse(&bad), Err(Error::Invalid), "{bad:?}");
        }
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Error::NotSupported));
    }

    #[test]
    fn any_bytes_parse_without_panic() {
        let mut x = 88172645463325252u64;
        for len in 0..300usize {
            let bytes: Vec<u8> = (0..len)
                .map(|i| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    if i == 0 {
                        2
                    } else if i < 4 {
                        0
                    } else {
                        (x as u8) & 7
                    }
                })
                .collect();
            if let Ok(Some(acl)) = Acl::parse(&bytes) {
                assert_eq!(Acl::parse(&acl.to_bytes()), Ok(Some(acl)));
            }
        }
    }

    #[test]
    fn chmod_moves_the_mask_not_the_group() {
        let mut acl = sample();
        acl.set_mode(0o640);
        assert_eq!((acl.owner, acl.mask, acl.other), (rwx("rw"), Some(rwx("r")), rwx("")));
        assert_eq!(acl.group, rwx("rx"));
        assert_eq!(acl.mode_bits(), 0o640);
        let mut plain = Acl::from_mode(0o755);
        plain.set_mode(0o620);
        assert_eq!(plain, Acl::from_mode(0o620));
    }

    #[test]
    fn inheritance_replaces_the_umask() {
        assert_eq!(
            inherit(None, 0o4666, 0o022, false),
            Inherited {
                perm: 0o4644,
                access: None,
                default: None
            }
        );
        let default = sample();
        let file = inherit(Some(&default), 0o666, 0o077, false);
        assert_eq!(file.perm, 0o640);
        assert_eq!(file.default, None);
        let access = file.access.unwrap();
        assert_eq!((access.mask, access.group), (Some(rwx("r")), rwx("rx")));
        let dir = inherit(Some(&default), 0o777, 0o077, true);
        assert_eq!((dir.perm, dir.default), (0o750, Some(default)));
        let plain = Acl::from_mode(0o740);
        let file = inherit(Some(&plain), 0o666, 0o777, false);
        assert_eq!((file.perm, file.access), (0o640, None));
    }

    #[test]
    fn the_first_matching_class_decides() {
        let acl = sample();
        let caller = |uid, gid, groups: &[u32]| Credentials {
            uid,
            gid,
            groups: Groups::known(groups),
        };
        assert!(acl.grants(&caller(1, 9, &[]), 1, 2, rwx("rwx")));
        assert!(acl.grants(&caller(1000, 9, &[]), 1, 2, rwx("r")));
        assert!(
            !acl.grants(&caller(1000, 9, &[50]), 1, 2, rwx("x")),
            "a named user is not helped by groups"
        );
        assert!(acl.grants(&caller(7, 2, &[]), 1, 2, rwx("rx")));
        assert!(acl.grants(&caller(7, 9, &[50]), 1, 2, rwx("rx")));
        assert!(!acl.grants(&caller(7, 9, &[50]), 1, 2, rwx("w")), "the mask limits");
        assert!(!acl.grants(&caller(7, 9, &[]), 1, 2, rwx("r")));
    }
}

//! Extended attributes: name spaces, permissions, and how answers are cut to the caller's buffer.
//! See xattr(7).

use crate::acl;
use crate::{Attr, Credentials, Error, FileKind, Result, perm};

/// The longest name in bytes, name space included.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest value in bytes that Linux passes on.
pub const VALUE_BYTES_MAX: usize = 65536;

/// File capabilities: gone after a change of owner or content, as set-id bits are.
pub const CAPABILITY_NAME: &[u8] = b"security.capability";

/// The name space of an attribute, which decides about access to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// `user.`: for callers that may read or write the file.
    User,
    /// `trusted.`: for the superuser alone, invisible to others.
    Trusted,
    /// `security.`: readable by all; written by the superuser (and by security modules through the
    /// kernel).
    Security,
    /// `system.posix_acl_access`.
    AccessAcl,
    /// `system.posix_acl_default`.
    DefaultAcl,
    /// Properties of the format, under a prefix of its own ([`Namespace::of_format`]).
    Property,
}

impl Namespace {
    /// The name space of a full name. Errors: `NotSupported` (none of these), `Range` (too long),
    /// `Invalid` (nothing after the prefix).
    pub fn of(name: &[u8]) -> Result<Namespace> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::Range);
        }
        if name == acl::ACCESS_NAME {
            return Ok(Namespace::AccessAcl);
        }
        if name == acl::DEFAULT_NAME {
            return Ok(Namespace::DefaultAcl);
        }
        for (prefix, space) in [
            (&b"user."[..], Namespace::User),
            (b"trusted.", Namespace::Trusted),
            (b"security.", Namespace::Security),
        ] {
            if let Some(space) = below(prefix, name, space) {
                return space;
            }
        }
        Err(Error::NotSupported)
    }

    /// As [`Namespace::of`], for a format that has properties under this prefix (`btrfs.`, say).
    pub fn of_format(name: &[u8], prefix: &[u8]) -> Result<Namespace> {
        match Namespace::of(name) {
            Err(Error::NotSupported) => below(prefix, name, Namespace::Property).unwrap_or(Err(Error::NotSupported)),
            found => found,
        }
    }
}

/// The name space of a prefix, for a name that has it; an error for the prefix alone.
fn below(prefix: &[u8], name: &[u8], space: Namespace) -> Option<Result<Namespace>> {
    let rest = name.strip_prefix(prefix)?;
    Some(if rest.is_empty() {
        Err(Error::Invalid)
    } else {
        Ok(space)
    })
}

/// What a caller wants with an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Read the value.
    Get,
    /// Set or remove.
    Set,
}

/// Checks the rules that depend on name space, kind of node and ownership. Mode bits (for `user.`)
/// are checked separately, by the side that checks permissions ([`crate::PermissionChecks`]).
pub fn check(creds: &Credentials, attr: &Attr, space: Namespace, what: Use) -> Result<()> {
    let set = what == Use::Set;
    let is_owner = creds.uid == attr.uid || creds.is_privileged();
    match space {
        Namespace::User => match attr.kind {
            FileKind::Regular => Ok(()),
            // In a sticky directory that all may write, any user could fill the owner's attribute
            // space.
            FileKind::Directory if set && attr.perm & perm::STICKY != 0 && !is_owner => Err(Error::NotPermitted),
            FileKind::Directory => Ok(()),
            FileKind::Symlink | FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                Err(if set { Error::NotPermitted } else { Error::NoData })
            }
        },
        Namespace::Trusted if creds.is_privileged() => Ok(()),
        Namespace::Trusted => Err(if set { Error::NotPermitted } else { Error::NoData }),
        Namespace::Security if !set || creds.is_privileged() => Ok(()),
        Namespace::Security => Err(Error::NotPermitted),
        Namespace::AccessAcl | Namespace::DefaultAcl if attr.kind == FileKind::Symlink => Err(Error::NotSupported),
        Namespace::DefaultAcl if set && !attr.is_dir() => Err(Error::AccessDenied),
        Namespace::AccessAcl | Namespace::DefaultAcl | Namespace::Property if !set || is_owner => Ok(()),
        Namespace::AccessAcl | Namespace::DefaultAcl | Namespace::Property => Err(Error::NotPermitted),
    }
}

/// Is a name of this name space shown to this caller by `listxattr`? Not one without.
pub fn is_listed(creds: &Credentials, space: Result<Namespace>) -> bool {
    match space {
        Ok(Namespace::Trusted) => creds.is_privileged(),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Answers `getxattr` and `listxattr`: into an empty buffer nothing but the length; else the value,
/// or `Range` if it does not fit.
pub fn answer(value: &[u8], buf: &mut [u8]) -> Result<usize> {
    if !buf.is_empty() {
        buf.get_mut(..value.len()).ok_or(Error::Range)?.copy_from_slice(value);
    }
    Ok(value.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    fn attr(kind: FileKind, perm: u32) -> Attr {
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
            uid: 10,
            gid: 20,
            rdev: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
        }
    }

    #[test]
    fn names_have_a_space() {
        assert_eq!(Namespace::of(b"user.a"), Ok(Namespace::User));
        let of_format = |name| Namespace::of_format(name, b"form.");
        assert_eq!(Namespace::of(b"form.property"), Err(Error::NotSupported));
        assert_eq!(of_format(b"form.property"), Ok(Namespace::Property));
        assert_eq!(of_format(b"form."), Err(Error::Invalid));
        assert_eq!(of_format(b"user.a"), Ok(Namespace::User));
        assert_eq!(of_format(b"nothing"), Err(Error::NotSupported));
        assert_eq!(Namespace::of(b"system.posix_acl_default"), Ok(Namespace::DefaultAcl));
        assert_eq!(Namespace::of(b"user."), Err(Error::Invalid));
        assert_eq!(Namespace::of(b"system.other"), Err(Error::NotSupported));
        assert_eq!(Namespace::of(b"nothing"), Err(Error::NotSupported));
        assert_eq!(Namespace::of(&[b'u'; 256]), Err(Error::Range));
    }

    #[test]
    fn user_attributes_live_on_files_and_directories() {
        let (owner, other, root) = (Credentials::new(10, 20), Credentials::new(11, 21), Credentials::root());
        let file = attr(FileKind::Regular, 0o644);
        assert_eq!(
            check(&other, &file, Namespace::User, Use::Set),
            Ok(()),
            "mode bits are checked elsewhere"
        );
        let fifo = attr(FileKind::Fifo, 0o666);
        assert_eq!(check(&root, &fifo, Namespace::User, Use::Set), Err(Error::NotPermitted));
        assert_eq!(check(&root, &fifo, Namespace::User, Use::Get), Err(Error::NoData));
        let tmp = attr(FileKind::Directory, 0o1777);
        assert_eq!(check(&other, &tmp, Namespace::User, Use::Set), Err(Error::NotPermitted));
        assert_eq!(check(&other, &tmp, Namespace::User, Use::Get), Ok(()));
        assert_eq!(check(&owner, &tmp, Namespace::User, Use::Set), Ok(()));
    }

    #[test]
    fn trusted_security_and_lists_have_their_masters() {
        let (owner, other, root) = (Credentials::new(10, 20), Credentials::new(11, 21), Credentials::root());
        let file = attr(FileKind::Regular, 0o644);
        assert_eq!(check(&owner, &file, Namespace::Trusted, Use::Get), Err(Error::NoData));
        assert_eq!(
            check(&owner, &file, Namespace::Trusted, Use::Set),
            Err(Error::NotPermitted)
        );
        assert_eq!(check(&root, &file, Namespace::Trusted, Use::Set), Ok(()));
        assert_eq!(check(&other, &file, Namespace::Security, Use::Get), Ok(()));
        assert_eq!(
            check(&owner, &file, Namespace::Security, Use::Set),
            Err(Error::NotPermitted)
        );
        assert_eq!(check(&owner, &file, Namespace::AccessAcl, Use::Set), Ok(()));
        assert_eq!(
            check(&other, &file, Namespace::AccessAcl, Use::Set),
            Err(Error::NotPermitted)
        );
        assert_eq!(
            check(&owner, &file, Namespace::DefaultAcl, Use::Set),
            Err(Error::AccessDenied)
        );
        let link = attr(FileKind::Symlink, 0o777);
        assert_eq!(
            check(&owner, &link, Namespace::AccessAcl, Use::Get),
            Err(Error::NotSupported)
        );
        assert!(
            !is_listed(&owner, Namespace::of(b"trusted.x"))
                && is_listed(&root, Namespace::of(b"trusted.x"))
                && is_listed(&owner, Namespace::of(b"user.x"))
        );
    }

    #[test]
    fn answers_fit_or_say_so() {
        let mut buf = [0; 4];
        assert_eq!(answer(b"abc", &mut []), Ok(3));
        assert_eq!(answer(b"abc", &mut buf), Ok(3));
        assert_eq!(&buf, b"abc\0");
        assert_eq!(answer(b"abcde", &mut buf), Err(Error::Range));
        assert_eq!(answer(b"", &mut buf), Ok(0));
    }
}

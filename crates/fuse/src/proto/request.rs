//! From the bytes of a request to an enum. Pure, and total: any bytes give a request or
//! [`Malformed`], never a panic.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::wire::*;

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("request of {have} bytes, shorter than its header")]
    NoHeader { have: usize },
    #[error("request says it has {says} bytes, came with {have}")]
    Length { says: u32, have: usize },
    #[error("{opcode:?} ends early")]
    Short { opcode: Opcode },
    #[error("{opcode:?} with a name that is empty, has no end, or contains a slash")]
    Name { opcode: Opcode },
    #[error("extensions of {bytes} bytes do not fit in the request, or are damaged")]
    Extension { bytes: usize },
}

/// What the two sides agreed on, as far as it changes how requests look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// SETXATTR carries its longer structure.
    pub setxattr_ext: bool,
}

/// A request: its caller, its node, and what it asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub header: InHeader,
    /// A supplementary group of the caller that matters for creating (CREATE_SUPP_GROUP).
    pub supplementary_group: Option<u32>,
    pub op: Operation<'a>,
}

/// What is asked. Names are without their NUL, not empty, and without slashes.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    Init {
        args: InitInShort,
        flags2: u32,
    },
    Destroy,
    Lookup {
        name: &'a [u8],
    },
    Forget {
        nlookup: u64,
    },
    BatchForget {
        nodes: &'a [u8],
    },
    Getattr(GetattrIn),
    Setattr(SetattrIn),
    Statx(StatxIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        args: MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        args: MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        newdir: u64,
        flags: u32,
        name: &'a [u8],
        newname: &'a [u8],
    },
    Link {
        oldnodeid: u64,
        newname: &'a [u8],
    },
    Open(OpenIn),
    Create {
        args: CreateIn,
        name: &'a [u8],
    },
    Tmpfile {
        args: CreateIn,
    },
    Read(ReadIn),
    Write {
        args: WriteIn,
        data: &'a [u8],
    },
    Statfs,
    Release(ReleaseIn),
    Flush(FlushIn),
    Fsync(FsyncIn),
    Opendir(OpenIn),
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Releasedir(ReleaseIn),
    Fsyncdir(FsyncIn),
    Setxattr {
        args: SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Access {
        mask: u32,
    },
    Ioctl {
        args: IoctlIn,
        input: &'a [u8],
    },
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange {
        args: CopyFileRangeIn,
        wide: bool,
    },
    Syncfs,
    Interrupt {
        unique: u64,
    },
    /// An answer to a notification that asked for one: we send none.
    NotifyReply,
    /// Something that this server does not do; the kernel then does it itself or does without.
    Unsupported {
        opcode: u32,
    },
}

/// The bytes of a request after its header, and how to take them apart. With one slice
/// (`/dev/fuse`), everything follows each other; with two (io_uring), the fixed structure of an
/// operation lies in the first and its names and data in the second.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    opcode: Opcode,
    fixed: &'a [u8],
    payload: Option<&'a [u8]>,
}

impl<'a> Body<'a> {
    fn take<T: FromBytes + Immutable + KnownLayout>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.fixed).map_err(|_| self.short())?;
        self.fixed = rest;
        Ok(value)
    }

    fn rest(&mut self) -> &mut &'a [u8] {
        self.payload.as_mut().unwrap_or(&mut self.fixed)
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let short = self.short();
        let (bytes, rest) = self.rest().split_at_checked(len as usize).ok_or(short)?;
        *self.rest() = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let bad = Malformed::Name { opcode: self.opcode };
        let rest = self.rest();
        let end = rest.iter().position(|&b| b == 0).ok_or(bad)?;
        let (text, after) = rest.split_at_checked(end).ok_or(bad)?;
        *rest = after.get(1..).unwrap_or_default();
        if text.is_empty() { Err(bad) } else { Ok(text) }
    }

    fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.text()?;
        if name.contains(&b'/') {
            Err(Malformed::Name { opcode: self.opcode })
        } else {
            Ok(name)
        }
    }

    fn short(&self) -> Malformed {
        Malformed::Short { opcode: self.opcode }
    }
}

impl<'a> Request<'a> {
    /// Takes a request as `/dev/fuse` delivers it: header, structure, names and data in one piece.
    pub fn parse(bytes: &'a [u8], dialect: Dialect) -> Result<Request<'a>, Malformed> {
        let (header, body) =
            InHeader::read_from_prefix(bytes).map_err(|_| Malformed::NoHeader { have: bytes.len() })?;
        if header.len as usize != bytes.len() {
            return Err(Malformed::Length {
                says: header.len,
                have: bytes.len(),
            });
        }
        Request::from_parts(header, body, None, dialect)
    }

    /// Takes a request whose parts came separately (see [`Body`]).
    pub fn from_parts(
        header: InHeader,
        fixed: &'a [u8],
        payload: Option<&'a [u8]>,
        dialect: Dialect,
    ) -> Result<Request<'a>, Malformed> {
        let Some(opcode) = Opcode::from_raw(header.opcode) else {
            let op = Operation::Unsupported { opcode: header.opcode };
            return Ok(Request {
                header,
                supplementary_group: None,
                op,
            });
        };
        let mut body = Body { opcode, fixed, payload };
        let supplementary_group = take_extensions(&header, body.rest())?;
        let op = operation(opcode, &mut body, dialect)?;
        Ok(Request {
            header,
            supplementary_group,
            op,
        })
    }
}

/// Cuts the extensions off the end, and returns the first group among them.
fn take_extensions(header: &InHeader, rest: &mut &[u8]) -> Result<Option<u32>, Malformed> {
    let bytes = usize::from(header.total_extlen) * 8;
    if bytes == 0 {
        return Ok(None);
    }
    let bad = Malformed::Extension { bytes };
    let at = rest.len().checked_sub(bytes).ok_or(bad)?;
    let (before, mut extensions) = rest.split_at_checked(at).ok_or(bad)?;
    *rest = before;
    let mut group = None;
    while !extensions.is_empty() {
        let (head, body) = ExtHeader::read_from_prefix(extensions).map_err(|_| bad)?;
        let body_bytes = (head.size as usize).checked_sub(size_of::<ExtHeader>()).ok_or(bad)?;
        let (body, after) = body.split_at_checked(body_bytes).ok_or(bad)?;
        if head.kind == EXT_GROUPS {
            let (count, groups) = u32::read_from_prefix(body).map_err(|_| bad)?;
            if count > 0 {
                group = Some(u32::read_from_prefix(groups).map_err(|_| bad)?.0);
            }
        }
        extensions = after;
    }
    Ok(group)
}

fn operation<'a>(opcode: Opcode, body: &mut Body<'a>, dialect: Dialect) -> Result<Operation<'a>, Malformed> {
    Ok(match opcode {
        Opcode::Init => {
            let full = InitIn::read_from_prefix(body.fixed).ok();
            Operation::Init {
                args: body.take()?,
                flags2: full.map_or(0, |(full, _)| full.flags2),
            }
        }
        Opcode::Destroy => Operation::Destroy,
        Opcode::Lookup => Operation::Lookup { name: body.name()? },
        Opcode::Forget => Operation::Forget {
            nlookup: body.take::<ForgetIn>()?.nlookup,
        },
        Opcode::BatchForget => {
            let count = body.take::<BatchForgetIn>()?.count;
            let bytes = count.checked_mul(size_of::<ForgetOne>() as u32).ok_or(body.short())?;
            Operation::BatchForget {
                nodes: body.bytes(bytes)?,
            }
        }
        Opcode::Getattr => Operation::Getattr(body.take()?),
        Opcode::Setattr => Operation::Setattr(body.take()?),
        Opcode::Statx => Operation::Statx(body.take()?),
        Opcode::Readlink => Operation::Readlink,
        Opcode::Symlink => Operation::Symlink {
            name: body.name()?,
            target: body.text()?,
        },
        Opcode::Mknod => Operation::Mknod {
            args: body.take()?,
            name: body.name()?,
        },
        Opcode::Mkdir => Operation::Mkdir {
            args: body.take()?,
            name: body.name()?,
        },
        Opcode::Unlink => Operation::Unlink { name: body.name()? },
        Opcode::Rmdir => Operation::Rmdir { name: body.name()? },
        Opcode::Rename => {
            let newdir = body.take::<RenameIn>()?.newdir;
            Operation::Rename {
                newdir,
                flags: 0,
                name: body.name()?,
                newname: body.name()?,
            }
        }
        Opcode::Rename2 => {
            let args = body.take::<Rename2In>()?;
            Operation::Rename {
                newdir: args.newdir,
                flags: args.flags,
                name: body.name()?,
                newname: body.name()?,
            }
        }
        Opcode::Link => Operation::Link {
            oldnodeid: body.take::<LinkIn>()?.oldnodeid,
            newname: body.name()?,
        },
        Opcode::Open => Operation::Open(body.take()?),
        Opcode::Create => Operation::Create {
            args: body.take()?,
            name: body.name()?,
        },
        // A name follows ("/", by no means a name); nothing reads it.
        Opcode::Tmpfile => Operation::Tmpfile { args: body.take()? },
        Opcode::Read => Operation::Read(body.take()?),
        Opcode::Write => {
            let args = body.take::<WriteIn>()?;
            Operation::Write {
                args,
                data: body.bytes(args.size)?,
            }
        }
        Opcode::Statfs => Operation::Statfs,
        Opcode::Release => Operation::Release(body.take()?),
        Opcode::Flush => Operation::Flush(body.take()?),
        Opcode::Fsync => Operation::Fsync(body.take()?),
        Opcode::Opendir => Operation::Opendir(body.take()?),
        Opcode::Readdir => Operation::Readdir(body.take()?),
        Opcode::Readdirplus => Operation::Readdirplus(body.take()?),
        Opcode::Releasedir => Operation::Releasedir(body.take()?),
        Opcode::Fsyncdir => Operation::Fsyncdir(body.take()?),
        Opcode::Setxattr => {
            let args = if dialect.setxattr_ext {
                body.take::<SetxattrIn>()?
            } else {
                let short = body.take::<SetxattrInShort>()?;
                SetxattrIn {
                    size: short.size,
                    flags: short.flags,
                    setxattr_flags: 0,
                    padding: 0,
                }
            };
            Operation::Setxattr {
                args,
                name: body.text()?,
                value: body.bytes(args.size)?,
            }
        }
        Opcode::Getxattr => Operation::Getxattr {
            size: body.take::<GetxattrIn>()?.size,
            name: body.text()?,
        },
        Opcode::Listxattr => Operation::Listxattr {
            size: body.take::<GetxattrIn>()?.size,
        },
        Opcode::Removexattr => Operation::Removexattr { name: body.text()? },
        Opcode::Access => Operation::Access {
            mask: body.take::<AccessIn>()?.mask,
        },
        Opcode::Ioctl => {
            let args = body.take::<IoctlIn>()?;
            Operation::Ioctl {
                args,
                input: body.bytes(args.in_size)?,
            }
        }
        Opcode::Fallocate => Operation::Fallocate(body.take()?),
        Opcode::Lseek => Operation::Lseek(body.take()?),
        Opcode::CopyFileRange => Operation::CopyFileRange {
            args: body.take()?,
            wide: false,
        },
        Opcode::CopyFileRange64 => Operation::CopyFileRange {
            args: body.take()?,
            wide: true,
        },
        Opcode::Syncfs => Operation::Syncfs,
        Opcode::Interrupt => Operation::Interrupt {
            unique: body.take::<InterruptIn>()?.unique,
        },
        Opcode::NotifyReply => Operation::NotifyReply,
        Opcode::Getlk
        | Opcode::Setlk
        | Opcode::Setlkw
        | Opcode::Bmap
        | Opcode::Poll
        | Opcode::Setupmapping
        | Opcode::Removemapping => Operation::Unsupported { opcode: opcode as u32 },
    })
}

/// The nodes of a [`Operation::BatchForget`]: node number and count.
pub fn forgotten(nodes: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    nodes.chunks_exact(size_of::<ForgetOne>()).filter_map(|chunk| {
        let one = ForgetOne::read_from_bytes(chunk).ok()?;
        Some((one.nodeid, one.nlookup))
    })
}

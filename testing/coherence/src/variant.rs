//! Kinds of mounts.

use anyhow::{Result, bail};

/// How the pool is mounted, and by which users it is worked on.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub name: &'static str,
    /// Of `cowshed mount`.
    pub options: &'static str,
    /// Over io_uring, which the administrator's switch has to allow.
    pub is_uring: bool,
    /// The pool is a subvolume, mounted beside the whole volume. Workers use both mounts.
    pub has_two: bool,
    /// It is the mount of an ordinary user, and so is all work.
    pub is_users: bool,
    /// One of the workers is an ordinary user.
    pub has_stranger: bool,
}

const SHARED: Variant = Variant {
    name: "shared",
    options: "suid",
    is_uring: false,
    has_two: false,
    is_users: false,
    has_stranger: true,
};

/// All of them, in the order in which they take turns.
pub const VARIANTS: [Variant; 9] = [
    SHARED,
    Variant {
        name: "private",
        options: "suid,private,transport=dev",
        has_stranger: false,
        ..SHARED
    },
    Variant {
        name: "no_open",
        options: "suid,no_open",
        ..SHARED
    },
    Variant {
        name: "uring",
        options: "suid,transport=uring",
        is_uring: true,
        ..SHARED
    },
    Variant {
        name: "two",
        has_two: true,
        ..SHARED
    },
    Variant {
        name: "user",
        options: "transport=dev",
        is_users: true,
        has_stranger: false,
        ..SHARED
    },
    Variant {
        name: "memory",
        options: "suid,max_memory=16m,noloop",
        ..SHARED
    },
    Variant {
        name: "compress",
        options: "suid,compress=zstd,treelog",
        ..SHARED
    },
    Variant {
        name: "uring_no_open",
        options: "suid,transport=uring,no_open,private",
        is_uring: true,
        has_stranger: false,
        ..SHARED
    },
];

/// Those of the names, or all.
pub fn chosen(names: &[String]) -> Result<Vec<Variant>> {
    let mut chosen = Vec::new();
    for name in names {
        match VARIANTS.iter().find(|variant| variant.name == name) {
            Some(variant) => chosen.push(*variant),
            None => bail!("--variant {name}: there are {}", VARIANTS.map(|v| v.name).join(", ")),
        }
    }
    Ok(if names.is_empty() { VARIANTS.to_vec() } else { chosen })
}

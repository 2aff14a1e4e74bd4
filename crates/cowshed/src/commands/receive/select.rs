//! Which subvolume a stream means by a uuid.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::{Result, bail};
use cowshed_vfs_ioctl::wire::SubvolumePage;
use uuid::Uuid;

use crate::commands::btrfs::calls;
use crate::people::printable;

/// The read-only subvolume that was received under a uuid, or has it, and is not `apart`.
pub fn select(all: &[SubvolumePage], uuid: [u8; 16], apart: Option<u64>) -> Result<&SubvolumePage> {
    let name = Uuid::from_bytes(uuid);
    if uuid == [0; 16] {
        bail!("a subvolume without uuid is asked for");
    }
    let other = |page: &&SubvolumePage| apart != Some(page.id.get());
    let received = |page: &&SubvolumePage| page.received_uuid == uuid;
    let own = |page: &&SubvolumePage| page.uuid == uuid;
    let frozen = |page: &&SubvolumePage| page.is_read_only.get() != 0;
    let named = all.iter().filter(received).chain(all.iter().filter(own));
    let named: Vec<_> = named.filter(other).collect();
    match (named.iter().copied().find(frozen), named.first()) {
        (Some(page), _) => Ok(page),
        (None, Some(page)) => bail!(
            "subvolume {} with the uuid {name} is writable: it may have changed since it was sent or received",
            shown(page)
        ),
        (None, None) => bail!("no subvolume of this volume has the uuid {name}, or was received under it"),
    }
}

/// A subvolume, for messages.
pub fn shown(page: &SubvolumePage) -> String {
    match calls::path_of(page) {
        b"" => format!("{} (top level)", page.id),
        path => printable(OsStr::from_bytes(path)),
    }
}

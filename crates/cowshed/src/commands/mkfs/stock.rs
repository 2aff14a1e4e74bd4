//! What mkfs.btrfs says in words of its own, which scripts look for.

use btrfs_image::MkfsError;

use crate::commands::btrfs::LIKE_VERSION;

/// The line of `--version` of the program called by a name.
pub fn version(name: &str) -> String {
    let own = env!("CARGO_PKG_VERSION");
    format!("{name}, part of {LIKE_VERSION} (cowshed {own})")
}

/// The words of mkfs.btrfs for why no volume was made; `None`: it has none that are looked for.
/// `is_sized`: the caller said how many bytes the volume shall have.
pub fn reason(error: &anyhow::Error, is_sized: bool) -> Option<String> {
    Some(match error.downcast_ref::<MkfsError>()? {
        MkfsError::TooSmall { found, min, .. } if is_sized => format!(
            "ERROR: size {found} is too small to make a usable filesystem\n\
             ERROR: minimum size for a btrfs filesystem is {min}"
        ),
        MkfsError::TooSmall { name, min, .. } => format!(
            "ERROR: '{name}' is too small to make a usable filesystem\n\
             ERROR: minimum size for each btrfs device is {min}"
        ),
        MkfsError::SmallerThanAsked { name, found, wanted } => {
            format!("ERROR: {name} is smaller than requested size, expected {wanted}, found {found}")
        }
        _ => return None,
    })
}

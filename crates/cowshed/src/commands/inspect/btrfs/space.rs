//! `inspect space`: the account of a mounted volume's space.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use cowshed_vfs_ioctl::wire::{self, SpacePage};
use serde_json::{Value, json};

use crate::commands::extents::is_unknown;
use crate::ioctl;
use crate::people::size_text;

#[derive(Args, Debug)]
pub struct SpaceArgs {
    /// A mount point, or a file on a mount
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &SpaceArgs) -> Result<u8> {
    let page = page_of(&args.path).with_context(|| args.path.display().to_string())?;
    let text = match args.json {
        true => format!("{:#}\n", page_json(&page)),
        false => page_text(&page),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(0)
}

fn page_of(path: &Path) -> Result<SpacePage> {
    // Opening a pipe must not wait for a process at its other end.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut page = SpacePage::default();
    match ioctl::call(&file, wire::SPACE, &mut page) {
        Ok(_) => Ok(page),
        Err(error) if is_unknown(&error) => {
            bail!("not on a mount of cowshed's, or of a version without this account")
        }
        Err(error) => Err(error.into()),
    }
}

fn name(bytes: &wire::Name) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn page_text(page: &SpacePage) -> String {
    let size = |n: zerocopy::little_endian::U64| size_text(n.get());
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:<12} {:>9} {:>9} {:>9} {:>9}",
        "space", "total", "free", "pinned", "addable"
    );
    for pool in page.pools.iter().filter(|pool| pool.name[0] != 0) {
        let _ = writeln!(
            text,
            "{:<12} {:>9} {:>9} {:>9} {:>9}",
            name(&pool.name),
            size(pool.total_bytes),
            size(pool.free_bytes),
            size(pool.pinned_bytes),
            size(pool.addable_bytes)
        );
    }
    let lines = [
        ("data", page.data_reserved_bytes, "not written yet"),
        (
            "operations",
            page.metadata_reserved_bytes,
            "metadata of operations under way",
        ),
        ("deletion", page.deletion_reserve_bytes, "metadata kept for deletions"),
        (
            "pending",
            page.pending_held_bytes,
            "metadata of what the next commit writes",
        ),
    ];
    let _ = writeln!(text, "\n{:<12} {:>9}", "promised", "bytes");
    for (what, bytes, why) in lines {
        let _ = writeln!(text, "{what:<12} {:>9}  {why}", size(bytes));
    }
    let _ = writeln!(
        text,
        "\n{} items of {} are pending; the leaves of {} were counted. A leaf for each: {}",
        page.pending_items,
        size(page.pending_bytes),
        page.pending_counted_items,
        size(page.pending_held_by_items_bytes),
    );
    let _ = writeln!(
        text,
        "\n{:<12} {:>9} {:>9} {:>12} {:>9} {:>12} {:>9}",
        "reservations", "now", "peak", "granted", "refused", "new items", "bytes"
    );
    for purpose in page.purposes.iter().filter(|purpose| purpose.name[0] != 0) {
        let bytes = purpose.bytes.get();
        let sign = if bytes < 0 { "-" } else { "" };
        let _ = writeln!(
            text,
            "{:<12} {:>9} {:>9} {:>12} {:>9} {:>12} {:>9}",
            name(&purpose.name),
            size(purpose.held_bytes),
            size(purpose.peak_bytes),
            purpose.granted,
            purpose.refused,
            purpose.items,
            format!("{sign}{}", size_text(bytes.unsigned_abs()))
        );
    }
    text
}

fn page_json(page: &SpacePage) -> Value {
    let pools = page.pools.iter().filter(|pool| pool.name[0] != 0).map(|pool| {
        json!({
            "name": name(&pool.name),
            "total_bytes": pool.total_bytes.get(),
            "free_bytes": pool.free_bytes.get(),
            "pinned_bytes": pool.pinned_bytes.get(),
            "addable_bytes": pool.addable_bytes.get(),
        })
    });
    let purposes = page
        .purposes
        .iter()
        .filter(|purpose| purpose.name[0] != 0)
        .map(|purpose| {
            json!({
                "name": name(&purpose.name),
                "held_bytes": purpose.held_bytes.get(),
                "peak_bytes": purpose.peak_bytes.get(),
                "granted": purpose.granted.get(),
                "refused": purpose.refused.get(),
                "items": purpose.items.get(),
                "bytes": purpose.bytes.get(),
            })
        });
    json!({
        "block_bytes": page.block_bytes.get(),
        "pools": pools.collect::<Vec<_>>(),
        "data_reserved_bytes": page.data_reserved_bytes.get(),
        "metadata_reserved_bytes": page.metadata_reserved_bytes.get(),
        "deletion_reserve_bytes": page.deletion_reserve_bytes.get(),
        "pending": {
            "items": page.pending_items.get(),
            "bytes": page.pending_bytes.get(),
            "counted_items": page.pending_counted_items.get(),
            "held_bytes": page.pending_held_bytes.get(),
            "held_by_items_bytes": page.pending_held_by_items_bytes.get(),
        },
        "reservations": purposes.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use cowshed_vfs::{PendingAccount, PoolAccount, PurposeAccount, SpaceAccount};

    use super::*;

    #[test]
    fn account_is_shown_with_each_pool_and_purpose() {
        let account = SpaceAccount {
            block_bytes: 16384,
            pools: vec![PoolAccount {
                name: "metadata",
                total_bytes: 1 << 30,
                free_bytes: 100 << 20,
                ..PoolAccount::default()
            }],
            pending: PendingAccount {
                items: 5000,
                held_bytes: 3 << 20,
                held_by_items_bytes: 300 << 20,
                ..PendingAccount::default()
            },
            purposes: vec![PurposeAccount {
                name: "unlink",
                peak_bytes: 96 << 10,
                granted: 17,
                refused: 2,
                items: -3,
                bytes: -2048,
                ..PurposeAccount::default()
            }],
            ..SpaceAccount::default()
        };
        let page = SpacePage::from(&account);
        let text = page_text(&page);
        let line = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start));
            line.unwrap_or_else(|| panic!("no {start} in {text}"))
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(line("metadata"), "metadata 1.0G 100M 0B 0B");
        assert_eq!(line("pending"), "pending 3.0M metadata of what the next commit writes");
        assert_eq!(line("unlink"), "unlink 0B 96K 17 2 -3 -2.0K");
        assert!(text.contains("A leaf for each: 300M"), "{text}");
        let json = page_json(&page);
        assert_eq!(json["pools"].as_array().map(Vec::len), Some(1));
        assert_eq!(json["reservations"][0]["items"], -3);
        assert_eq!(json["pending"]["held_by_items_bytes"], 300 << 20);
    }
}

//! `inspect super` of an XFS volume: the first superblock, or the copies of all groups.

use anyhow::{Context, Result, bail};
use xfs_format::Superblock;
use xfs_format::render::superblock_report;
use zerocopy::FromBytes as _;

use super::super::btrfs::superblock::SuperArgs;
use super::printer::Printer;
use super::reader::{self, Reader};

pub fn run(args: &SuperArgs) -> Result<u8> {
    if args.targets().len() > 1 {
        bail!("an XFS volume lies on one device");
    }
    let target = args.target().context("a target is needed")?;
    let mut printer = Printer::new(args.is_json())?;
    let device = reader::open_device(target)?;
    let head = reader::head(&*device)?;
    // Shown although it may be damaged: that is when it is looked at.
    let Ok((first, _)) = Superblock::read_from_prefix(&head) else {
        bail!("{}: too small for a superblock", target.display());
    };
    if let Err(error) = Superblock::verify(&head) {
        printer.bad(&anyhow::Error::new(error).context("the first superblock"));
    }
    let groups = match args.copy() {
        Some(group) => group..group + 1,
        None if args.shows_all() => 0..first.agcount.get(),
        None => 0..1,
    };
    if groups.contains(&0) {
        printer.show("superblock", &[("group", 0)], &superblock_report(&first))?;
    }
    if groups.end > 1 {
        let reader = Reader::open(target)?;
        reader.groups(Some(groups.end - 1))?;
        for group in groups.filter(|group| *group > 0) {
            let (bytes, _) = reader.header(xfs_format::AgNumber(group), 0)?;
            match Superblock::verify_copy(&bytes) {
                Ok(copy) => printer.show("superblock", &[("group", group.into())], &superblock_report(&copy))?,
                Err(error) => printer.bad(&anyhow::Error::new(error).context(format!("superblock of group {group}"))),
            }
        }
    }
    printer.finish()
}

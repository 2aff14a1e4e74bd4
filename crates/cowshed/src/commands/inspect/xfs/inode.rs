//! `inspect inode`: an inode's core and both of its forks.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use xfs_format::render::inode_report;

use super::printer::Printer;
use super::reader::Reader;

#[derive(Args, Debug)]
pub struct InodeArgs {
    /// Image file or block device
    pub target: PathBuf,
    /// Numbers of inodes, or absolute paths
    #[arg(required = true, value_name = "INODE")]
    inodes: Vec<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &InodeArgs) -> Result<u8> {
    let reader = Reader::open(&args.target)?;
    let mut printer = Printer::new(args.json)?;
    for text in &args.inodes {
        let found = reader
            .number(&args.target, text)
            .and_then(|ino| Ok((ino, reader.inode(ino)?)));
        match found {
            Ok((ino, (daddr, inode))) => {
                let which = [("number", ino.get()), ("daddr", daddr.get())];
                printer.show("inode", &which, &inode_report(&inode, &reader.geometry))?;
            }
            Err(error) => printer.bad(&error),
        }
    }
    printer.finish()
}

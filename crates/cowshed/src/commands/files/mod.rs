//! Commands on files in images, `IMAGE:/PATH`, with the flags, messages and exit codes of
//! coreutils. Nothing is mounted and no privileges are needed. See `docs/design/offline.md`.

mod attributes;
mod copy;
mod cp;
#[cfg(test)]
mod crash_tests;
mod find;
mod finish;
mod host;
mod image;
mod make;
mod modes;
mod mv;
mod operands;
mod out;
mod parents;
mod rm;
mod session;
pub mod shell;
mod show;
mod side;
mod walk;
mod xattrs;

use anyhow::Result;
use clap::Subcommand;

use crate::lazy_args::Lazy;
pub use out::{Restoring, restore};
use session::Session;
pub use session::{Base, reason};
pub use show::human;

#[derive(Subcommand, Debug)]
pub enum FileCommand {
    /// Show directories of an image as a tree
    Tree(Lazy<show::TreeArgs>),
    /// Find files in an image by name, type, size and more
    Find(Lazy<find::FindArgs>),
    /// Show what files of an image take on disk
    Du(Lazy<show::DuArgs>),
    /// Show the free space of an image
    Df(Lazy<show::DfArgs>),
    /// Copy files between the host and images, or within an image
    Cp(Lazy<cp::CpArgs>),
    /// Move files within an image, or between the host and images
    Mv(Lazy<mv::MvArgs>),
    /// Remove files from an image
    Rm(Lazy<rm::RmArgs>),
    /// Remove empty directories from an image
    Rmdir(Lazy<rm::RmdirArgs>),
    /// Make directories in an image
    Mkdir(Lazy<make::MkdirArgs>),
    /// Make hard or symbolic links in an image
    Ln(Lazy<make::LnArgs>),
    /// Print the targets of symbolic links in an image
    Readlink(Lazy<make::ReadlinkArgs>),
    /// Cut or extend files in an image
    Truncate(Lazy<make::TruncateArgs>),
    /// Change permissions of files in an image
    Chmod(Lazy<attributes::ChmodArgs>),
    /// Change owners of files in an image
    Chown(Lazy<attributes::ChownArgs>),
    /// Set times of files in an image, or make them
    Touch(Lazy<attributes::TouchArgs>),
    /// Set or remove extended attributes in an image
    Setfattr(Lazy<xattrs::SetfattrArgs>),
    /// Print extended attributes in an image
    Getfattr(Lazy<xattrs::GetfattrArgs>),
    /// Change flags of files in an image
    Chattr(Lazy<xattrs::ChattrArgs>),
    /// Print flags of files in an image
    Lsattr(Lazy<xattrs::LsattrArgs>),
    /// Copy what is in an image to a directory
    Extract(Lazy<out::ExtractArgs>),
    /// Write what is in an image as an archive, a container image or a send stream
    Export(Lazy<out::ExportArgs>),
}

impl FileCommand {
    /// `du --subvolumes`, which is about a volume and no files: its arguments.
    pub fn du_of_subvolumes(&self) -> Option<&show::DuArgs> {
        match self {
            Self::Du(args) if args.subvolumes => Some(args),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Tree(_) => "tree",
            Self::Find(_) => "find",
            Self::Du(_) => "du",
            Self::Df(_) => "df",
            Self::Cp(_) => "cp",
            Self::Mv(_) => "mv",
            Self::Rm(_) => "rm",
            Self::Rmdir(_) => "rmdir",
            Self::Mkdir(_) => "mkdir",
            Self::Ln(_) => "ln",
            Self::Readlink(_) => "readlink",
            Self::Truncate(_) => "truncate",
            Self::Chmod(_) => "chmod",
            Self::Chown(_) => "chown",
            Self::Touch(_) => "touch",
            Self::Setfattr(_) => "setfattr",
            Self::Getfattr(_) => "getfattr",
            Self::Chattr(_) => "chattr",
            Self::Lsattr(_) => "lsattr",
            Self::Extract(_) => "extract",
            Self::Export(_) => "export",
        }
    }
}

/// Runs a command. The exit code is 0 or 1; after an error that ends the command, nothing of it is
/// on disk.
pub fn run(command: &FileCommand, base: &Base) -> Result<u8> {
    crate::log::to_terminal(0);
    run_in(command, Session::new(command.name(), base))
}

fn run_in(command: &FileCommand, session: Session<'_>) -> Result<u8> {
    let done = dispatch(command, &session);
    finish::finish(session, done)
}

fn dispatch(command: &FileCommand, session: &Session<'_>) -> Result<()> {
    match command {
        FileCommand::Tree(args) => show::run_tree(args, session),
        FileCommand::Find(args) => find::run(args, session),
        FileCommand::Du(args) => show::run_du(args, session),
        FileCommand::Df(args) => show::run_df(args, session),
        FileCommand::Cp(args) => cp::run(args, session),
        FileCommand::Mv(args) => mv::run(args, session),
        FileCommand::Rm(args) => rm::run(args, session),
        FileCommand::Rmdir(args) => rm::run_rmdir(args, session),
        FileCommand::Mkdir(args) => make::run_mkdir(args, session),
        FileCommand::Ln(args) => make::run_ln(args, session),
        FileCommand::Readlink(args) => make::run_readlink(args, session),
        FileCommand::Truncate(args) => make::run_truncate(args, session),
        FileCommand::Chmod(args) => attributes::run_chmod(args, session),
        FileCommand::Chown(args) => attributes::run_chown(args, session),
        FileCommand::Touch(args) => attributes::run_touch(args, session),
        FileCommand::Setfattr(args) => xattrs::run_setfattr(args, session),
        FileCommand::Getfattr(args) => xattrs::run_getfattr(args, session),
        FileCommand::Chattr(args) => xattrs::run_chattr(args, session),
        FileCommand::Lsattr(args) => xattrs::run_lsattr(args, session),
        FileCommand::Extract(args) => out::run_extract(args, session),
        FileCommand::Export(args) => out::run_export(args, session),
    }
}

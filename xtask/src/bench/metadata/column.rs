//! The sides that are compared, each a column of the tables, and a mount of one of them.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::super::side::{self, Mounted, Side};
use super::super::switch::UringOn;
use super::empty::EmptyServer;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    Kernel,
    Uring,
    Dev,
    /// Over io_uring, with `no_open` and `noxattr`: the fewest requests.
    Fewest,
    /// Over io_uring, for one user: Cowshed checks permissions.
    Private,
    EmptyUring,
    EmptyDev,
    /// The engine without a mount. Only some lines have it.
    InProcess,
}

impl Column {
    pub const ALL: [Column; 8] = [
        Column::Kernel,
        Column::Uring,
        Column::Dev,
        Column::Fewest,
        Column::Private,
        Column::EmptyUring,
        Column::EmptyDev,
        Column::InProcess,
    ];

    /// As `--sides` takes it.
    pub fn key(self) -> &'static str {
        match self {
            Column::Kernel => "kernel",
            Column::Uring => "uring",
            Column::Dev => "dev",
            Column::Fewest => "fewest",
            Column::Private => "private",
            Column::EmptyUring => "empty-uring",
            Column::EmptyDev => "empty-dev",
            Column::InProcess => "in-process",
        }
    }

    /// As the tables call it.
    pub fn title(self) -> &'static str {
        match self {
            Column::Kernel => "kernel",
            Column::Uring => "Cowshed, io_uring",
            Column::Dev => "Cowshed, /dev/fuse",
            Column::Fewest => "Cowshed, io_uring, no_open and noxattr",
            Column::Private => "Cowshed, io_uring, private",
            Column::EmptyUring => "empty server, io_uring",
            Column::EmptyDev => "empty server, /dev/fuse",
            Column::InProcess => "Cowshed, in process",
        }
    }

    pub fn parse(key: &str) -> Result<Column, String> {
        let found = Column::ALL.into_iter().find(|column| column.key() == key);
        let keys = || Column::ALL.map(Column::key).join(", ");
        found.ok_or_else(|| format!("{key}: not one of {}", keys()))
    }

    /// Is it a mount of an empty file system in memory?
    pub fn is_empty_server(self) -> bool {
        matches!(self, Column::EmptyUring | Column::EmptyDev)
    }

    pub fn has_xattrs(self) -> bool {
        self != Column::Fewest
    }

    fn is_over_uring(self) -> bool {
        matches!(
            self,
            Column::Uring | Column::Fewest | Column::Private | Column::EmptyUring
        )
    }

    /// Why it cannot be measured on this machine.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Column::Kernel if !side::kernel_can() => Some("no btrfs in the kernel, no mkfs.btrfs, or not root"),
            _ if self.is_over_uring() && !UringOn::is_possible() => Some("no FUSE over io_uring in the kernel"),
            _ => None,
        }
    }
}

/// A mount of one side, freshly made. Goes away with everything it made, also where a line fails.
pub struct Place {
    column: Column,
    mount: Mount,
}

enum Mount {
    Volume(Mounted),
    Empty(EmptyServer),
}

impl Place {
    /// `options`: further mount options of our own sides.
    pub fn new(column: Column, dir: &Path, options: &str) -> Result<Place> {
        let _on = Place::switch(column)?;
        let ours = |own: &str| {
            let options = [own, options];
            let given: Vec<&str> = options.into_iter().filter(|option| !option.is_empty()).collect();
            Mounted::new(Side::Ours, dir, &given.join(","))
        };
        let mount = match column {
            Column::Kernel => Mount::Volume(Mounted::new(Side::Kernel, dir, "")?),
            Column::Uring => Mount::Volume(ours("transport=uring")?),
            Column::Dev => Mount::Volume(ours("transport=dev")?),
            Column::Fewest => Mount::Volume(ours("transport=uring,no_open,noxattr")?),
            Column::Private => Mount::Volume(ours("transport=uring,private")?),
            Column::EmptyUring => Mount::Empty(EmptyServer::new(dir, "uring")?),
            Column::EmptyDev => Mount::Empty(EmptyServer::new(dir, "dev")?),
            Column::InProcess => bail!("in process there is no mount"),
        };
        Ok(Place { column, mount })
    }

    fn switch(column: Column) -> Result<Option<UringOn>> {
        column.is_over_uring().then(UringOn::new).transpose()
    }

    pub fn mountpoint(&self) -> PathBuf {
        match &self.mount {
            Mount::Volume(mounted) => mounted.mountpoint(),
            Mount::Empty(server) => server.mountpoint().to_owned(),
        }
    }

    /// Unmounts and mounts again: no file system has anything cached afterwards.
    pub fn remount(&mut self) -> Result<()> {
        let _on = Place::switch(self.column)?;
        match &mut self.mount {
            Mount::Volume(mounted) => mounted.remount(),
            Mount::Empty(server) => server.remount(),
        }
    }

    pub fn finish(self) -> Result<()> {
        match self.mount {
            Mount::Volume(mounted) => mounted.finish(),
            Mount::Empty(server) => server.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_parses_as_it_prints() {
        for column in Column::ALL {
            assert_eq!(Column::parse(column.key()), Ok(column));
        }
        assert!(Column::parse("xfs").unwrap_err().contains("empty-dev"));
    }
}

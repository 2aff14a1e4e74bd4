//! Contents that an image file shares with the files of its sources, on file systems of the host
//! that can (btrfs, XFS, bcachefs): on the same one as the image.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use btrfs_image::MkfsError;
use btrfs_image::build::Cloner;
use cowshed_source::Content;
use rustix::fs::Mode;

use super::linux_calls::{copy_file_range, ioctl_ficlone, unnamed};
use super::recipe::{Recipe, Reflink};

/// Shares blocks of the sources with an image file.
pub(super) struct Reflinks {
    image: File,
    path: PathBuf,
    /// Where the volume begins in it.
    start_bytes: u64,
    /// What cannot be shared is copied.
    is_optional: bool,
    /// File systems of the sources, by device number, which were tried: whether they share.
    tried: Mutex<HashMap<u64, bool>>,
    shared_bytes: AtomicU64,
}

impl Reflinks {
    /// For an image that is there already, opened by `open_path`, whose name is or will be `path`;
    /// `None` where nothing is to be shared.
    pub(super) fn of(recipe: &Recipe, path: &Path, open_path: &Path) -> io::Result<Option<Self>> {
        if recipe.reflink == Reflink::Never {
            return Ok(None);
        }
        Ok(Some(Self {
            image: File::options().read(true).write(true).open(open_path)?,
            path: path.to_owned(),
            start_bytes: recipe.place.around().0,
            is_optional: recipe.reflink == Reflink::IfPossible,
            tried: Mutex::default(),
            shared_bytes: AtomicU64::new(0),
        }))
    }

    /// Bytes that were shared.
    pub(super) fn shared_bytes(&self) -> u64 {
        self.shared_bytes.load(Ordering::Relaxed)
    }

    /// Do the two files lie on file systems that share? Errors: they do not, and must.
    fn try_once(&self, source: &File) -> io::Result<bool> {
        let mut tried = self.tried.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dev = source.metadata()?.dev();
        if let Some(can) = tried.get(&dev) {
            return Ok(*can);
        }
        // A file without a name, which nothing is left of.
        let dir = match self.path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let probe = unnamed(dir, Mode::RUSR | Mode::WUSR);
        let cloned = probe.and_then(|probe| ioctl_ficlone(&probe, source));
        if let (Err(error), false) = (cloned, self.is_optional) {
            return Err(error.into());
        }
        tried.insert(dev, cloned.is_ok());
        Ok(cloned.is_ok())
    }

    /// Such a copy shares wherever that is possible, and `try_once` has seen that it is.
    fn copy(&self, source: &File, within: Range<u64>, to_bytes: u64) -> io::Result<()> {
        let (mut from, mut to) = (within.start, to_bytes);
        while from < within.end {
            let len = usize::try_from(within.end - from).unwrap_or(usize::MAX);
            if copy_file_range(source, Some(&mut from), &self.image, Some(&mut to), len)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

impl Cloner for Reflinks {
    fn share(&self, content: &Content, within: Range<u64>, device_offset_bytes: u64) -> Result<bool, MkfsError> {
        let opened = content.open()?;
        let Some(file) = opened.host_file() else {
            return Ok(false);
        };
        let to = self.start_bytes + device_offset_bytes;
        let len_bytes = within.end - within.start;
        let shared = self.try_once(file).and_then(|can| match can {
            true => self.copy(file, within, to).map(|()| true),
            false => Ok(false),
        });
        if !shared.map_err(|source| opened.refuse_sharing(source))? {
            return Ok(false);
        }
        self.shared_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        // Its checksums are those of what was read before.
        opened.check_unchanged()?;
        Ok(true)
    }
}

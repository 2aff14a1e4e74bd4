//! A file that appears when it is complete.
//!
//! Until then it has no name where the file system can do that (`O_TMPFILE`), so that nothing of it
//! is left whatever ends the process. Elsewhere it has a hidden name beside its own, which goes
//! when it is given up; [`remove_unfinished`] is for a process that a signal ends.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, linkat};

use super::linux_calls;

/// Files that this process has begun: several may have the same name.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// The hidden names that are in use.
static HIDDEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn hidden_names() -> MutexGuard<'static, Vec<PathBuf>> {
    HIDDEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file in the making. Unless it is finished, nothing of it stays.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: File,
    /// `None`: it has no name.
    hidden: Option<PathBuf>,
}

impl NewFile {
    /// An empty file that is to become `path`, open to be read and written.
    pub fn create(path: impl AsRef<Path>) -> Result<NewFile> {
        let path = path.as_ref();
        if path.file_name().is_none() {
            return Err(ErrorKind::InvalidInput.into());
        }
        match unnamed(dir_of(path))? {
            Some(file) => Ok(NewFile {
                path: path.to_owned(),
                file,
                hidden: None,
            }),
            None => Self::create_hidden(path),
        }
    }

    fn create_hidden(path: &Path) -> Result<NewFile> {
        let hidden = hidden_name(path);
        let mut names = hidden_names();
        let file = File::options().read(true).write(true).create_new(true).open(&hidden)?;
        names.push(hidden.clone());
        Ok(NewFile {
            path: path.to_owned(),
            file,
            hidden: Some(hidden),
        })
    }

    /// The directory in which it appears.
    pub fn dir(&self) -> &Path {
        dir_of(&self.path)
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path by which this process can open it meanwhile.
    pub fn open_path(&self) -> PathBuf {
        match &self.hidden {
            Some(hidden) => hidden.clone(),
            None => descriptor_path(&self.file),
        }
    }

    /// Gives it its name, in place of a file that has it. Everything is on disk when this returns.
    pub fn finish(mut self) -> Result<()> {
        self.file.sync_all()?;
        if self.hidden.is_none() && !self.link(&self.path)? {
            let hidden = hidden_name(&self.path);
            hidden_names().push(hidden.clone());
            self.hidden = Some(hidden.clone());
            if !self.link(&hidden)? {
                return Err(ErrorKind::AlreadyExists.into());
            }
        }
        if let Some(hidden) = &self.hidden {
            fs::rename(hidden, &self.path)?;
        }
        self.forget_hidden();
        File::open(dir_of(&self.path))?.sync_all()
    }

    /// False: there is a file of that name.
    fn link(&self, path: &Path) -> Result<bool> {
        match linkat(CWD, descriptor_path(&self.file), CWD, path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn forget_hidden(&mut self) {
        if let Some(hidden) = self.hidden.take() {
            hidden_names().retain(|name| *name != hidden);
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // The first error is the one to report.
            let _ = fs::remove_file(hidden);
        }
        self.forget_hidden();
    }
}

/// Removes what this process has begun and not finished, for a process that ends without returning,
/// as by a signal.
pub fn remove_unfinished() {
    for hidden in hidden_names().drain(..) {
        let _ = fs::remove_file(hidden);
    }
}

fn dir_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

fn hidden_name(path: &Path) -> PathBuf {
    let mut hidden = OsString::from(".");
    hidden.push(path.file_name().unwrap_or_default());
    let nth = BEGUN.fetch_add(1, Ordering::Relaxed);
    hidden.push(format!(".{}-{nth}.part", std::process::id()));
    path.with_file_name(hidden)
}

fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A file without a name. `None`: the file system has none, or there is no /proc to name it by
/// later.
fn unnamed(dir: &Path) -> Result<Option<File>> {
    let file = match linux_calls::unnamed(dir, Mode::from_raw_mode(0o666)) {
        Ok(file) => file,
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL) => return Ok(None),
        Err(error) => return Err(Error::from(error)),
    };
    let is_named_by_proc = fs::metadata(descriptor_path(&file)).is_ok();
    Ok(is_named_by_proc.then_some(file))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn names(dir: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    }

    /// `remove_unfinished` means all files of the process, those of other tests, too.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn file_appears_when_it_is_finished_and_replaces_what_is_there() {
        let _alone = ALONE.lock();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for contents in ["first", "second"] {
            let unnamed: fn(&Path) -> Result<NewFile> = |path| NewFile::create(path);
            for create in [unnamed, NewFile::create_hidden] {
                let before = fs::read(&path).ok();
                let new = create(&path).unwrap();
                new.file().write_all(contents.as_bytes()).unwrap();
                assert_eq!(fs::read(&path).ok(), before);
                assert_eq!(fs::read(new.open_path()).unwrap(), contents.as_bytes());
                new.finish().unwrap();
                assert_eq!(fs::read(&path).unwrap(), contents.as_bytes());
                assert_eq!(names(dir.path()), ["f"]);
                drop(create(&path).unwrap());
                assert_eq!(names(dir.path()), ["f"]);
            }
        }
    }

    #[test]
    fn hidden_file_goes_when_the_process_is_ended() {
        let _alone = ALONE.lock();
        let dir = tempfile::tempdir().unwrap();
        let new = NewFile::create_hidden(&dir.path().join("f")).unwrap();
        assert_eq!(names(dir.path()).len(), 1);
        remove_unfinished();
        assert_eq!(names(dir.path()).len(), 0);
        assert!(new.finish().is_err());
    }
}

//! The atomic groups of a subject: those of the library, which hold writes to any files, and those
//! that belong to a handle.

use cowshed_model::{Answer, At, GROUPS, Op, Outcome};
use cowshed_vfs::{Error, FileKind, FileSystem, Handle, Ioctl, NodeId, Result, Volume, WriteFlags};

use crate::open_group::OpenGroup;
use crate::subject::{READ_WRITE, ROOT, Subject, commit_error};

const START_ATOMIC_WRITE: u32 = 0xf501;
const COMMIT_ATOMIC_WRITE: u32 = 0xf502;
const ABORT_ATOMIC_WRITE: u32 = 0xf505;

impl Subject {
    /// Forgets all groups, and lets go of their files.
    pub fn drop_groups(&mut self) {
        (0..GROUPS).for_each(|group| self.drop_group(group));
    }

    fn drop_group(&mut self, group: u8) {
        let OpenGroup { group, files } = std::mem::take(&mut self.groups[usize::from(group)]);
        drop(group);
        for (node, handle) in files {
            self.fs.release(node, handle);
        }
    }

    pub(crate) fn stage(&mut self, group: u8, at: &At, offset: u64, data: &[u8]) -> Outcome {
        match Op::is_of_handle(group) {
            true => self.write_by_handle(group, at, offset, data)?,
            false => self.write_by_library(group, at, offset, data)?,
        }
        Ok(Answer::Done)
    }

    /// Each file is held open until the group ends.
    fn write_by_library(&mut self, group: u8, at: &At, offset: u64, data: &[u8]) -> Result<()> {
        let fs = &self.fs;
        let taken = self.groups[usize::from(group)].group.take();
        let mut staged = match taken {
            Some(staged) => staged,
            None => fs.volume().clone().begin_group()?,
        };
        let result = self.with(at, |node| {
            staged.write(&ROOT, node, offset, data, WriteFlags::empty())?;
            fs.open(&ROOT, node, &READ_WRITE).map(|opened| (node, opened.handle))
        });
        let open = &mut self.groups[usize::from(group)];
        open.group = Some(staged);
        open.files.push(result?);
        Ok(())
    }

    fn write_by_handle(&mut self, group: u8, at: &At, offset: u64, data: &[u8]) -> Result<()> {
        let fs = &self.fs;
        let held = self.groups[usize::from(group)].files.first().copied();
        let (node, handle) = match held {
            Some(held) => held,
            None => self.with(at, |node| {
                match self.attr(node)?.kind {
                    FileKind::Regular => {}
                    FileKind::Directory => return Err(Error::IsDirectory),
                    _ => return Err(Error::Invalid),
                }
                let handle = fs.open(&ROOT, node, &READ_WRITE)?.handle;
                let started = self.atomic_ioctl((node, handle), START_ATOMIC_WRITE);
                started
                    .map(|()| (node, handle))
                    .inspect_err(|_| fs.release(node, handle))
            })?,
        };
        self.groups[usize::from(group)].files = vec![(node, handle)];
        let written = self.fs.write(&ROOT, node, handle, offset, data, WriteFlags::empty())?;
        assert_eq!(written, data.len(), "a group takes all of a write");
        Ok(())
    }

    fn atomic_ioctl(&self, (node, handle): (NodeId, Handle), cmd: u32) -> Result<()> {
        let call = Ioctl {
            cmd,
            arg: 0,
            compat: false,
        };
        self.fs.ioctl(&ROOT, node, handle, &call, &[], &mut []).map(drop)
    }

    pub(crate) fn end_group(&mut self, group: u8, commit: bool) -> Outcome {
        let open = &mut self.groups[usize::from(group)];
        let result = match (open.group.take(), open.files.first()) {
            (Some(group), _) if commit => group.commit(Handle::NONE).map_err(|e| commit_error(&e)),
            (None, Some(held)) => {
                let how = if commit {
                    COMMIT_ATOMIC_WRITE
                } else {
                    ABORT_ATOMIC_WRITE
                };
                let held = *held;
                self.atomic_ioctl(held, how)
            }
            _ => Ok(()),
        };
        self.drop_group(group);
        result.map(|()| Answer::Done)
    }

    /// Reads through the handle of the group, which sees what is staged.
    pub(crate) fn read_staged(&self, group: u8, offset: u64, len: u32) -> Outcome {
        let files = &self.groups[usize::from(group)].files;
        let (node, handle) = *files.first().ok_or(Error::BadHandle)?;
        let mut bytes = vec![0xee; len as usize];
        let read = self.fs.read(&ROOT, node, handle, offset, &mut bytes)?;
        bytes.truncate(read);
        Ok(Answer::Bytes(bytes))
    }
}

//! Atomic groups: writes that are collected, whole blocks at a time, and then happen all at once or
//! not at all. Several may be open at once, also on the same file: each has its blocks as they were
//! when it first wrote into them, so that where two have the same block the last to end decides. A
//! handle's group is the only one that handles have on its file.

use cowshed_vfs::{Error, Result, Timestamp};

use crate::{Answer, At, Content, Id, Model, Op, Outcome, pattern};

impl Model {
    /// Errors: as of writing; `Busy` (another handle has a group on the file).
    pub(crate) fn stage(&mut self, (group, at): (u8, &At), offset: u64, (len, fill): (u32, u64)) -> Outcome {
        let id = match self.groups.get(&group).and_then(|group| group.handle) {
            Some(id) => id,
            None => self.resolve(at)?,
        };
        let content = self.node_mut(id).content()?.clone();
        if Op::is_of_handle(group) {
            let mut others = self.groups.iter().filter(|(number, _)| **number != group);
            if others.any(|(_, other)| other.handle == Some(id)) {
                return Err(Error::Busy);
            }
            self.groups.entry(group).or_default().handle = Some(id);
        }
        if len == 0 {
            return Ok(Answer::Done);
        }
        let end = offset.checked_add(u64::from(len));
        if end.is_none_or(|end| end > Self::FILE_BYTES_MAX) {
            return Err(Error::FileTooBig);
        }
        let staged = self.groups.entry(group).or_default().files.entry(id).or_default();
        staged.write(&content, offset, &pattern(fill, len as usize));
        Ok(Answer::Done)
    }

    pub(crate) fn end_group(&mut self, group: u8, commit: bool, now: Timestamp) -> Outcome {
        let happens = self.groups.get(&group).filter(|_| commit).cloned().unwrap_or_default();
        for (id, staged) in happens.files {
            let node = self.node_mut(id);
            staged.happen(node.content()?);
            node.changed(now);
        }
        self.drop_group(group);
        Ok(Answer::Done)
    }

    /// What the handle of a group reads: what it has staged, in front of what the file has. Errors:
    /// `BadHandle` (none is open).
    pub(crate) fn read_staged(&mut self, group: u8, offset: u64, len: u32) -> Outcome {
        let group = self.groups.get(&group).ok_or(Error::BadHandle)?;
        let id = group.handle.ok_or(Error::BadHandle)?;
        let mut content = self.file_content(id)?.clone();
        if let Some(staged) = group.files.get(&id) {
            staged.happen(&mut content);
        }
        Ok(Answer::Bytes(content.read(offset, u64::from(len))))
    }

    /// Forgets a group. What it alone held goes.
    pub fn drop_group(&mut self, group: u8) {
        let Some(group) = self.groups.remove(&group) else {
            return;
        };
        for id in group.files.into_keys().chain(group.handle) {
            if self.exists(id) {
                self.reap(id);
            }
        }
    }

    /// The groups that are open.
    pub fn open_groups(&self) -> impl Iterator<Item = u8> {
        self.groups.keys().copied()
    }

    /// How many open groups hold a node.
    pub fn groups_of(&self, id: Id) -> usize {
        self.groups.values().filter(|group| group.holds(id)).count()
    }

    /// The files that an open group has staged writes of.
    pub fn staged_files(&self, group: u8) -> Vec<Id> {
        let files = self.groups.get(&group).into_iter().flat_map(|group| group.files.keys());
        files.copied().collect()
    }

    /// Errors: `IsDirectory`, `Invalid`.
    pub(crate) fn file_content(&self, id: Id) -> Result<&Content> {
        match &self.node(id).body {
            crate::Body::File(content) => Ok(content),
            crate::Body::Dir { .. } => Err(Error::IsDirectory),
            crate::Body::Symlink(_) | crate::Body::Special => Err(Error::Invalid),
        }
    }
}

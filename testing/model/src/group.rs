//! Atomic groups: writes that are collected, whole blocks at a time, and then happen all at once or not at all.

use std::collections::BTreeMap;

use cowshed_vfs::{Error, Result, Timestamp};

use crate::content::Block;
use crate::{Answer, At, BLOCK_BYTES, Content, Id, Model, Outcome, pattern};

/// What a group holds of one file: blocks as they were when the group first wrote into them, and what it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Staged {
    blocks: BTreeMap<u64, Box<Block>>,
    /// The file is at least so long afterwards.
    end: u64,
}

/// The group that is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    files: BTreeMap<Id, Staged>,
}

impl Group {
    pub fn holds(&self, id: Id) -> bool {
        self.files.contains_key(&id)
    }
}

impl Staged {
    fn write(&mut self, content: &Content, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for number in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            let start = number * BLOCK_BYTES;
            let block = self
                .blocks
                .entry(number)
                .or_insert_with(|| Box::new(content.block(number)));
            let (from, to) = (offset.max(start), end.min(start + BLOCK_BYTES));
            block[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        }
        self.end = self.end.max(end);
    }

    fn happen(&self, content: &mut Content) {
        let size = content.size_bytes.max(self.end);
        content.size_bytes = size;
        for (number, block) in &self.blocks {
            let start = number * BLOCK_BYTES;
            let len = size.saturating_sub(start).min(BLOCK_BYTES) as usize;
            content.write(start, &block[..len]);
        }
    }
}

impl Model {
    pub(crate) fn stage(&mut self, at: &At, offset: u64, (len, fill): (u32, u64)) -> Outcome {
        let id = self.resolve(at)?;
        let content = self.node_mut(id).content()?.clone();
        if len == 0 {
            return Ok(Answer::Done);
        }
        let end = offset.checked_add(u64::from(len));
        if end.is_none_or(|end| end > Self::FILE_BYTES_MAX) {
            return Err(Error::FileTooBig);
        }
        let staged = self.group.get_or_insert_default().files.entry(id).or_default();
        staged.write(&content, offset, &pattern(fill, len as usize));
        Ok(Answer::Done)
    }

    pub(crate) fn end_group(&mut self, commit: bool, now: Timestamp) -> Outcome {
        let happens = self.group.clone().filter(|_| commit).unwrap_or_default();
        for (id, staged) in happens.files {
            let node = self.node_mut(id);
            staged.happen(node.content()?);
            node.changed(now);
        }
        self.drop_group();
        Ok(Answer::Done)
    }

    /// Forgets the group. What it alone held goes.
    pub fn drop_group(&mut self) {
        let files = self.group.take().unwrap_or_default().files;
        files.into_keys().for_each(|id| self.reap(id));
    }

    /// How many files the open group holds.
    pub fn staged_files(&self) -> usize {
        self.group.as_ref().map_or(0, |group| group.files.len())
    }

    /// The file that the open group holds, if it is one alone.
    pub fn staged_alone(&self) -> Option<Id> {
        let files = &self.group.as_ref()?.files;
        files.keys().next().copied().filter(|_| files.len() == 1)
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

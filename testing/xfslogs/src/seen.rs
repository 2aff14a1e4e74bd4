//! What a run saw.

use std::collections::BTreeMap;
use std::fmt;

/// What was seen in all rounds.
#[derive(Debug, Default)]
pub struct Seen {
    /// Images.
    pub images: u64,
    /// Images with a clean log.
    pub clean: u64,
    /// Images whose blocks were compared, all of them.
    pub compared: u64,
    /// Images that `xfs_repair -n` judged.
    pub repaired: u64,
    /// Items by type.
    pub items: BTreeMap<&'static str, u64>,
    /// Unfinished intents by type.
    pub unfinished: BTreeMap<&'static str, u64>,
    /// Images with such an intent.
    pub with_unfinished: BTreeMap<&'static str, u64>,
    /// Unlinked inodes that were freed.
    pub unlinked: u64,
    /// Those among them that the kernel's recovery could not free.
    pub left: u64,
    /// Blocks by kind that the recoveries had changed, and that were equal.
    pub blocks: BTreeMap<&'static str, u64>,
    /// Damaged logs that were opened.
    pub flips: u64,
    /// What was refused, by reason.
    pub refused: BTreeMap<String, u64>,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} images: {} with a clean log, {} compared block by block, {} judged by xfs_repair; {} unlinked inodes, \
             {} of them left by the kernel",
            self.images, self.clean, self.compared, self.repaired, self.unlinked, self.left
        )?;
        writeln!(f, "items: {:?}", self.items)?;
        writeln!(f, "unfinished intents: {:?}", self.unfinished)?;
        writeln!(f, "images with them: {:?}", self.with_unfinished)?;
        writeln!(f, "equal blocks that were changed: {:?}", self.blocks)?;
        write!(f, "damaged logs: {}; refused: {:?}", self.flips, self.refused)
    }
}

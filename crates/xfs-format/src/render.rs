//! Structures for people and for programs: text in the manner of `xfs_db`'s print, and JSON of the
//! same fields.

mod blocks;
mod log;
mod value;

pub use blocks::{
    agf_report, agfl_report, agi_report, attr_leaf_report, btree_report, da_node_report, dir_free_report,
    dir_leaf_report, dir_report, dquot_report, inode_report, superblock_report,
};
pub use log::{log_item_report, operation_report, record_report};
pub use value::{Report, Val};

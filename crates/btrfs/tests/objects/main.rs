//! Objects (files, directories, links, xattrs, subvolumes) made and changed through the vfs
//! contract, judged by states in the trees, by `btrfs check`, and by the kernel's reading of the
//! volume.

mod attributes;
mod dropped;
mod handles;
mod names;
mod orphans;
mod permissions;
mod refusals;
mod renames;
mod rig;
mod setid;
mod snapshots;
mod space_cache;
mod speed;
mod subvolume_calls;
mod subvolumes;
mod tree_clones;
mod unloaded_clones;
mod xattrs;

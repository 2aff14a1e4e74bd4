//! The running kernel: harnesses run under old ones, too (`scripts/with-kernel.sh`).

/// Major and minor number.
pub fn kernel_version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    let version = numbers.next().zip(numbers.next());
    version.unwrap_or_else(|| panic!("the kernel's version: {release:?}"))
}

/// Does the kernel write to btrfs volumes that have a tree of block groups, as new ones do by
/// default?
pub fn has_block_group_tree() -> bool {
    kernel_version() >= (6, 1)
}

/// Options of `cowshed mkfs` for a volume that this kernel can write to.
pub fn mkfs_options() -> &'static [&'static str] {
    if has_block_group_tree() {
        return &[];
    }
    &["-O", "^block-group-tree"]
}

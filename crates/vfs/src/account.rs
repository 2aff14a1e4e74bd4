//! The account of a volume's space: what there is, what is promised, and to whom.

/// The space of one type of allocation, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolAccount {
    /// The type: data, metadata, or what the format calls it.
    pub name: &'static str,
    /// What the volume has given to this type.
    pub total_bytes: u64,
    /// Free now.
    pub free_bytes: u64,
    /// Free after the next commit.
    pub pinned_bytes: u64,
    /// What could be given to it yet.
    pub addable_bytes: u64,
}

/// Reservations for one purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PurposeAccount {
    /// The kind of operation.
    pub name: &'static str,
    /// Held now, in bytes.
    pub held_bytes: u64,
    /// The most that was held at a time, in bytes.
    pub peak_bytes: u64,
    /// Reservations that were made.
    pub granted: u64,
    /// Reservations that failed.
    pub refused: u64,
    /// Items that the operations left for the next commit, those that were there before not
    /// counted.
    pub items: i64,
    /// Bytes of these items.
    pub bytes: i64,
}

/// Changes that wait for the next commit, and the metadata that is held for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingAccount {
    /// Items.
    pub items: u64,
    /// Bytes of these items.
    pub bytes: u64,
    /// Items whose leaves were counted.
    pub counted_items: u64,
    /// Metadata held for them, in bytes.
    pub held_bytes: u64,
    /// Metadata that would be held if each item opened a leaf of its own, and the path to it, in
    /// bytes.
    pub held_by_items_bytes: u64,
}

/// The account of a volume's space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceAccount {
    /// Size of a metadata block, in bytes.
    pub block_bytes: u64,
    /// One for each type of allocation.
    pub pools: Vec<PoolAccount>,
    /// Promised to data that is not on disk yet, in bytes.
    pub data_reserved_bytes: u64,
    /// Promised to operations that are under way, in bytes.
    pub metadata_reserved_bytes: u64,
    /// Kept so that files can always be deleted, in bytes.
    pub deletion_reserve_bytes: u64,
    /// What waits for the next commit.
    pub pending: PendingAccount,
    /// One for each purpose of a reservation.
    pub purposes: Vec<PurposeAccount>,
}

//! The order of all locks of the engine: of this crate and of `cowshed-btrfs`, which is above it.
//!
//! Every lock is made with a [`LockRank`] ([`cowshed_runtime::lock`]). A thread that holds locks
//! may wait only for a lock of a later rank; a debug build panics otherwise, so that every test
//! checks the order. Locks of one rank are held together only where the rank says by which key they
//! are ordered. The rest of this page says what the order comes from.
//!
//! # Operations
//!
//! ```text
//!   reserve space --> lock inodes --> prepare --> join --> attributes, data state --> apply batch
//!     may commit      InodeOp         may fail,   Gate,    Attr, DataState           TreeEdits,
//!                                     may do I/O  shared                             RefQueue
//! ```
//!
//! An operation reserves before it takes its locks, prepares under [`InodeOp`](LockRank::InodeOp),
//! and then joins the running transaction. From the join on it cannot fail and does no I/O. The
//! attributes stay locked until the batch that has them is applied, so that an older inode item
//! never replaces a newer one. Lookups and listings take no inode lock.
//!
//! Long operations (write, truncate, clone, atomic groups) work in steps, and reserve for the next
//! step while they hold `InodeOp`. A reservation may write back and commit. Therefore `InodeOp` is
//! outside of [`Commit`](LockRank::Commit) and [`Flush`](LockRank::Flush), and neither a commit nor
//! write-back ever takes it.
//!
//! # Write-back
//!
//! [`Flush`](LockRank::Flush) belongs to one file: its holder alone changes the file's extent
//! items. Write-back takes it without `InodeOp`, so that it can run for a writer that waits for
//! memory, or for another operation that waits for space. Space is reserved before it is taken,
//! since a reservation may write back this very file.
//!
//! # The commit and the log
//!
//! ```text
//!   Commit --> Gate, exclusive: freeze --> merge, run references, write out --> superblock
//!   Commit --> LogState --> Gate, exclusive: collect, with NamesLeft and NamesRenamed
//!                       --> write the log
//! ```
//!
//! One thread at a time commits or writes a log. It keeps operations out only while it freezes, or
//! collects what the log needs; afterwards operations of the next transaction run beside it. What
//! a commit merges is frozen and read without locks. The commit calls the layers above through
//! [`CommitHooks`](crate::CommitHooks), under `Commit`, and `frozen` under the gate, too.
//!
//! # Space
//!
//! [`Chunks`](LockRank::Chunks) is outside of the tree locks: whether a block group can be removed
//! is decided under it, which may load the group's free space out of the trees. A thread that frees
//! or allocates holds one group's lock for a moment. The ledger is the innermost lock of all:
//! a reservation may be dropped anywhere.
//!
//! # Locks that are held over I/O
//!
//! - `Rename`, `SubvolumeNames`, `Defragment`, `InodeOp`, `Commit`, `LogState`, `Flush`: whole
//!   operations.
//! - `Gate`, exclusively: collecting for the log reads trees. A join is never held over I/O.
//! - `XattrLists`: while an access list is read. `GroupLoad`: while free space is read.
//! - `Chunks`: as said above, and while room that no chunk has is discarded.
//! - `TreeState`, shared: while blocks of the tree are read. Its writers (freeze, publish) wait for
//!   these reads.
//! - `TreeEdits`, shared: while nodes above pending items are counted, and committed items below
//!   deleted ones are looked for.
//! - `Repairs`: shared by writes, exclusive while a bad copy is looked at again and rewritten.
//!
//! All others are held for moments.
//!
//! # Waits that are not locks
//!
//! The order does not see these; each says what its caller may hold.
//!
//! - *Space* (`Space::reserve_meta`, `reserve_data`) may write back and commit: nothing from
//!   `Commit` on, as the ranks of what it takes show.
//! - *A commit* (`Store::commit`, `Files::reserve` where memory is short): the same.
//! - *The round of a group commit* (`runtime::group_commit`, fsync): the leader takes `Commit`. The
//!   followers hold nothing from `Commit` on.
//! - *Claims* of the discarder (`Space::pause_discards`): a claim is held without a lock, and ends
//!   without one that is outside of `Claims`. A thread that waits to claim holds nothing.
//! - *Front ends that are being told of lost data* (`Failures::take`): the teller holds `Flush`,
//!   and takes `DataState`; the caller holds neither.
//! - *Helpers of the worker pool and threads for single devices*: what they run takes no lock but
//!   the leaves, and those of the volume.
//!
//! # Locks elsewhere
//!
//! `cowshed-runtime`, the devices and the front ends have locks of their own, which this order does
//! not see. Those of runtime and devices are leaves: nothing here is called under them. A front end
//! is called from here in one place, the listener for lost data, under `Flush`: how long it waits
//! has a limit, whatever the engine does. A `OnceLock` is set once, by code that takes nothing but
//! `Superblock`.

use cowshed_runtime::lock::Rank;

macro_rules! ranks {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$reason:meta])* $rank:ident,)* }) => {
        $(#[$meta])*
        pub enum $name { $($(#[$reason])* $rank,)* }

        impl $name {
            /// For locks of statics, which are made at compile time.
            pub const fn rank(self) -> Rank {
                let name = match self { $(Self::$rank => stringify!($rank),)* };
                Rank::new(self as u16, name)
            }
        }
    };
}

ranks! {
    /// The locks of the engine, outermost first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u16)]
    pub enum LockRank {
        // ---- whole operations ----
        /// `Objects::rename`: looks up and locks the inodes of a rename, whose ancestors must stay.
        Rename,
        /// `Objects::subvolume_names`: locks the directory and the root of the subvolume.
        SubvolumeNames,
        /// `FileData::defragmenting`: one at a time for a file, which locks the inode piece by
        /// piece.
        Defragment,
        /// `Inode::lock`, by (tree, number): outside of what a reservation for the next step takes.
        InodeOp,
        /// `Space::turns`: an operation that finds too little space writes back and commits.
        SpaceTurn,
        /// `Txn::commit_lock`: a commit or a log takes all that is below, and waits for no
        /// operation.
        Commit,
        /// `Log::state`: taken by the thread that commits or writes the log, before it collects.
        LogState,
        /// `FileData::flush`, by (tree, number): data is written under it, then its items are
        /// joined.
        Flush,

        // ---- from the join to the batch ----
        /// `Txn::gate`: shared from the join on, exclusive for what must see no operation in
        /// between.
        Gate,
        /// `Inode::attr`, by (tree, number): from the change of attributes until its batch is
        /// applied.
        Attr,
        /// `XattrCache::lists`: kept while the item is read, so that no writer comes in between.
        XattrLists,
        /// `FileData::state`: changes with the attributes, and its size goes into the inode's item.
        DataState,
        /// `FileShared::dirty`: an inode enters and leaves the list under its own data state.
        DirtyList,
        /// `NameChanges::left`: noted inside of joins, taken by the log for all of collecting.
        NamesLeft,
        /// `NameChanges::renamed`: the log takes it after `left`; asks trees what the log has.
        NamesRenamed,

        // ---- space and trees ----
        /// `Space::chunks`: empty groups are looked for under it, which loads them out of the
        /// trees.
        Chunks,
        /// `Discards::claims`: waited on by threads that need all free space, before they look at
        /// it.
        Claims,
        /// `Group::load_lock`: free space is read from trees under it, once.
        GroupLoad,
        /// `Tree::state`: a lookup reads blocks under it, and so takes those of cache and volume.
        TreeState,
        /// `ActiveEdits::stripes`, by (tree, number): a reader looks for pending edits under the
        /// tree's state.
        TreeEdits,
        /// `Space::groups`: counts what groups use, and drops the chunks of those that go.
        Groups,
        /// `Space::pools`: a group comes with its bytes in the ledger.
        Pools,
        /// `Group::state`: asks the ledger last whether the group may go.
        GroupState,

        // ---- the volume ----
        /// `Volume::repairs`: held over the I/O of writes and repairs, which look at the chunk map.
        Repairs,
        /// `Volume::chunks`: held for a copy.
        ChunkMap,
        /// `Volume::superblock`: held for a copy.
        Superblock,
        /// `Member::item`: held for a copy.
        MemberItem,
        /// `Member::superblock`: held for a copy.
        MemberSuperblock,

        // ---- leaves: nothing but the ledger is taken inside ----
        /// `Forest::trees`: the map of open trees.
        OpenTrees,
        /// `NodeStore::shards`: the cache of tree blocks.
        TreeBlocks,
        /// `Txn::refs`: the queue of reference changes.
        RefQueue,
        /// `Jobs::queued`: what the next commit does beside merging.
        JobQueue,
        /// `Jobs::drops`: the queue of dead subvolumes.
        DropQueue,
        /// `Space::dirty`: the set of groups with changed extent items.
        DirtyGroups,
        /// `Space::pinned`: the set of groups with pinned ranges.
        PinnedGroups,
        /// `Space::contradiction`: the first one.
        Contradiction,
        /// `Space::flusher`: read before it is called.
        Flusher,
        /// `Discards::freed`: what is to be discarded.
        Freed,
        /// `Objects::dead`: deleted subvolumes.
        DeadSubvolumes,
        /// `Objects::subvols`: the map of open subvolumes.
        Subvolumes,
        /// `Objects::policy`: held for a copy.
        Policy,
        /// `Views::table`: held for a copy, or a change.
        Views,
        /// `Views::held`: what views refer to, and the counts of an inode with it.
        HeldByViews,
        /// `InodeTable::shards`: may drop an inode, and with it a reservation.
        InodeTable,
        /// `RememberedAfter`: a list, held for a copy, or a change.
        RememberedAfter,
        /// `NameFilter`: hashes of a directory's names.
        NameFilter,
        /// `FileData::ahead`: where a sequential reader is.
        ReadAhead,
        /// `Failures::state`: told by write-back, waited on by callers that take a failure.
        Failures,
        /// `FileShared::remapped`: extents whose references change.
        Remapped,
        /// `FileShared::decompressed`: the cache of decompressed extents.
        Decompressed,
        /// `Encoders`: those not in use.
        Encoders,
        /// `Decoders`: those not in use.
        Decoders,
        /// `Numbering::odd`: node ids that are kept in memory.
        NodeIds,
        /// `Log::costs`: what syncs and commits cost.
        LogCosts,
        /// `Log::stats`: counters.
        LogStats,
        /// `Spares`: buffers not in use.
        SpareBuffers,
        /// `Ledger::numbers`: the innermost, since reservations are dropped under any lock.
        Ledger,
    }
}

impl From<LockRank> for Rank {
    fn from(rank: LockRank) -> Rank {
        rank.rank()
    }
}

// The order is checked in debug builds only.
#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use cowshed_runtime::lock::{Mutex, RwLock};

    use super::*;

    /// Runs `work`, and gives what it panics with.
    fn panic_of(work: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("an inversion panics");
        *panic.downcast::<String>().expect("a formatted message")
    }

    #[test]
    fn planted_inversion_panics_with_both_ranks() {
        let (commit, gate) = (Mutex::new(LockRank::Commit, ()), RwLock::new(LockRank::Gate, ()));
        {
            let _commit = commit.lock();
            let _gate = gate.write();
        }
        let panic = panic_of(|| {
            let _join = gate.read();
            drop(commit.lock());
        });
        let expected = format!(
            "lock order: {} is taken inside {}",
            LockRank::Commit.rank(),
            LockRank::Gate.rank()
        );
        assert_eq!(panic, expected);
        assert!(panic.contains("`Commit`") && panic.contains("`Gate`"), "{panic}");
    }

    #[test]
    fn second_inode_without_a_key_panics_and_with_rising_keys_does_not() {
        let [one, other] = [(); 2].map(|()| Mutex::new(LockRank::Attr, ()));
        {
            let _one = one.lock_ordered((5, 257));
            let _other = other.lock_ordered((5, 258));
        }
        panic_of(|| {
            let _one = one.lock();
            drop(other.lock());
        });
        panic_of(|| {
            let _other = other.lock_ordered((5, 258));
            drop(one.lock_ordered((5, 257)));
        });
    }

    #[test]
    fn ledger_is_the_innermost() {
        let (ledger, spares) = (Mutex::new(LockRank::Ledger, ()), Mutex::new(LockRank::SpareBuffers, ()));
        {
            let _spares = spares.lock();
            drop(ledger.lock());
        }
        panic_of(|| {
            let _ledger = ledger.lock();
            drop(spares.lock());
        });
    }
}

//! B-tree blocks, encoded once more.

use xfs_format::btree::{BlockFields, BtreeBlock, TreeKind};
use xfs_format::{Expect, Lsn};

/// Builds a block of what another one holds: all that it says must be the same.
pub fn encode_again<K: TreeKind>(block: &BtreeBlock<K>, expect: &Expect<'_>) {
    let fields = if block.is_leaf() {
        BlockFields::Leaf(block.records())
    } else {
        BlockFields::Node {
            level: block.level(),
            keys: block.keys(),
            pointers: block.pointers(),
        }
    };
    let siblings = block.siblings();
    let bytes = BtreeBlock::<K>::build(&fields, siblings, expect).expect("it fits");
    let again = BtreeBlock::<K>::seal(bytes, expect, Lsn(0)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again.records(), block.records());
    assert_eq!(again.keys(), block.keys());
    assert_eq!(again.pointers(), block.pointers());
    assert_eq!((again.level(), again.len()), (block.level(), block.len()));
    let (a, b) = (again.siblings(), block.siblings());
    assert_eq!((a.left, a.right), (b.left, b.right));
    assert!(BtreeBlock::<K>::verify(again.bytes(), expect, Some(block.level())).is_ok());
}

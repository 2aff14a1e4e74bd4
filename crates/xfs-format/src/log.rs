//! The log: records, the operations in them, and what the operations of a transaction say.
//!
//! Records and operation headers are big-endian. Items are in the byte order of the machine that
//! wrote them, which the record states; [`ByteOrder`] reads them.
//!
//! Finding head and tail, and replaying, is the engine's.

mod buf;
mod inode;
mod intent;
mod item;
mod item_type;
mod native;
mod op;
mod record;

pub use buf::{BUF_CHUNK_BYTES, BufFormat, BufItem, BufLogHead, BufType, buf_flags};
pub use inode::{InodeFormat, InodeItem, InodeLogFormat, InodeLogFormat32, LogCore, inode_fields};
pub use intent::{
    AttrIntent, AttrIntentHead, AttrOp, DoneHead, ExchangeIntentHead, Intent, IntentHead, LogExtent32, LogExtent64,
    MapExtentRaw, MapOp, MappedExtent, PhysExtent, PhysExtentRaw, exchange_flags, map_extent_flags,
};
pub use item::{DquotLogFormat, IcreateLogFormat, LogItem, QuotaoffLogFormat, TransHeader};
pub use item_type::ItemType;
pub use native::{ByteOrder, N16, N32, N64};
pub use op::{OpHeader, Operation, UNMOUNT_MAGIC, UnmountRecord, client, op_flags, operations};
pub use record::{
    ExtHeader, LOG_BLOCK_BYTES, LOG_MAGIC, LogFormat, Record, RecordHeader, header_blocks, next_cycle, record_crc,
};

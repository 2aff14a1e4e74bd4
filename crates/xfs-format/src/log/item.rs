//! Items: what the operations of a transaction say once their regions are together.

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::buf::BufItem;
use super::inode::InodeItem;
use super::intent::{self, Intent};
use super::item_type::{ItemType, whole};
use super::{ByteOrder, N16, N32, N64};
use crate::corrupt::{Corrupt, Fault, Site, field, mismatch, truncated};
use crate::dquot::DiskDquot;
use crate::view;

on_disk!(
    /// `xfs_trans_header`: the first region of a transaction.
    /// docs/format/xfs/log.md
    TransHeader(16) { magic: N32, trans_type: N32, tid: N32, num_items: N32 }
);
on_disk!(
    /// `xfs_dq_logformat`: a change of a quota; the quota follows as [`DiskDquot`].
    /// docs/format/xfs/log.md
    DquotLogFormat(24) { item_type: N16, size: N16, id: N32, blkno: N64, len: N32, boffset: N32 }
);
on_disk!(
    /// `xfs_qoff_logformat`: quotas are being switched off. Old kernels wrote it.
    /// docs/format/xfs/log.md
    QuotaoffLogFormat(20) { item_type: N16, size: N16, flags: N32, pad: [u8; 12] }
);
on_disk!(
    /// `xfs_icreate_log`: new inodes. Big-endian but for the first two fields.
    /// docs/format/xfs/log.md
    IcreateLogFormat(28) {
        item_type: N16,
        size: N16,
        ag: U32,
        agbno: U32,
        count: U32,
        isize: U32,
        length: U32,
        generation: U32,
    }
);

/// `magic` of a [`TransHeader`]: `TRAN`.
const TRANS_MAGIC: u32 = 0x5452_414e;

impl TransHeader {
    /// True for the first region of a transaction.
    pub fn has_magic(&self, order: ByteOrder) -> bool {
        self.magic.get(order) == TRANS_MAGIC
    }
    /// A header for this many items.
    pub fn new(trans_type: u32, tid: u32, num_items: u32, order: ByteOrder) -> Self {
        Self {
            magic: N32::new(TRANS_MAGIC, order),
            trans_type: N32::new(trans_type, order),
            tid: N32::new(tid, order),
            num_items: N32::new(num_items, order),
        }
    }
}

/// An item of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum LogItem<'a> {
    /// Changed parts of a buffer, or a cancel.
    Buf(BufItem<'a>),
    /// Changed parts of an inode.
    Inode(InodeItem<'a>),
    /// A changed quota.
    Dquot {
        /// Which.
        format: DquotLogFormat,
        /// Its new state.
        dquot: DiskDquot,
    },
    /// New inodes.
    Icreate(IcreateLogFormat),
    /// Quotas are being switched off.
    Quotaoff(QuotaoffLogFormat),
    /// Work that was to follow.
    Intent(Intent<'a>),
    /// That work is done.
    Done {
        /// Which kind of intent, as the item that says so.
        ty: ItemType,
        /// The intent's id.
        id: u64,
    },
    /// An item of a kind that no kernel in use writes.
    Unused(ItemType),
}

/// Type and number of regions, from the first region of an item.
fn head(region: &[u8], order: ByteOrder) -> Result<(ItemType, u16), Fault> {
    let Some([ty, size]) = view::slice::<N16>(region, 0, 2).and_then(|pair| pair.first_chunk().copied()) else {
        return Err(truncated("item head", 4, region.len()));
    };
    let raw = ty.get(order);
    let ty = ItemType::from_raw(raw).ok_or_else(|| mismatch("type", format_args!("{raw:#x}"), "an item's"))?;
    Ok((ty, size.get(order)))
}

impl<'a> LogItem<'a> {
    /// Type and number of regions of the item that begins with this region.
    pub fn head(region: &[u8], order: ByteOrder) -> Result<(ItemType, u16), Corrupt> {
        head(region, order).map_err(|fault| fault.at(Site::of("log item")))
    }

    /// Reads an item from its regions, as many as its head states. Errors: a region that is missing
    /// or too short, and values that the item cannot have.
    pub fn read(regions: &[&'a [u8]], order: ByteOrder) -> Result<Self, Corrupt> {
        let name = regions.first().and_then(|region| head(region, order).ok());
        let site = Site::of(name.map_or("log item", |(ty, _)| item_name(ty)));
        Self::try_read(regions, order).map_err(|fault| fault.at(site))
    }

    fn try_read(regions: &[&'a [u8]], order: ByteOrder) -> Result<Self, Fault> {
        let (first, rest) = regions.split_first().ok_or_else(|| truncated("item head", 4, 0))?;
        let (ty, size) = head(first, order)?;
        let given = u64::try_from(regions.len()).unwrap_or(u64::MAX);
        field("size", size, Rule::Equal(given))?;
        Ok(match ty {
            ItemType::Buf => Self::Buf(BufItem::read(first, rest, order)?),
            ItemType::Inode => Self::Inode(InodeItem::read(first, rest, order)?),
            ItemType::Dquot => {
                let region = rest.first().copied().unwrap_or_default();
                Self::Dquot {
                    format: whole(first)?,
                    dquot: whole(region)?,
                }
            }
            ItemType::Icreate => Self::Icreate(whole(first)?),
            ItemType::Quotaoff => Self::Quotaoff(whole(first)?),
            ItemType::Iunlink => Self::Unused(ty),
            ItemType::Efd
            | ItemType::EfdRt
            | ItemType::Rud
            | ItemType::RudRt
            | ItemType::Cud
            | ItemType::CudRt
            | ItemType::Bud
            | ItemType::Attrd
            | ItemType::Xmd => Self::Done {
                ty,
                id: whole::<intent::DoneHead>(first)?.id.get(order),
            },
            ItemType::Efi
            | ItemType::EfiRt
            | ItemType::Rui
            | ItemType::RuiRt
            | ItemType::Cui
            | ItemType::CuiRt
            | ItemType::Bui
            | ItemType::Attri
            | ItemType::Xmi => Self::Intent(Intent::read(ty, first, rest, order)?),
        })
    }

    /// The type.
    pub fn ty(&self) -> ItemType {
        match self {
            Self::Buf(_) => ItemType::Buf,
            Self::Inode(_) => ItemType::Inode,
            Self::Dquot { .. } => ItemType::Dquot,
            Self::Icreate(_) => ItemType::Icreate,
            Self::Quotaoff(_) => ItemType::Quotaoff,
            Self::Intent(intent) => intent.ty(),
            Self::Done { ty, .. } | Self::Unused(ty) => *ty,
        }
    }
}

fn item_name(ty: ItemType) -> &'static str {
    match ty {
        ItemType::Buf => "buffer log item",
        ItemType::Inode => "inode log item",
        ItemType::Dquot => "quota log item",
        ItemType::Icreate => "inode creation log item",
        _ => "intent log item",
    }
}

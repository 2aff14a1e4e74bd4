//! The log.

use super::value::{Report, Val};
use crate::log::{
    BufItem, ByteOrder, InodeItem, Intent, LogItem, MappedExtent, Operation, PhysExtent, RecordHeader, buf_flags,
    client, inode_fields, op_flags,
};

/// The header of a record, without the words of its blocks.
pub fn record_report(header: &RecordHeader) -> Report {
    let mut report = Report::of(header).without(&["cycle_data"]);
    report.set("lsn", Val::Text(header.lsn().to_string()));
    report.set("tail_lsn", Val::Text(header.tail_lsn().to_string()));
    report
}

/// The header of an operation.
pub fn operation_report(operation: &Operation<'_>) -> Report {
    let mut report = Report::default();
    let source = match operation.header.clientid {
        client::TRANSACTION => "transaction",
        client::LOG => "log",
        _ => "volume",
    };
    report.set("tid", Val::Hex(operation.header.tid.get().into()));
    report.set("len", Val::Num(operation.header.len.get().into()));
    report.set("clientid", Val::Named(operation.header.clientid.into(), source));
    report.set("flags", Val::flags(operation.header.flags, op_flags::NAMES));
    report
}

fn buffer(item: &BufItem<'_>, report: &mut Report) {
    let format = &item.format;
    report.set("daddr", Val::Num(format.daddr.get()));
    report.set("bytes", Val::Num(format.len_bytes.into()));
    report.set("flags", Val::flags(format.flags, buf_flags::NAMES));
    let ty = format.ty.map_or_else(|| "unknown".to_owned(), |ty| format!("{ty:?}"));
    report.set("buffer_type", Val::Text(ty));
    let chunks = item.chunks.iter().map(|(offset, data)| {
        let len = u64::try_from(data.len()).unwrap_or(u64::MAX);
        Val::List(vec![Val::Num((*offset).into()), Val::Num(len)])
    });
    report.set("chunks", Val::List(chunks.collect()));
}

fn physical(extents: &[PhysExtent]) -> Val {
    let one = |extent: &PhysExtent| {
        let mut report = Report::default();
        report.set("start", Val::Num(extent.start.get()));
        report.set("blocks", Val::Num(extent.blocks.into()));
        report.set("op", Val::Num(extent.op.into()));
        Val::Report(report)
    };
    Val::List(extents.iter().map(one).collect())
}

fn mapped(extents: &[MappedExtent]) -> Val {
    let one = |extent: &MappedExtent| {
        let mut report = Report::default();
        report.set("op", Val::Text(format!("{:?}", extent.op)));
        report.set("owner", Val::Signed(extent.owner.cast_signed()));
        report.set("start", Val::Num(extent.start.get()));
        report.set("offset", Val::Num(extent.offset.get()));
        report.set("blocks", Val::Num(extent.blocks.into()));
        report.set("flags", Val::Hex(extent.flags.into()));
        Val::Report(report)
    };
    Val::List(extents.iter().map(one).collect())
}

fn intent(intent: &Intent<'_>, order: ByteOrder, report: &mut Report) {
    report.set("id", Val::Hex(intent.id()));
    match intent {
        Intent::Free { extents, .. } | Intent::Refcount { extents, .. } => report.set("extents", physical(extents)),
        Intent::Rmap { extents, .. } | Intent::Bmap { extents, .. } => report.set("extents", mapped(extents)),
        Intent::Attr(attr) => {
            report.set("ino", Val::Num(attr.ino.get()));
            report.set("op", Val::Text(format!("{:?}", attr.op)));
            report.set("filter", Val::Hex(attr.filter.into()));
            for (name, bytes) in [
                ("name", attr.name),
                ("new_name", attr.new_name),
                ("value", attr.value),
                ("new_value", attr.new_value),
            ] {
                if !bytes.is_empty() {
                    report.set(name, Val::Bytes(bytes.to_vec()));
                }
            }
        }
        Intent::Exchange { head, .. } => {
            for (name, value) in [
                ("inode1", head.inode1),
                ("inode2", head.inode2),
                ("startoff1", head.startoff1),
                ("startoff2", head.startoff2),
                ("blockcount", head.blockcount),
                ("flags", head.flags),
                ("isize1", head.isize1),
                ("isize2", head.isize2),
            ] {
                report.set(name, Val::Num(value.get(order)));
            }
        }
    }
}

/// An item; `order` is the byte order of the log.
pub fn log_item_report(item: &LogItem<'_>, order: ByteOrder) -> Report {
    let mut report = Report::default();
    report.set("type", Val::Text(item.ty().name().to_owned()));
    match item {
        LogItem::Buf(item) => buffer(item, &mut report),
        LogItem::Inode(InodeItem {
            format,
            core,
            data,
            attr,
        }) => {
            report.set("ino", Val::Num(format.ino.get()));
            report.set("fields", Val::flags(format.fields, inode_fields::NAMES));
            report.set("daddr", Val::Num(format.daddr.get()));
            report.set("bytes", Val::Num(format.len_bytes.into()));
            report.set("offset", Val::Num(format.offset_bytes.into()));
            if let Some(core) = core {
                let core = core.to_disk();
                report.set("mode", Val::Octal(core.mode.get().into()));
                report.set("size", Val::Num(core.size.get()));
                report.set("nlink", Val::Num(core.link_count().into()));
            }
            for (name, fork) in [("data_bytes", data), ("attr_bytes", attr)] {
                if let Some(fork) = fork {
                    report.set(name, Val::Num(u64::try_from(fork.len()).unwrap_or(u64::MAX)));
                }
            }
        }
        LogItem::Dquot { format, dquot } => {
            report.set("id", Val::Num(format.id.get(order).into()));
            report.set("daddr", Val::Num(format.blkno.get(order)));
            report.set("dquot", Val::Report(super::dquot_report(dquot)));
        }
        LogItem::Icreate(create) => {
            for (name, value) in [
                ("ag", create.ag),
                ("agbno", create.agbno),
                ("count", create.count),
                ("isize", create.isize),
                ("length", create.length),
                ("gen", create.generation),
            ] {
                report.set(name, Val::Num(value.get().into()));
            }
        }
        LogItem::Quotaoff(off) => report.set("flags", Val::Num(off.flags.get(order).into())),
        LogItem::Intent(found) => intent(found, order, &mut report),
        LogItem::Done { id, .. } => report.set("id", Val::Hex(*id)),
        LogItem::Unused(_) => {}
    }
    report
}

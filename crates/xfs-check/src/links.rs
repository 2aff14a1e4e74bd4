//! Names against inodes: types, link counts, "..", parent pointers, and whether everything hangs on
//! a root.

use std::collections::BTreeMap;

use xfs_format::dir::FileType;
use xfs_format::features::incompat;
use xfs_format::{AgIno, Ino};

use crate::entry::Entry;
use crate::finding::{FindingId, Sink, Site};
use crate::ledger::Ledger;
use crate::table::{Info, Table};
use crate::usage::quota_inodes;
use crate::volume::{Volume, index};

/// Lists of unlinked inodes.
pub(crate) fn unlinked(sink: &mut Sink, table: &mut Table<'_>) {
    let groups = table.groups;
    for group in groups {
        let Some(agi) = &group.agi else { continue };
        for (bucket, first) in (0_u32..).zip(&agi.unlinked) {
            let mut next = first.get();
            while next != AgIno::NULL {
                let ino = table.geometry.join_ino(group.number, AgIno(next));
                let site = Site {
                    slot: Some(bucket),
                    group: Some(group.number),
                    ..Site::inode(ino)
                };
                let expected = next % 64;
                let Some(info) = table.get_mut(ino) else {
                    sink.add(FindingId::UnlinkedList, site, "the inode is not in use");
                    break;
                };
                if info.is_on_unlinked_list {
                    sink.add(FindingId::UnlinkedList, site, "the inode is on a list twice");
                    break;
                }
                info.is_on_unlinked_list = true;
                if info.nlink != 0 {
                    sink.add(
                        FindingId::UnlinkedList,
                        site,
                        format!("nlink is {}, expected 0", info.nlink),
                    );
                }
                if expected != bucket {
                    sink.add(
                        FindingId::UnlinkedList,
                        site,
                        format!("on list {bucket}, expected list {expected}"),
                    );
                }
                next = info.next_unlinked;
            }
        }
    }
}

/// Counts names.
pub(crate) fn count_names(sink: &mut Sink, table: &mut Table<'_>, ledger: &Ledger) {
    ledger.entries(sink, &mut |sink, entry| count_name(sink, table, entry));
}

fn count_name(sink: &mut Sink, table: &mut Table<'_>, entry: &Entry) {
    let (child, dir) = (entry.child(), entry.dir());
    if !table.is_used(child) {
        let site = Site {
            slot: Some(entry.position),
            ..Site::inode(dir)
        };
        return sink.add(
            FindingId::DirEntryDangling,
            site,
            format!("an entry of inode {child}, which is not in use"),
        );
    }
    let Some(info) = table.get_mut(child) else {
        return;
    };
    info.names = info.names.saturating_add(1);
    info.balance = info.balance.wrapping_add(entry.mark);
    let (found, is_dir, dotdot) = (info.file_type, info.is_dir(), info.dotdot);
    if let (Some(stated), Some(found)) = (entry.file_type(), found)
        && stated != found
        && !(stated == FileType::Whiteout && found == FileType::Char)
    {
        let site = Site {
            slot: Some(entry.position),
            ..Site::inode(dir)
        };
        let message = format!("the entry of inode {child} says {stated:?}, expected {found:?}");
        sink.add(FindingId::DirEntryType, site, message);
    }
    if !is_dir {
        return;
    }
    if let Some(dotdot) = dotdot.filter(|dotdot| *dotdot != dir) {
        let message = format!("\"..\" is inode {dotdot}, expected {dir}");
        sink.add(FindingId::DirParent, Site::inode(child), message);
    }
    if let Some(parent) = table.get_mut(dir) {
        parent.subdirs = parent.subdirs.saturating_add(1);
    }
}

/// Inodes that need no name.
fn roots(vol: &Volume) -> Vec<(Ino, &'static str, FileType)> {
    let sb = &vol.superblock;
    let mut roots = vec![(Ino(sb.rootino.get()), "rootino", FileType::Dir)];
    if sb.has_incompat(incompat::METADIR) {
        roots.push((Ino(sb.metadirino.get()), "metadirino", FileType::Dir));
        return roots;
    }
    roots.push((Ino(sb.rbmino.get()), "rbmino", FileType::Regular));
    roots.push((Ino(sb.rsumino.get()), "rsumino", FileType::Regular));
    let quotas = quota_inodes(sb)
        .into_iter()
        .map(|(ino, _)| (ino, "quota inode", FileType::Regular));
    roots.extend(quotas);
    roots
}

/// Judges every inode.
pub(crate) fn judge(vol: &Volume, sink: &mut Sink, table: &mut Table<'_>) {
    let is_whole = table.is_whole;
    let roots = roots(vol);
    for (ino, name, file_type) in &roots {
        let found = table.get(*ino).and_then(|info| info.file_type);
        if found != Some(*file_type) && (is_whole || !table.is_used(*ino)) {
            let found = found.map_or("not in use".to_owned(), |found| format!("{found:?}"));
            sink.add(
                FindingId::SuperInode,
                Site::inode(*ino),
                format!("{name} is {found}, expected {file_type:?}"),
            );
        }
    }
    for (ino, ..) in roots
        .iter()
        .take(2)
        .filter(|(_, _, file_type)| *file_type == FileType::Dir)
    {
        if let Some(dotdot) = table
            .get(*ino)
            .and_then(|info| info.dotdot)
            .filter(|dotdot| dotdot != ino)
        {
            sink.add(
                FindingId::DirParent,
                Site::inode(*ino),
                format!("\"..\" of a root is inode {dotdot}"),
            );
        }
    }
    if !is_whole {
        return;
    }
    connect(table, &roots);
    for (ino, info) in table.inodes() {
        let is_root = roots.iter().any(|(root, ..)| *root == ino);
        inode(sink, ino, info, is_root);
    }
}

fn inode(sink: &mut Sink, ino: Ino, info: &Info, is_root: bool) {
    let site = Site::inode(ino);
    let own = if is_root { 1 } else { 0_u32 };
    let mut expected = info.names.saturating_add(own);
    if info.is_dir() {
        expected = expected.saturating_add(1).saturating_add(info.subdirs);
        if info.names > 1 {
            sink.add(FindingId::DirLinks, site, format!("{} names, expected 1", info.names));
        }
    }
    if info.names == 0 && !is_root {
        if info.is_on_unlinked_list {
            return;
        }
        let (id, message) = if info.nlink == 0 {
            (
                FindingId::UnlinkedMissing,
                "nlink is 0, but the inode is on no list".to_owned(),
            )
        } else {
            (
                FindingId::InodeDisconnected,
                format!("nlink is {}, but no entry leads to the inode", info.nlink),
            )
        };
        return sink.add(id, site, message);
    }
    if info.is_dir() && !info.is_connected && !is_root {
        return sink.add(
            FindingId::InodeDisconnected,
            site,
            "the directory lies below itself, or below one without a name",
        );
    }
    if info.nlink != expected {
        sink.add(
            FindingId::InodeNlink,
            site,
            format!("nlink is {}, expected {expected}", info.nlink),
        );
    }
}

/// Marks the directories from which ".." leads to a root. Each chain is followed up to the first
/// directory that is marked, so that it costs each directory once.
fn connect(table: &mut Table<'_>, roots: &[(Ino, &'static str, FileType)]) {
    for (root, ..) in roots {
        if let Some(info) = table.get_mut(*root) {
            info.is_connected = true;
        }
    }
    let dirs: Vec<Ino> = table
        .inodes()
        .filter(|(_, info)| info.is_dir())
        .map(|(ino, _)| ino)
        .collect();
    let mut failed = std::collections::HashSet::new();
    for dir in dirs {
        let (mut chain, mut at) = (Vec::new(), dir);
        let mut steps = std::collections::HashSet::new();
        let is_connected = loop {
            let Some(info) = table.get(at) else { break false };
            if info.is_connected {
                break true;
            }
            if failed.contains(&at) || info.names == 0 || !steps.insert(at) {
                break false;
            }
            chain.push(at);
            let Some(dotdot) = info.dotdot else { break false };
            at = dotdot;
        };
        for ino in chain {
            if !is_connected {
                failed.insert(ino);
            } else if let Some(info) = table.get_mut(ino) {
                info.is_connected = true;
            }
        }
    }
}

/// Inodes whose names and parent pointers differ; so many are looked at closely.
const DETAILS_MAX: usize = 1000;
/// Directories that the line of such an inode names.
const DIRS_SHOWN_MAX: usize = 5;

/// Inodes whose sums do not balance, with the directories that have entries of them.
fn unbalanced(sink: &mut Sink, table: &Table<'_>, ledger: &Ledger) -> BTreeMap<Ino, Vec<Ino>> {
    let found = table.inodes().filter(|(_, info)| info.balance != 0).take(DETAILS_MAX);
    let mut all: BTreeMap<Ino, Vec<Ino>> = found.map(|(ino, _)| (ino, Vec::new())).collect();
    if all.is_empty() {
        return all;
    }
    ledger.entries(sink, &mut |_, entry| {
        if let Some(dirs) = all.get_mut(&entry.child()).filter(|dirs| dirs.len() < DIRS_SHOWN_MAX) {
            dirs.push(entry.dir());
        }
    });
    all
}

/// Reports them.
pub(crate) fn parents(sink: &mut Sink, table: &Table<'_>, ledger: &Ledger) {
    for (ino, dirs) in unbalanced(sink, table, ledger) {
        let Some(info) = table.get(ino) else { continue };
        let names = index(info.names);
        let shown: Vec<String> = dirs.iter().map(ToString::to_string).collect();
        let message = format!(
            "{names} names in directories {} do not match the parent pointers",
            shown.join(", ")
        );
        sink.add(FindingId::ParentMismatch, Site::inode(ino), message);
    }
}

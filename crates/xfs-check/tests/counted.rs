//! Parent pointers and quotas of real volumes, as they are and with one fault planted.
//!
//! Linux keeps parent pointers where the superblock says so, whatever made it. Quotas are not in
//! every kernel: the inode of user quotas is a file that Linux wrote, with what Linux says the
//! users have.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cowshed_device::{BlockDevice, FileDevice, Locking, MemDevice, OpenMode};
use cowshed_harness::xfs::{Fill, XfsOptions, XfsVolume, fill};
use cowshed_harness::{need, run, run_raw};
use xfs_check::{CheckOptions, FindingId, Report, check};
use xfs_format::dquot::{DQUOT_MAGIC, DiskDquot, DquotBlock, dquot_type, dquots_per_block};
use xfs_format::features::{incompat, quota, version};
use xfs_format::{AgNumber, Daddr, Expect, Geometry, Ino, Lsn, Superblock, crc};
use zerocopy::FromZeros as _;

fn load(volume: &XfsVolume) -> Result<MemDevice> {
    let image = FileDevice::open_with(volume.image(), OpenMode::ReadOnly, Locking::Unlocked)?;
    Ok(MemDevice::copy_of("volume", &image)?)
}

fn judge(device: &MemDevice) -> Report {
    check(Arc::new(device.snapshot()), &CheckOptions::default())
}

/// Changes all superblocks of an image.
fn change_super(path: &Path, change: impl Fn(&mut Superblock)) -> Result<()> {
    let file = fs::File::options().read(true).write(true).open(path)?;
    let mut head = vec![0; 4096];
    file.read_exact_at(&mut head, 0)?;
    let geometry = Geometry::new(&Superblock::verify(&head)?)?;
    for group in (0..geometry.ag_count).map(AgNumber) {
        let at = geometry.header_daddr(group, 0).checked_bytes().context("an address")?;
        let mut sector = vec![0; geometry.sector_bytes as usize];
        file.read_exact_at(&mut sector, at)?;
        let mut copy = Superblock::verify_copy(&sector)?;
        change(&mut copy);
        file.write_all_at(&copy.seal()?, at)?;
    }
    Ok(())
}

/// Inodes whose bytes hold a name, as places on the device.
fn inodes_with(device: &MemDevice, name: &[u8]) -> Result<Vec<u64>> {
    const INODE_BYTES: usize = 512;
    let mut found = Vec::new();
    let mut bytes = vec![0; 1 << 20];
    for at in (0..device.size_bytes()).step_by(bytes.len()) {
        device.read_at(at, &mut bytes)?;
        for (n, inode) in bytes.chunks(INODE_BYTES).enumerate() {
            if inode.starts_with(b"IN") && inode.windows(name.len()).any(|part| part == name) {
                found.push(at + (n * INODE_BYTES) as u64);
            }
        }
    }
    Ok(found)
}

#[test]
fn parent_pointers_of_the_kernel_match_its_names() -> Result<()> {
    const NAME: &[u8] = b"a_name_of_one_file_alone";
    let Some(()) = need::kernel_xfs() else { return Ok(()) };
    let volume = XfsVolume::make(&XfsOptions::new("-m rmapbt=1,reflink=1 -i nrext64=1"))?;
    change_super(volume.image(), |sb| {
        let bits = sb.features_incompat.get() | incompat::PARENT as u32;
        sb.features_incompat.set(bits);
    })?;
    let what = Fill {
        entries: 60,
        names: 1200,
        extents: 100,
        links: 400,
        ..Fill::small(8)
    };
    volume.with_mount(|root| {
        fill(root, &what)?;
        let dir = root.join("parents");
        fs::create_dir(&dir)?;
        for n in 0..100 {
            fs::write(dir.join(format!("file_with_a_long_name_{n}")), [])?;
        }
        fs::write(dir.join(std::str::from_utf8(NAME)?), [])?;
        symlink("elsewhere", dir.join("symlink"))?;
        fs::create_dir(dir.join("below"))?;
        for n in 0..50 {
            let (from, to) = (
                dir.join(format!("file_with_a_long_name_{n}")),
                dir.join(format!("below/{n}")),
            );
            match n % 3 {
                0 => fs::rename(from, to)?,
                1 => fs::hard_link(from, to)?,
                _ => fs::remove_file(from)?,
            }
        }
        Ok(fs::rename(dir.join("below"), root.join("moved"))?)
    })?;
    let device = load(&volume)?;
    let report = judge(&device);
    assert!(report.findings.is_empty(), "{report}");
    // A letter of a pointer's name; the directory's entry lies in a block.
    let inodes = inodes_with(&device, NAME)?;
    assert_eq!(inodes.len(), 1, "the file's own inode");
    let mut inode = vec![0; 512];
    device.read_at(inodes[0], &mut inode)?;
    let at = inode
        .windows(NAME.len())
        .position(|part| part == NAME)
        .context("a name")?;
    inode[at] ^= 2;
    crc::store(&mut inode, 100);
    device.write_at(inodes[0], &inode)?;
    let report = judge(&device);
    assert!(report.has(FindingId::ParentMismatch), "{report}");
    Ok(())
}

/// Blocks and inodes of each owner, as Linux says them.
type Used = BTreeMap<u32, (u64, u64)>;

fn count(dir: &Path, used: &mut Used, seen: &mut Vec<u64>, but: u64, block_bytes: u64) -> Result<()> {
    let meta = fs::symlink_metadata(dir)?;
    if meta.ino() == but || seen.contains(&meta.ino()) {
        return Ok(());
    }
    seen.push(meta.ino());
    let sum = used.entry(meta.uid()).or_default();
    *sum = (sum.0 + meta.blocks() * 512 / block_bytes, sum.1 + 1);
    if meta.is_dir() {
        for entry in fs::read_dir(dir)? {
            count(&entry?.path(), used, seen, but, block_bytes)?;
        }
    }
    Ok(())
}

#[test]
fn quotas_state_what_linux_counts() -> Result<()> {
    /// So many quotas are in the first block.
    const IDS: usize = 30;
    let Some(()) = need::kernel_xfs() else { return Ok(()) };
    let volume = XfsVolume::make(&XfsOptions::new("-m reflink=1"))?;
    let what = Fill {
        entries: 40,
        names: 500,
        extents: 100,
        links: 20,
        flags: false,
        ..Fill::small(9)
    };
    volume.with_mount(|root| {
        fill(root, &what)?;
        run("chown", &["-hR".into(), "0:0".into(), root.as_os_str().to_owned()])?;
        for (n, entry) in fs::read_dir(root)?.enumerate() {
            let id = (n % IDS).to_string();
            run("chown", &["-h".into(), id.into(), entry?.path().into_os_string()])?;
        }
        Ok(fs::write(root.join("quotas"), vec![0; 4096])?)
    })?;
    // A mount of its own: until the first one ends, Linux counts blocks that it holds in reserve.
    let (ino, mut used) = volume.with_mount(|root| {
        let ino = fs::metadata(root.join("quotas"))?.ino();
        let mut used = Used::new();
        count(root, &mut used, &mut Vec::new(), ino, 4096)?;
        Ok((ino, used))
    })?;
    assert!(used.len() > 10, "{used:?}");
    // Inodes of the realtime device are root's, and have no name.
    const REALTIME_INODES: u64 = 2;
    used.entry(0).or_default().1 += REALTIME_INODES;
    // The inode of quotas is linked by the superblock alone, and by a name in the root here.
    let linked = format!("inode {ino}");
    let commands = ["-x", "-c", &linked, "-c", "write -d core.nlinkv2 2"];
    let image = volume.image().display().to_string();
    let output = run_raw("xfs_db", &[&commands[..], &[&image]].concat())?;
    assert!(output.status.success(), "{output:?}");
    change_super(volume.image(), |sb| {
        sb.versionnum.set(sb.versionnum.get() | version::QUOTA as u16);
        sb.uquotino.set(ino);
        sb.qflags.set((quota::UQUOTA_ACCT | quota::UQUOTA_CHKD) as u16);
    })?;
    let device = load(&volume)?;
    let block = volume.db(&[&linked, "bmap"])?;
    let block: u64 = between(&block, "startblock ", " ").context("a mapping")?.parse()?;
    write_quotas(&device, block, ino, &used)?;
    let report = judge(&device);
    assert!(report.findings.is_empty(), "{report}");

    for (add, id) in [((1, 0), FindingId::QuotaCount), ((0, 1), FindingId::QuotaCount)] {
        let mut wrong = used.clone();
        let sum = wrong.entry(3).or_default();
        *sum = (sum.0 + add.0, sum.1 + add.1);
        write_quotas(&device, block, ino, &wrong)?;
        let report = judge(&device);
        assert!(report.has(id) && report.counts.len() == 1, "{report}");
    }
    Ok(())
}

/// Linux 6.1 counted on these: crates/xfs-format/tests/data/README.md.
#[test]
fn volumes_whose_quotas_linux_counted_have_no_faults() -> Result<()> {
    let Some(()) = need::tool("xz") else { return Ok(()) };
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xfs-format/tests/data");
    for name in ["quota-v5", "quota-v5-32", "quota-v4", "quota-v4p"] {
        let dir = tempfile::tempdir()?;
        let archive = data.join(format!("{name}.tar.xz"));
        let args = ["-xJf".into(), archive.into_os_string(), "-C".into(), dir.path().into()];
        run("tar", &args)?;
        let image = dir.path().join("image");
        let device = FileDevice::open_with(&image, OpenMode::ReadOnly, Locking::Unlocked)?;
        let report = judge(&MemDevice::copy_of(name, &device)?);
        assert!(
            report.findings.iter().all(|finding| finding.id == FindingId::LogDirty),
            "{name}: {report}"
        );
    }
    Ok(())
}

fn between<'a>(text: &'a str, before: &str, behind: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split(behind).next()
}

/// Writes the first block of quotas.
fn write_quotas(device: &MemDevice, block: u64, ino: u64, used: &Used) -> Result<()> {
    let mut head = vec![0; 4096];
    device.read_at(0, &mut head)?;
    let geometry = Geometry::new(&Superblock::verify(&head)?)?;
    let daddr: Daddr = geometry.daddr(xfs_format::FsBlock(block)).context("a block")?;
    let expect = Expect::of_inode(&geometry, daddr, Ino(ino));
    let mut bytes = Vec::new();
    for id in 0..dquots_per_block(&geometry) {
        let (blocks, inodes) = used.get(&id).copied().unwrap_or_default();
        let mut dquot = DiskDquot::new_zeroed();
        dquot.magic.set(DQUOT_MAGIC);
        dquot.version = 1;
        dquot.quota_type = dquot_type::USER;
        dquot.id.set(id);
        dquot.bcount.set(blocks);
        dquot.icount.set(inodes);
        bytes.extend(DquotBlock::seal(&dquot, &expect, Lsn::NULL)?);
    }
    device.write_at(daddr.checked_bytes().context("an address")?, &bytes)?;
    Ok(())
}

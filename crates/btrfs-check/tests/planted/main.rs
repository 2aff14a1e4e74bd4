//! Every kind of corruption, planted once into a sound volume and found under its own id.
//!
//! The volumes are made by mkfs.btrfs and the kernel; the faults are written into a copy in memory,
//! with all checksums right, so that nothing but the fault itself can betray it. A new id fails the
//! tests until it has its fault.

mod files;
mod image;
mod layout;
mod odd;
mod refs;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use btrfs_check::{CheckOptions, FindingId, Report, check};
use cowshed_device::{BlockDevice, FileDevice, Locking, MemDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, need, run_raw, shell};

use image::Image;

/// Sound volumes to plant into.
pub struct Bases {
    /// Default features, metadata dup, data single, a bit of everything.
    pub main: Image,
    /// Without no-holes and without a free-space tree: explicit holes and the version 1 cache.
    pub old: Image,
    /// With quota groups.
    pub quota: Image,
}

/// What a plant gives.
pub enum Planted {
    /// A volume that is checked with data checksums.
    Volume(Vec<Arc<dyn BlockDevice>>),
    /// The id cannot be planted on its own; the reason.
    Not(&'static str),
}

impl From<Image> for Planted {
    fn from(image: Image) -> Self {
        Self::Volume(image.into_devices())
    }
}

const CONTENT: &str = r#"
    mkdir d links empty; for i in $(seq 1000); do echo content $i > d/file-$i; done
    for i in $(seq 100); do ln d/file-1 links/$(printf 'x%.0s' {1..200})$i; done
    head -c 600k /dev/urandom > random; cp --reflink=always random clone
    head -c 3000 /dev/zero > d/inline; ln -s some/target symlink; mkfifo fifo; echo x > attr; setfattr -n user.name -v value attr
    fallocate -l 1M prealloc; touch nodatasum; chattr +C nodatasum; head -c 100k /dev/urandom > nodatasum
    mkdir packed; btrfs property set packed compression zstd; seq 100000 > packed/file
    truncate -s 1M sparse; head -c 4k /dev/urandom >> sparse
    btrfs -q subvolume create sv; mkdir sv/d; for i in $(seq 1000); do echo content $i > sv/d/file-$i; done; head -c 200k /dev/urandom > sv/data
    btrfs filesystem sync .
    btrfs -q subvolume snapshot sv snap
    for i in $(seq 1 50 1000); do echo other > sv/d/file-$i; done
    btrfs filesystem sync .
"#;

fn make(options: &VolumeOptions) -> Result<Image> {
    let volume = KernelVolume::make(options)?;
    volume.with_mount(|root| shell(root, CONTENT))?;
    let file = FileDevice::open_with(volume.image(), OpenMode::ReadOnly, Locking::Unlocked)?;
    Ok(Image::new(MemDevice::copy_of("volume", &file)?))
}

fn bases() -> Option<&'static Bases> {
    static BASES: OnceLock<Bases> = OnceLock::new();
    need::kernel_btrfs()?;
    need::tool("setfattr")?;
    let base = |options: VolumeOptions| {
        make(&VolumeOptions {
            data: Some("single"),
            metadata: Some("dup"),
            ..options
        })
        .expect("the volume could be made")
    };
    Some(BASES.get_or_init(|| Bases {
        main: base(VolumeOptions {
            size_bytes: 256 << 20,
            ..VolumeOptions::default()
        }),
        old: base(VolumeOptions {
            // The kernel writes no cache for block groups below 100 MiB.
            size_bytes: 1200 << 20,
            features: vec!["^no-holes"],
            runtime_features: vec!["^free-space-tree"],
            mount_options: "space_cache=v1",
            ..VolumeOptions::default()
        }),
        quota: base(VolumeOptions {
            size_bytes: 256 << 20,
            runtime_features: vec!["quota"],
            ..VolumeOptions::default()
        }),
    }))
}

fn check_devices(devices: &[Arc<dyn BlockDevice>]) -> Report {
    let options = CheckOptions {
        data_csums: true,
        ..CheckOptions::default()
    };
    check(devices, &options)
}

/// One group of ids after the other; each claims its ids or passes them on.
fn plant(id: FindingId, bases: &Bases) -> Planted {
    layout::plant(id, bases)
        .or_else(|| refs::plant(id, bases))
        .or_else(|| files::plant(id, bases))
        .unwrap_or_else(|| panic!("no fault for {id}"))
}

#[test]
fn volumes_are_clean_before_planting() {
    let Some(bases) = bases() else { return };
    for image in [&bases.main, &bases.old, &bases.quota] {
        let report = check_devices(&image.snapshot().into_devices());
        assert!(report.is_clean(), "{report}");
    }
}

#[test]
fn each_planted_fault_is_found_under_its_id() {
    let Some(bases) = bases() else { return };
    let only = std::env::var("COWSHED_PLANT").ok();
    let mut missed = Vec::new();
    for &id in FindingId::ALL {
        if only.as_deref().is_some_and(|only| only != id.as_str()) {
            continue;
        }
        let planted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| plant(id, bases)));
        let Ok(planted) = planted else {
            missed.push(format!("{id}: could not be planted"));
            continue;
        };
        match planted {
            Planted::Volume(devices) => {
                let report = check_devices(&devices);
                if only.is_some() {
                    println!("{report}");
                }
                if !report.has(id) {
                    missed.push(format!("{id}: found instead: {:?}", report.counts));
                }
            }
            Planted::Not(reason) => println!("{id} is not planted: {reason}"),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Where `btrfs check` complains, so must we. Prints where we alone do.
#[test]
fn btrfs_check_finds_no_fault_that_we_miss() -> Result<()> {
    let Some(bases) = bases() else { return Ok(()) };
    let mut alone = Vec::new();
    let mut missed = Vec::new();
    for &id in FindingId::ALL {
        let Planted::Volume(devices) = plant(id, bases) else {
            continue;
        };
        let [device] = devices.as_slice() else { continue };
        // Bad sectors cannot be copied.
        let Ok(copy) = MemDevice::copy_of("copy", device.as_ref()) else {
            continue;
        };
        let volume = KernelVolume::from_memory(&[copy])?;
        // Some faults make it loop.
        let image = volume.image().to_str().context("text")?;
        let output = run_raw(
            "timeout",
            &["20", "btrfs", "check", "--readonly", "--check-data-csum", image],
        )?;
        let text = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .concat();
        let clean = output.status.success() && text.contains("no error found");
        let ours = check_devices(&devices);
        if !clean && ours.is_clean() {
            missed.push(format!("{id}: {text}"));
        }
        if clean && !ours.is_clean() {
            alone.push(id.as_str());
        }
    }
    println!(
        "{} faults that btrfs check does not see: {}",
        alone.len(),
        alone.join(", ")
    );
    Ok(())
}

#[test]
fn ids_are_unique_and_kebab() {
    let mut names: Vec<_> = FindingId::ALL.iter().map(|id| id.as_str()).collect();
    assert!(
        names
            .iter()
            .all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
    );
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FindingId::ALL.len());
}

#[test]
fn findings_name_paths() {
    let Some(bases) = bases() else { return };
    let Planted::Volume(devices) = plant(FindingId::InodeNlink, bases) else {
        panic!("a volume")
    };
    let report = check_devices(&devices);
    let path = report
        .findings
        .iter()
        .find(|f| f.id == FindingId::InodeNlink)
        .and_then(|f| f.site.path.clone());
    assert_eq!(path.as_deref(), Some("/d/file-500"), "{report}");
}

/// `docs/CHECK.md` lists every id with its severity and meaning. `COWSHED_BLESS=1` rewrites it.
#[test]
fn document_lists_every_id() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CHECK.md");
    let text = std::fs::read_to_string(&path)?;
    let (head, _) = text.split_once("| id |").context("the table")?;
    let mut wanted = format!("{head}| id | severity | meaning |\n|---|---|---|\n");
    for id in FindingId::ALL {
        wanted += &format!("| `{id}` | {} | {} |\n", id.severity(), id.describe());
    }
    if std::env::var_os("COWSHED_BLESS").is_some() {
        std::fs::write(&path, &wanted)?;
    }
    assert_eq!(
        std::fs::read_to_string(&path)?,
        wanted,
        "docs/CHECK.md is out of date: run with COWSHED_BLESS=1"
    );
    Ok(())
}

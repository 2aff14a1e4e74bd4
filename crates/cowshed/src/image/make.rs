//! From a recipe to an image: the sources are read, then the volume is planned or written.

use std::collections::HashMap;
use std::io::{Read as _, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use btrfs_format::ChecksumType;
use btrfs_image::MkfsOptions;
use btrfs_image::build::{BuildOptions, BuildSubvolume, Cloner, Size, build, dry_run};
use cowshed_device::{BlockDevice, FileDevice, OpenMode, SliceDevice};
use cowshed_runtime::{Env, SystemEnv, Timestamp, Workers};
use cowshed_source::{Body, Inode, InodeId, Meta, Reading, Tree, add_directory, add_source, add_stream, perm};

use super::error::{Error, Result};
use super::fingerprint::fingerprint;
use super::output::{InPlace, Output};
use super::policy::{Policies, walk};
use super::recipe::{Origin, Place, Recipe};
use super::reflink::Reflinks;
use super::report::{Report, report};
use super::{contexts, edit, faked, gpt, table, twins};

/// A size that no device limits.
const UNLIMITED_BYTES: u64 = 1 << 60;
/// Bytes that are copied to a stream at once.
const STREAM_STEP_BYTES: usize = 1 << 20;

/// See [`super::Builder::plan`].
pub(super) fn plan(recipe: &Recipe) -> Result<Report> {
    let ready = prepare(recipe)?;
    let device_bytes = [recipe.size.unwrap_or(UNLIMITED_BYTES)];
    let details = ready.with_options(recipe, None, |options| dry_run(&ready.tree, options, &device_bytes))?;
    let mut report = report(details, Vec::new(), &ready.volume);
    let (before, behind) = recipe.place.around();
    report.bytes += before + behind;
    Ok(report)
}

/// See [`super::Builder::write`].
pub(super) fn write(recipe: &Recipe, path: &Path) -> Result<Report> {
    let ready = prepare(recipe)?;
    let (output, disk) = Output::new(path, ready.image_bytes(recipe)?)?;
    let reflinks = Reflinks::of(recipe, path, &output.open_path()).map_err(Error::output(path))?;
    let mut report = ready.fill(recipe, &disk, as_cloner(reflinks.as_ref()))?;
    report.reflinked_bytes = reflinks.map_or(0, |reflinks| reflinks.shared_bytes());
    drop(disk);
    output.finish(report.bytes)?;
    Ok(report)
}

/// See [`super::Builder::write_to`].
pub(super) fn write_to(recipe: &Recipe, stream: &mut dyn Write) -> Result<Report> {
    let ready = prepare(recipe)?;
    let dir = spool_dir(recipe);
    let (output, disk) = Output::new(&dir.join("stream"), ready.image_bytes(recipe)?)?;
    let mut file = output.into_unnamed()?;
    let report = ready.fill(recipe, &disk, None)?;
    drop(disk);
    let mut buf = vec![0; STREAM_STEP_BYTES];
    let mut left = report.bytes;
    while left > 0 {
        let step = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        file.read_exact(&mut buf[..step]).map_err(Error::output(&dir))?;
        stream.write_all(&buf[..step]).map_err(Error::output("the stream"))?;
        left -= step as u64;
    }
    stream.flush().map_err(Error::output("the stream"))?;
    Ok(report)
}

/// See [`super::Builder::write_onto`].
pub(super) fn write_onto(recipe: &Recipe, devices: &[Arc<dyn BlockDevice>]) -> Result<Report> {
    let ready = prepare(recipe)?;
    let (details, reports) = ready.with_options(recipe, None, |options| build(&ready.tree, options, devices))?;
    Ok(report(details, reports, &ready.volume))
}

/// See [`super::Builder::write_all`].
pub(super) fn write_all(recipe: &Recipe, paths: &[PathBuf]) -> Result<Report> {
    if !matches!(recipe.place, Place::Alone) {
        return Err(Error::Option(
            "a partition or an offset goes with one image file".into(),
        ));
    }
    let ready = prepare(recipe)?;
    let mut outputs = Vec::new();
    let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for path in paths {
        let metadata = std::fs::metadata(path);
        if metadata.is_ok_and(|metadata| metadata.file_type().is_block_device()) {
            devices.push(Arc::new(FileDevice::open(path, OpenMode::ReadWrite)?));
            outputs.push(None);
            continue;
        }
        let (output, device) = Output::new(path, ready.image_bytes(recipe)?)?;
        devices.push(device);
        outputs.push(Some(output));
    }
    let (details, reports) = ready.with_options(recipe, None, |options| build(&ready.tree, options, &devices))?;
    drop(devices);
    for (output, bytes) in outputs.into_iter().zip(&details.device_bytes) {
        if let Some(output) = output {
            output.finish(*bytes)?;
        }
    }
    Ok(report(details, reports, &ready.volume))
}

/// See [`super::Builder::write_in_place`].
pub(super) fn write_in_place(recipe: &Recipe, path: &Path) -> Result<Report> {
    let found = path.symlink_metadata();
    if found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return write(recipe, path);
    }
    let ready = prepare(recipe)?;
    let (place, device) = InPlace::new(path, ready.room_bytes(recipe))?;
    let devices = [device];
    let reflinks = Reflinks::of(recipe, path, path).map_err(Error::output(path))?;
    let cloner = as_cloner(reflinks.as_ref());
    let (details, reports) = ready.with_options(recipe, cloner, |options| build(&ready.tree, options, &devices))?;
    drop(devices);
    place.finish(details.device_bytes.iter().sum())?;
    let mut report = report(details, reports, &ready.volume);
    report.reflinked_bytes = reflinks.map_or(0, |reflinks| reflinks.shared_bytes());
    Ok(report)
}

fn as_cloner(reflinks: Option<&Reflinks>) -> Option<&dyn Cloner> {
    reflinks.map(|reflinks| reflinks as &dyn Cloner)
}

/// See [`super::Builder::write_into_partition`].
pub(super) fn write_into_partition(recipe: &Recipe, image: &Path, partition: &str) -> Result<Report> {
    let disk: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image, OpenMode::ReadWrite)?);
    let range = table::find(&*disk, partition)?;
    let room = range.end - range.start;
    let size = recipe.size.unwrap_or(room - room % 4096);
    if size > room {
        let missing = size - room;
        return Err(Error::Option(format!(
            "partition '{partition}' has {room} bytes, {size} are asked for: {missing} bytes are missing"
        )));
    }
    let recipe = Recipe {
        size: Some(size),
        place: Place::Alone,
        ..recipe.clone()
    };
    write_onto(&recipe, &[Arc::new(SliceDevice::new(disk, range.start, room)?)])
}

fn spool_dir(recipe: &Recipe) -> PathBuf {
    recipe.spool_dir.clone().unwrap_or_else(std::env::temp_dir)
}

/// All that building needs.
struct Ready {
    tree: Tree,
    subvolumes: Vec<BuildSubvolume>,
    policies: Policies,
    twins: HashMap<InodeId, InodeId>,
    volume: MkfsOptions,
    workers: Workers,
}

/// Reads the sources.
fn prepare(recipe: &Recipe) -> Result<Ready> {
    let env = Arc::new(Threads(recipe.jobs.unwrap_or_else(|| SystemEnv.processors())));
    let workers = Workers::new(env.clone());
    let mut subvolumes = recipe.subvolumes.clone();
    let mut tree = read(recipe, &*env, &workers, &mut subvolumes)?;
    edit::apply(&mut tree, &recipe.edits)?;
    for subvolume in &subvolumes {
        if subvolume.snapshot_of.is_some() {
            add_dir(&mut tree, &subvolume.path)?;
        }
    }
    if let Some(contexts) = &recipe.contexts {
        contexts::apply(&mut tree, contexts);
    }
    let mut volume = recipe.volume.clone();
    if !recipe.has_uuid {
        let uuid = match &recipe.seed {
            Some(seed) => uuid_of_seed(seed),
            None => uuid_of_sum(&fingerprint(&tree, volume.label.as_bytes())),
        };
        volume.uuid = uuid.into_bytes();
    }
    if let Some(clamp) = recipe.edits.clamp {
        volume.time = SystemTime::UNIX_EPOCH + Duration::from_secs(clamp.sec.max(0).cast_unsigned());
    }
    volume.byte_count = recipe.size;
    let policies = Policies::new(&tree, &recipe.storage)?;
    let twins = match recipe.dedupe {
        true => twins::find(&tree, &policies, &workers)?,
        false => HashMap::new(),
    };
    Ok(Ready {
        tree,
        subvolumes,
        policies,
        twins,
        volume,
        workers,
    })
}

fn read(recipe: &Recipe, env: &dyn Env, workers: &Workers, subvolumes: &mut Vec<BuildSubvolume>) -> Result<Tree> {
    let mut tree = Tree::default();
    let spool_dir = spool_dir(recipe);
    let keep = &mut |path: &[u8], is_dir: bool| recipe.filter.keeps(path, is_dir);
    let mut reading = Reading {
        platform: &recipe.platform,
        spool_dir: &spool_dir,
        env,
        workers,
        layers: recipe.layers.as_ref().map(|_| Vec::new()),
    };
    for source in &recipe.sources {
        tree.set_base(&source.into)?;
        match &source.origin {
            Origin::Path(path) => {
                if path.is_dir() {
                    faked::check()?;
                }
                add_source(&mut tree, path, &mut reading, keep)?;
            }
            Origin::Dir(dir) => {
                faked::check()?;
                add_directory(&mut tree, dir, workers, keep)?;
            }
            Origin::Stdin => {
                let stream = Box::new(std::io::stdin());
                add_stream(&mut tree, "standard input", stream, &mut reading, keep)?;
            }
        }
    }
    tree.set_base(b"")?;
    if let (Some(dir), Some(layers)) = (&recipe.layers, reading.layers) {
        if layers.is_empty() {
            return Err(Error::Option("no source has layers: none is a container image".into()));
        }
        let mut before = None;
        for (layer, number) in layers.into_iter().zip(1..) {
            let path = [dir, format!("/{number:03}").as_bytes()].concat();
            if let Some((dir, name)) = tree.place(&path)? {
                tree.put_dir(dir, name, layer)?;
            }
            subvolumes.push(BuildSubvolume {
                path: path.clone(),
                read_only: true,
                is_default: false,
                snapshot_of: None,
                later_state_of: before.replace(path),
            });
        }
    }
    Ok(tree)
}

/// An empty directory, which a snapshot takes the place of.
fn add_dir(tree: &mut Tree, path: &[u8]) -> Result<()> {
    let taken = || {
        let path = String::from_utf8_lossy(path);
        Error::Option(format!("'{path}' is to be a snapshot and is there already"))
    };
    if tree.lookup(path)?.is_some() {
        return Err(taken());
    }
    let (dir, name) = tree.place(path)?.ok_or_else(taken)?;
    let meta = Meta {
        mode: perm::DEFAULT_DIR,
        ..Meta::default()
    };
    let body = Body::empty_dir();
    tree.put(dir, name, Inode { meta, body })?;
    Ok(())
}

impl Ready {
    /// Bytes that the image has at most.
    fn image_bytes(&self, recipe: &Recipe) -> Result<u64> {
        let (before, behind) = recipe.place.around();
        if before % 4096 != 0 {
            return Err(Error::Option(format!("offset {before} is no multiple of 4096")));
        }
        let whole = before.checked_add(self.room_bytes(recipe));
        let whole = whole.and_then(|bytes| bytes.checked_add(behind));
        whole.ok_or_else(|| Error::Option("the image is larger than 2^64 bytes".into()))
    }

    /// Bytes that the volume has at most.
    fn room_bytes(&self, recipe: &Recipe) -> u64 {
        let copies = 1 + self.subvolumes.len() as u64;
        let bound = || size_bound(&self.tree) + copies * self.tree.inode_count() as u64 * INODE_BYTES;
        let least = recipe.slack_bytes.max(recipe.size_min);
        recipe.size.unwrap_or_else(|| bound().saturating_add(least))
    }

    /// Writes all of the image.
    fn fill(&self, recipe: &Recipe, disk: &Arc<dyn BlockDevice>, cloner: Option<&dyn Cloner>) -> Result<Report> {
        let (before, behind) = recipe.place.around();
        let room = self.room_bytes(recipe);
        let devices: [Arc<dyn BlockDevice>; 1] = [Arc::new(SliceDevice::new(disk.clone(), before, room)?)];
        let (details, reports) = self.with_options(recipe, cloner, |options| build(&self.tree, options, &devices))?;
        let volume_bytes: u64 = details.device_bytes.iter().sum();
        if let Place::Partition(kind) = recipe.place {
            let uuid = |purpose: &str| uuid_of_seed(&[&self.volume.uuid[..], purpose.as_bytes()].concat());
            let table = gpt::Table {
                disk: uuid("disk"),
                partition: uuid("partition"),
                kind,
                name: &self.volume.label,
                partition_bytes: volume_bytes,
            };
            table.write(&**disk)?;
        }
        let mut report = report(details, reports, &self.volume);
        report.bytes += before + behind;
        Ok(report)
    }

    fn with_options<R>(
        &self,
        recipe: &Recipe,
        cloner: Option<&dyn Cloner>,
        run: impl FnOnce(&BuildOptions<'_>) -> std::result::Result<R, btrfs_image::MkfsError>,
    ) -> Result<R> {
        let options = BuildOptions {
            volume: self.volume.clone(),
            subvolumes: self.subvolumes.clone(),
            policy: &self.policies,
            twins: &self.twins,
            cloner,
            size: match recipe.size {
                Some(_) => Size::OfDevices,
                None if recipe.size_min > 0 => Size::AtLeast {
                    bytes: recipe.size_min - recipe.size_min % 4096,
                },
                None => Size::Fit {
                    slack_bytes: recipe.slack_bytes,
                },
            },
            workers: &self.workers,
            progress: &*recipe.progress,
        };
        run(&options).map_err(|error| match error {
            btrfs_image::MkfsError::Source(error) => Error::Source(error),
            error => error.into(),
        })
    }
}

/// The uuid that follows from a seed; see [`Builder::seed`].
pub fn uuid_of_seed(seed: &[u8]) -> uuid::Uuid {
    uuid_of_sum(&ChecksumType::Sha256.compute(seed))
}

fn uuid_of_sum(sum: &[u8; 32]) -> uuid::Uuid {
    let mut random = [0; 16];
    random.copy_from_slice(&sum[..16]);
    uuid::Builder::from_random_bytes(random).into_uuid()
}

/// What the items of an inode take at most, with their copies.
const INODE_BYTES: u64 = 64 << 10;

/// More than an image of the tree takes: its contents in whole sectors twice, and what the items of
/// an inode take at most, with their copies.
fn size_bound(tree: &Tree) -> u64 {
    const FIXED_BYTES: u64 = 1 << 30;
    let mut bound = FIXED_BYTES + tree.inode_count() as u64 * INODE_BYTES;
    walk(tree, Tree::ROOT, Vec::new(), &mut |_, id| {
        if let Body::File(content) = &tree[id].body {
            bound += content
                .pieces()
                .iter()
                .map(|piece| piece.len_bytes * 2 + INODE_BYTES)
                .sum::<u64>();
        }
    });
    bound
}

/// The machine, with so many processors.
struct Threads(usize);

impl Env for Threads {
    fn now(&self) -> Timestamp {
        SystemEnv.now()
    }
    fn random(&self, bytes: &mut [u8]) {
        SystemEnv.random(bytes);
    }
    fn processors(&self) -> usize {
        self.0
    }
}

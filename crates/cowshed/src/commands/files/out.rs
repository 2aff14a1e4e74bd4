//! `cowshed extract` and `cowshed export`: what is in an image, as files, an archive, a container
//! image or a stream.
//!
//! An archive is the same for the same contents: names in byte order, and no time is later than
//! `SOURCE_DATE_EPOCH`.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use cowshed::FileKind;
use cowshed::image::NewFile;
use cowshed_device::OpenMode;
use cowshed_source::{Meta, OciWriter, Platform, TarKind, TarWriter, Target, Time, Xattr};
use regex::bytes::Regex;

use super::copy::{Copier, Existing, Options, Preserve, When as Sparse};
use super::finish::finish;
use super::host::Host;
use super::session::{Base, Place, Session, reason};
use super::side::{Follow, STEP_BYTES, Stat};
use super::walk::{Descend, When, walk};
use crate::commands::send::{self, SendArgs};
use crate::devices::ReadArgs;
use crate::people::printable;

#[derive(Args, Debug)]
pub struct ExtractArgs {
    /// IMAGE:/PATH, or an image
    image: PathBuf,
    /// Where it goes; made if it is not there
    dir: PathBuf,
    /// Say what is copied
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Args, Debug)]
pub struct ExportArgs {
    #[command(subcommand)]
    form: Form,
}

#[derive(Subcommand, Debug)]
enum Form {
    /// An archive: ustar with extended headers of PAX
    Tar(TarArgs),
    /// A container image of one layer: a directory, or an archive if the name ends with .tar
    Oci(OciArgs),
    /// A send stream of a read-only subvolume
    Send(SendOutArgs),
}

#[derive(Args, Debug)]
struct TarArgs {
    /// IMAGE:/PATH, or an image
    image: PathBuf,
    /// The archive; the standard output without it, or for -
    out: Option<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Args, Debug)]
struct OciArgs {
    /// IMAGE:/PATH, or an image
    image: PathBuf,
    /// The container image; an archive on the standard output without it, or for -
    out: Option<PathBuf>,
    /// OS/ARCHITECTURE of the programs in it; this machine's without it
    #[arg(long)]
    platform: Option<Platform>,
    /// Name of the image in the layout's index
    #[arg(short, long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    tag: Option<String>,
    #[command(flatten)]
    read: ReadArgs,
}

#[derive(Args, Debug)]
struct SendOutArgs {
    /// IMAGE:/PATH of a read-only subvolume
    subvolume: PathBuf,
    /// The stream; the standard output without it, or for -
    out: Option<PathBuf>,
}

/// An image alone is its top level.
fn start(session: &Session<'_>, image: &Path) -> Result<Place> {
    if session.is_image(image) {
        return Ok(session.in_image(image, OpenMode::ReadOnly)?.1);
    }
    let mut whole = image.as_os_str().to_owned();
    whole.push(":/");
    Ok(session.in_image(Path::new(&whole), OpenMode::ReadOnly)?.1)
}

pub fn run_extract(args: &ExtractArgs, session: &Session<'_>) -> Result<()> {
    session.read_with(&args.read);
    let options = Options {
        reflink: Sparse::Never,
        is_verbose: args.verbose,
        ..Options::whole()
    };
    let from = start(session, &args.image)?;
    copy_out(&mut Copier::new(session, options), &from, &args.dir)
}

/// Copies what is at a place in an image into a directory, which is made if it is not there.
fn copy_out(copier: &mut Copier<'_>, from: &Place, dir: &Path) -> Result<()> {
    let stat = match from.stat(Follow::No) {
        Ok(stat) => stat,
        Err(error) => bail!("cannot stat {}: {}", from.quoted(), reason(&error)),
    };
    std::fs::create_dir_all(dir).with_context(|| printable(dir))?;
    let host = Host::beneath(dir).with_context(|| printable(dir))?;
    let dir = Place {
        side: Rc::new(host),
        path: PathBuf::from("."),
        shown: dir.to_owned().into(),
    };
    let to = match stat.is_dir() {
        true => dir,
        false => dir.join(&from.name()),
    };
    copier.copy(from, &to);
    Ok(())
}

/// What `btrfs restore` takes out of a damaged volume.
pub struct Restoring<'a> {
    pub image: &'a Path,
    pub dir: &'a Path,
    pub subvolume: u64,
    /// Where the root of the root tree is, and that of the top level, where they are not the
    /// current ones.
    pub tree_root: Option<u64>,
    pub top_level_root: Option<u64>,
    /// Of paths that begin with a slash, those that are restored.
    pub paths: Option<Regex>,
    /// Files are named, and not restored.
    pub is_dry_run: bool,
    pub overwrites: bool,
    /// Owners, modes and times.
    pub metadata: bool,
    pub symlinks: bool,
    /// Snapshots below.
    pub snapshots: bool,
    pub xattrs: bool,
    pub is_verbose: bool,
}

impl Restoring<'_> {
    fn is_wanted(&self, path: &[u8]) -> bool {
        let absolute = [b"/", path].concat();
        self.paths.as_ref().is_none_or(|paths| paths.is_match(&absolute))
    }
}

/// The path of a place below another one, whose own path has this many bytes.
fn path_below(place: &Place, root: usize) -> &[u8] {
    let below = place.shown.as_bytes().get(root..).unwrap_or_default();
    below.strip_prefix(b"/").unwrap_or(below)
}

/// Restores what can be read. Returns the exit code.
pub fn restore(args: &Restoring<'_>) -> Result<u8> {
    crate::log::to_terminal(0);
    let session = Session::new("restore", &Base::Host);
    let roots = [("root", args.tree_root), ("fsroot", args.top_level_root)];
    let roots = roots.map(|(mode, addr)| addr.map_or(String::new(), |addr| format!(":{mode}={addr}")));
    session.read_with(&ReadArgs {
        options: vec![format!(
            "rescue=all:salvage{},subvolid={}",
            roots.concat(),
            args.subvolume
        )],
        ..ReadArgs::default()
    });
    let options = Options {
        reflink: Sparse::Never,
        preserve: Preserve {
            mode: args.metadata,
            owner: args.metadata,
            times: args.metadata,
            links: true,
            xattrs: args.xattrs,
        },
        existing: if args.overwrites {
            Existing::Replace
        } else {
            Existing::Keep
        },
        skips_symlinks: !args.symlinks,
        is_verbose: args.is_verbose,
        ..Options::whole()
    };
    let run = || -> Result<()> {
        let from = start(&session, args.image)?;
        let left_out = match args.snapshots {
            true => HashSet::new(),
            false => snapshots_below(&session, args)?,
        };
        if args.is_dry_run {
            name_all(&session, args, &from, &left_out);
            return Ok(());
        }
        let mut copier = Copier::new(&session, options);
        copier.leave_out(left_out);
        if args.paths.is_some() {
            let root = from.shown.as_bytes().len();
            copier.keep_only(move |place| args.is_wanted(path_below(place, root)));
        }
        copy_out(&mut copier, &from, args.dir)
    };
    let done = run();
    finish(session, done)
}

/// The numbers of all snapshots but the one that is asked for.
fn snapshots_below(session: &Session<'_>, args: &Restoring<'_>) -> Result<HashSet<u64>> {
    let mut whole = args.image.as_os_str().to_owned();
    whole.push(":/");
    let (image, _) = session.in_image(Path::new(&whole), OpenMode::ReadOnly)?;
    let engine = image.engine();
    let Ok(subvolumes) = engine.volume.subvolumes() else {
        return Ok(HashSet::new());
    };
    let (mut found, mut from) = (HashSet::new(), 0);
    loop {
        let info = match subvolumes.next(&engine.ctx, from) {
            Ok(Some((info, _))) => info,
            Ok(None) => break,
            Err(error) => {
                // What is damaged may be a subvolume that is not asked for.
                let error = reason(&io::Error::from(error));
                session.warn(format_args!(
                    "warning: not all snapshots are known and left out: {error}"
                ));
                break;
            }
        };
        from = info.id.saturating_add(1);
        if info.parent_uuid != [0; 16] && info.id != args.subvolume {
            found.insert(info.id);
        }
    }
    Ok(found)
}

fn name_all(session: &Session<'_>, args: &Restoring<'_>, from: &Place, left_out: &HashSet<u64>) {
    session.say("This is a dry-run, no files are going to be restored");
    let root = from.shown.as_bytes().len();
    let _ = walk(from, Follow::No, &mut |seen| {
        let visit = match seen {
            Ok(visit) => visit,
            Err((place, error)) => {
                session.cannot("access", place, &error);
                return ControlFlow::Continue(Descend::No);
            }
        };
        let below = path_below(visit.place, root);
        let is_left_out = left_out.contains(&visit.stat.dev) || !(below.is_empty() || args.is_wanted(below));
        if visit.when == When::After || is_left_out {
            return ControlFlow::Continue(Descend::No);
        }
        if visit.stat.kind == FileKind::Regular {
            let below = Path::new(OsStr::from_bytes(below));
            session.say(format_args!("{}", printable(args.dir.join(below))));
        }
        ControlFlow::Continue(Descend::Yes)
    });
}

pub fn run_export(args: &ExportArgs, session: &Session<'_>) -> Result<()> {
    match &args.form {
        Form::Tar(args) => {
            session.read_with(&args.read);
            let place = start(session, &args.image)?;
            to_output(args.out.as_deref(), |out, _| {
                let mut tar = TarWriter::new(BufWriter::with_capacity(STEP_BYTES, out));
                put_tree(&place, &mut tar)?;
                tar.finish()?.flush()?;
                Ok(())
            })
        }
        Form::Oci(args) => {
            session.read_with(&args.read);
            let place = start(session, &args.image)?;
            let (platform, tag) = (args.platform.clone().unwrap_or_default(), args.tag.as_deref());
            let put = |target: Target<'_>| -> Result<()> {
                let mut tar = TarWriter::of_layer(OciWriter::new(target)?);
                put_tree(&place, &mut tar)?;
                tar.finish()?.finish(&platform, tag)?;
                Ok(())
            };
            match args.out.as_deref().filter(|out| *out != Path::new("-")) {
                Some(out) if out.extension().is_none_or(|end| end != "tar") => {
                    crate::unfinished::remove_when_interrupted();
                    put(Target::Dir(out)).with_context(|| printable(out))
                }
                out => to_output(out, |out, spool_dir| {
                    let out = Box::new(BufWriter::new(out));
                    put(Target::Archive { out, spool_dir })
                }),
            }
        }
        Form::Send(args) => {
            let out = args.out.clone().filter(|out| out != Path::new("-"));
            let send = SendArgs {
                no_end_between: false,
                parent: None,
                clone_sources: Vec::new(),
                file: out,
                no_data: false,
                proto: None,
                compressed_data: false,
                verbose: false,
                quiet: true,
                subvolumes: vec![args.subvolume.clone()],
            };
            match send::run(&send)? {
                0 => Ok(()),
                _ => bail!("not sent"),
            }
        }
    }
}

/// Runs with the standard output, or with a file that gets its name when it is complete; and with a
/// directory for temporary files that has room for as much: that of the file.
fn to_output(out: Option<&Path>, run: impl FnOnce(&mut dyn Write, &Path) -> Result<()>) -> Result<()> {
    let Some(path) = out.filter(|out| *out != Path::new("-")) else {
        return run(&mut io::stdout().lock(), &std::env::temp_dir());
    };
    // A pipe or device is written as it is.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        let mut file = File::options()
            .write(true)
            .open(path)
            .with_context(|| printable(path))?;
        return run(&mut file, &std::env::temp_dir());
    }
    crate::unfinished::remove_when_interrupted();
    let write = || -> Result<()> {
        let new = NewFile::create(path)?;
        run(&mut new.file(), new.dir())?;
        Ok(new.finish()?)
    };
    write().with_context(|| printable(path))
}

/// The bound on times that `SOURCE_DATE_EPOCH` says.
fn epoch() -> Result<Option<i64>> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Err(_) => Ok(None),
        Ok(text) => match text.parse() {
            Ok(seconds) => Ok(Some(seconds)),
            Err(_) => bail!("SOURCE_DATE_EPOCH={text} is no number of seconds"),
        },
    }
}

/// Puts what is at a place into an archive, names relative to it. Errors: what cannot be read, and
/// those of the output: an archive has everything, or is none.
fn put_tree<W: Write>(start: &Place, tar: &mut TarWriter<W>) -> Result<()> {
    let epoch = epoch()?;
    let root = start.shown.as_bytes().len();
    let mut linked: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
    let mut result = Ok(());
    let _ = walk(start, Follow::No, &mut |seen| {
        let visit = match seen {
            Ok(visit) if visit.when == When::After => return ControlFlow::Continue(Descend::No),
            Ok(visit) => visit,
            Err((place, error)) => {
                result = Err(anyhow::Error::new(error).context(printable(&place.shown)));
                return ControlFlow::Break(());
            }
        };
        let path = match path_below(visit.place, root) {
            b"" if visit.stat.is_dir() => b".".to_vec(),
            b"" => visit.place.name().as_bytes().to_vec(),
            path => path.to_vec(),
        };
        result =
            put(tar, visit.place, visit.stat, &path, &mut linked, epoch).with_context(|| printable(&visit.place.shown));
        match result.is_ok() {
            true => ControlFlow::Continue(Descend::Yes),
            false => ControlFlow::Break(()),
        }
    });
    result
}

fn put<W: Write>(
    tar: &mut TarWriter<W>,
    place: &Place,
    stat: &Stat,
    path: &[u8],
    linked: &mut HashMap<(u64, u64), Vec<u8>>,
    epoch: Option<i64>,
) -> Result<()> {
    let meta = meta_of(place, stat, epoch)?;
    if stat.nlink > 1 && !stat.is_dir() {
        if let Some(first) = linked.get(&(stat.dev, stat.ino)) {
            let plain = Meta {
                xattrs: Vec::new(),
                ..meta
            };
            return Ok(tar.entry(path, &plain, TarKind::Link(first))?);
        }
        linked.insert((stat.dev, stat.ino), path.to_vec());
    }
    let (major, minor) = stat.device;
    match stat.kind {
        FileKind::Directory => tar.entry(path, &meta, TarKind::Dir)?,
        FileKind::Symlink => {
            let target = place.side.read_link(&place.path)?;
            tar.entry(path, &meta, TarKind::Symlink(target.as_bytes()))?;
        }
        FileKind::CharDevice => tar.entry(path, &meta, TarKind::Char(major, minor))?,
        FileKind::BlockDevice => tar.entry(path, &meta, TarKind::Block(major, minor))?,
        FileKind::Fifo => tar.entry(path, &meta, TarKind::Fifo)?,
        FileKind::Socket => crate::people::warn(format_args!(
            "cowshed export: {}: socket ignored",
            printable(&place.shown)
        )),
        FileKind::Regular => put_file(tar, place, stat, path, &meta)?,
    }
    Ok(())
}

fn put_file<W: Write>(tar: &mut TarWriter<W>, place: &Place, stat: &Stat, path: &[u8], meta: &Meta) -> Result<()> {
    let source = place.side.open(&place.path)?;
    let mut data = Vec::new();
    let mut at = 0;
    while at < stat.size_bytes {
        let Some((start, end)) = source.data_from(at)? else {
            break;
        };
        let end = end.min(stat.size_bytes);
        // Extents that touch are one stretch.
        match data.last_mut() {
            Some((last, len)) if *last + *len == start => *len += end - start,
            _ => data.push((start, end - start)),
        }
        at = end;
    }
    let kind = TarKind::File {
        size_bytes: stat.size_bytes,
        data: &data,
    };
    tar.entry(path, meta, kind)?;
    let mut buf = vec![0; STEP_BYTES];
    for (start, len) in &data {
        let (mut at, end) = (*start, start + len);
        while at < end {
            let room = usize::try_from(end - at).unwrap_or(STEP_BYTES).min(STEP_BYTES);
            let got = source.read_at(at, &mut buf[..room])?;
            if got == 0 {
                bail!("shorter than it was");
            }
            tar.data(&buf[..got])?;
            at += got as u64;
        }
    }
    Ok(())
}

fn meta_of(place: &Place, stat: &Stat, epoch: Option<i64>) -> Result<Meta> {
    let xattrs = place.side.xattrs(&place.path)?;
    let xattrs = xattrs.into_iter().map(|(name, value)| Xattr {
        name: name.into(),
        value: value.into(),
    });
    let mut mtime = Time {
        sec: stat.mtime.secs,
        nsec: stat.mtime.nanos,
    };
    if let Some(epoch) = epoch.filter(|epoch| mtime.sec >= *epoch) {
        mtime = Time { sec: epoch, nsec: 0 };
    }
    Ok(Meta {
        mode: stat.perm,
        uid: stat.uid,
        gid: stat.gid,
        atime: Time::default(),
        mtime,
        xattrs: xattrs.collect(),
    })
}

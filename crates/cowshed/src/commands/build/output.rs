//! Where an image goes: a file, several, a device, a partition, a pipe.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cowshed::image::{Builder, Report};
use cowshed::{BlockDevice, FileDevice, OpenMode, SliceDevice};

use super::args::BuildArgs;

/// Where the partition of `--partition` begins.
const PARTITION_BYTES: u64 = 1 << 20;

/// Where an image goes.
pub(super) enum Output<'o> {
    File(&'o Path),
    Device(&'o Path),
    /// Several files or devices.
    Several(&'o [PathBuf]),
    /// A partition of a disk that is there.
    Partition(&'o Path, &'o str),
    Stdout,
}

pub(super) fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

impl<'o> Output<'o> {
    pub(super) fn of(args: &'o BuildArgs) -> Result<Self> {
        let has_place = args.partition.is_some() || args.offset.is_some();
        let output = match (&args.target, &args.out[..]) {
            (Some((image, partition)), []) => Self::Partition(image, partition),
            (Some(_), _) => bail!("--target says where the volume goes: OUT is one too many"),
            (None, []) => bail!("OUT says where the image goes"),
            (None, [out]) if out.as_os_str() == "-" => Self::Stdout,
            (None, [out]) if is_device(out) => Self::Device(out),
            (None, [out]) => Self::File(out),
            (None, several) => Self::Several(several),
        };
        match output {
            Self::File(_) | Self::Stdout => {}
            _ if has_place => bail!("--partition and --offset go with one image file"),
            _ if args.reflink => bail!("--reflink goes with one image file"),
            _ => {}
        }
        if args.verify && matches!(output, Self::Stdout) {
            bail!("--verify reads the image again: it does not go with -");
        }
        Ok(output)
    }

    /// Is there something that is overwritten only by force?
    pub(super) fn may_hold(&self) -> bool {
        match self {
            Self::File(_) | Self::Stdout => false,
            Self::Device(_) | Self::Partition(..) => true,
            Self::Several(paths) => paths.iter().any(|path| is_device(path)),
        }
    }

    /// A directory with room for what is kept meanwhile: that of the image.
    pub(super) fn dir(&self) -> Option<PathBuf> {
        let path = match self {
            Self::File(path) | Self::Partition(path, _) => path,
            Self::Several(paths) => paths.first()?.as_path(),
            Self::Device(_) | Self::Stdout => return None,
        };
        match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => Some(dir.into()),
            _ => Some(".".into()),
        }
    }

    pub(super) fn write(&self, builder: &mut Builder, size: Option<u64>) -> Result<Report> {
        const HOLDS_NONE: &str = "holds no volume, or what it held before";
        Ok(match self {
            Self::File(path) => builder.write(path)?,
            Self::Several(paths) => builder.write_all(paths)?,
            Self::Stdout => builder.write_to(&mut std::io::stdout().lock())?,
            Self::Partition(image, partition) => {
                let report = builder.write_into_partition(image, partition);
                report.with_context(|| format!("{}: partition {partition} {HOLDS_NONE}", image.display()))?
            }
            Self::Device(path) => {
                let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, OpenMode::ReadWrite)?);
                builder.size(size.unwrap_or_else(|| device.size_bytes()));
                let report = builder.write_onto(&[device]);
                report.with_context(|| format!("{} {HOLDS_NONE}", path.display()))?
            }
        })
    }

    /// Checks the image, the checksums of data included.
    pub(super) fn verify(&self, args: &BuildArgs) -> Result<()> {
        let open =
            |path: &Path| -> Result<Arc<dyn BlockDevice>> { Ok(Arc::new(FileDevice::open(path, OpenMode::ReadOnly)?)) };
        let part = |path: &Path, start: u64, end: Option<u64>| -> Result<Arc<dyn BlockDevice>> {
            let whole = open(path)?;
            let end = end.unwrap_or_else(|| whole.size_bytes());
            Ok(Arc::new(SliceDevice::new(whole, start, end - start)?))
        };
        let devices = match self {
            Self::Stdout => return Ok(()),
            Self::Device(path) => vec![open(path)?],
            Self::Several(paths) => paths.iter().map(|path| open(path)).collect::<Result<_>>()?,
            Self::Partition(path, partition) => {
                let range = cowshed::image::find_partition(&*open(path)?, partition)?;
                vec![part(path, range.start, Some(range.end))?]
            }
            Self::File(path) => {
                let start = match args.partition {
                    Some(_) => PARTITION_BYTES,
                    None => args.offset.unwrap_or_default(),
                };
                vec![part(path, start, None)?]
            }
        };
        let options = cowshed::CheckOptions {
            data_csums: true,
            ..Default::default()
        };
        if !cowshed::check(&devices, &options).is_clean() {
            bail!("{self}: the image is not sound; cowshed check names the faults");
        }
        Ok(())
    }
}

impl std::fmt::Display for Output<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) | Self::Device(path) => write!(f, "{}", path.display()),
            Self::Several(paths) => {
                let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
                f.write_str(&names.join(", "))
            }
            Self::Partition(image, partition) => write!(f, "{}:{partition}", image.display()),
            Self::Stdout => f.write_str("standard output"),
        }
    }
}

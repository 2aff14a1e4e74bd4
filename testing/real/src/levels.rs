//! Files of all sizes up to 1 MiB, of data that compresses in part, written through a mount under
//! every algorithm and level, and read back by the kernel, byte for byte; then the other way round.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use cowshed_device_sim::Rng;
use cowshed_harness::need;
use serde_json::Value;

use crate::cowshed::{Mount, binary, judge, made, run_in};

#[derive(clap::Args)]
pub struct Args {
    /// Of all levels only one in so many, which ones by the seed
    #[arg(long, default_value_t = 1)]
    one_in: usize,
    /// For contents, sizes and the order of writes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Files under each level, beside those of the sizes at which something changes
    #[arg(long, default_value_t = 16)]
    files: usize,
}

const FILE_BYTES_MAX: u64 = 1 << 20;
/// Where inline data, blocks, extents of compressed data, and files here end.
const EDGES: [u64; 7] = [0, 2048, 4096, 64 << 10, 128 << 10, 256 << 10, FILE_BYTES_MAX];
/// Of one kind in what is written.
const PIECE_BYTES_MAX: u64 = 24 << 10;

/// As `compress=` names them.
fn levels() -> Vec<String> {
    let zlib = (1..=9).map(|level| format!("zlib:{level}"));
    let zstd = (-15..=15)
        .filter(|level| *level != 0)
        .map(|level| format!("zstd:{level}"));
    ["lzo".to_owned()].into_iter().chain(zlib).chain(zstd).collect()
}

pub fn main(args: &Args) -> Result<()> {
    if need::root().is_none() || need::fuse().is_none() {
        return Ok(());
    }
    let one_in = args.one_in.max(1);
    let is_ours = |number: usize| (number + args.seed as usize).is_multiple_of(one_in);
    let levels = levels().into_iter().enumerate().filter(|(number, _)| is_ours(*number));
    let options: Vec<_> = levels
        .flat_map(|(_, level)| ["compress", "compress-force"].map(|how| format!("{how}={level}")))
        .collect();
    ensure!(!options.is_empty(), "no level is left: --one-in {one_in} is too much");
    let mut size_bytes = FILE_BYTES_MAX * 2 * (EDGES.len() * 3 + args.files) as u64 * options.len() as u64;
    size_bytes = size_bytes.next_multiple_of(1 << 30) + (1 << 30);
    let volume = made(size_bytes)?;

    for how in &options {
        let mount = Mount::new(volume.images(), volume.dir(), how)?;
        let dir = mount.path().join(how);
        fill(&dir, args)?;
        assert_compressed(&dir, how)?;
        mount.unmount()?;
    }
    judge(&volume, "after our writing")?;
    let mut files = 0;
    volume.with_mount(|root| {
        for how in &options {
            files +=
                compare(&root.join(how), args).with_context(|| format!("{how}: written here, read by the kernel"))?;
        }
        Ok(())
    })?;

    for how in &options {
        let mounted = volume.mount_with(how)?;
        fs::remove_dir_all(mounted.dir().join(how))?;
        fill(&mounted.dir().join(how), args)?;
        mounted.unmount_quietly()?;
    }
    let mount = Mount::new(volume.images(), volume.dir(), "ro")?;
    for how in &options {
        let dir = mount.path().join(how);
        files += compare(&dir, args).with_context(|| format!("{how}: written by the kernel, read here"))?;
        assert_compressed(&dir, how)?;
    }
    mount.unmount()?;
    println!("{files} files under {} ways of compression: passed", options.len());
    Ok(())
}

/// The files of a directory, always the same ones for the same arguments: names and what is
/// written.
fn files(dir: &Path, args: &Args) -> Vec<(PathBuf, Writes)> {
    let edges = EDGES.iter().flat_map(|edge| [edge.saturating_sub(1), *edge, edge + 1]);
    let name = dir.file_name().map(|name| name.as_encoded_bytes().to_vec());
    let of_dir = name.unwrap_or_default().iter().fold(args.seed, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    let mut rng = Rng::new(of_dir);
    let drawn: Vec<_> = (0..args.files).map(|_| 1 << rng.below(20)).collect();
    let sizes = edges.chain(drawn.into_iter().map(|most| most + rng.below(most)));
    let sizes: Vec<u64> = sizes.map(|size| size.min(FILE_BYTES_MAX)).collect();
    let file = |(number, size): (usize, u64)| (dir.join(format!("f{number}-{size}")), Writes::new(&mut rng, size));
    sizes.into_iter().enumerate().map(file).collect()
}

/// How a file comes to its contents.
struct Writes {
    /// At which offset; and is the file synced afterwards?
    calls: Vec<(u64, Vec<u8>, bool)>,
    content: Vec<u8>,
}

impl Writes {
    /// In one call, or in several of which some are synced before the next; then parts are written
    /// over, and others left out.
    fn new(rng: &mut Rng, size: u64) -> Self {
        let mut writes = Self {
            calls: Vec::new(),
            content: vec![0; size as usize],
        };
        let piece_bytes = if rng.one_in(2) {
            size
        } else {
            1 + rng.below(size.max(1))
        };
        let leaves_out = rng.one_in(4);
        let mut at = 0;
        while at < size {
            let len = piece_bytes.min(size - at);
            // The last one says how long the file is.
            if !(leaves_out && rng.one_in(3)) || at + len == size {
                writes.put(rng, at, len);
            }
            at += len;
        }
        for _ in 0..rng.below(3) {
            if let Some(room) = size.checked_sub(1).filter(|room| *room > 0) {
                let at = rng.below(room);
                let len = 1 + rng.below((size - at).min(PIECE_BYTES_MAX));
                writes.put(rng, at, len);
            }
        }
        writes
    }

    fn put(&mut self, rng: &mut Rng, at: u64, len: u64) {
        let data = mixture(rng, len as usize);
        self.content[at as usize..(at + len) as usize].copy_from_slice(&data);
        self.calls.push((at, data, rng.one_in(8)));
    }
}

/// Text, noise and zeros.
fn mixture(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(len + PIECE_BYTES_MAX as usize);
    while data.len() < len {
        let piece = 1 + rng.below(PIECE_BYTES_MAX) as usize;
        let from = data.len();
        data.resize(from + piece, 0);
        match rng.below(8) {
            0 => rng.fill(&mut data[from..]),
            1 => {}
            _ => {
                for line in data[from..].chunks_mut(24) {
                    let text = format!("{:>8} lines of text {:>2}\n", rng.below(3000), rng.below(20));
                    line.copy_from_slice(&text.as_bytes()[..line.len()]);
                }
            }
        }
    }
    data.truncate(len);
    data
}

fn fill(dir: &Path, args: &Args) -> Result<()> {
    fs::create_dir(dir)?;
    for (path, writes) in files(dir, args) {
        let file = File::create_new(&path).with_context(|| path.display().to_string())?;
        for (at, data, is_synced) in &writes.calls {
            file.write_all_at(data, *at)?;
            if *is_synced {
                file.sync_all()?;
            }
        }
    }
    rustix::fs::syncfs(File::open(dir)?)?;
    Ok(())
}

/// How many files there are, with nothing but what was written.
fn compare(dir: &Path, args: &Args) -> Result<usize> {
    let expected = files(dir, args);
    for (path, writes) in &expected {
        let found = fs::read(path).with_context(|| path.display().to_string())?;
        let differs = found
            .iter()
            .zip(&writes.content)
            .position(|(found, written)| found != written);
        ensure!(
            found.len() == writes.content.len() && differs.is_none(),
            "{}: {} bytes, not {}, the first wrong one is {differs:?}",
            path.display(),
            found.len(),
            writes.content.len()
        );
    }
    ensure!(
        fs::read_dir(dir)?.count() == expected.len(),
        "{}: other files",
        dir.display()
    );
    Ok(expected.len())
}

/// Most of a directory lies in smaller extents of the algorithm.
fn assert_compressed(dir: &Path, how: &str) -> Result<()> {
    let algorithm = how.split(['=', ':']).nth(1).context("an algorithm")?;
    let path = dir.to_str().context("a path in UTF-8")?;
    let out = run_in(Path::new("/"), binary()?, &["compsize", "--json", path])?;
    let found: Value = serde_json::from_str(&out)?;
    let size = |of: &str, what: &str| found["types"][of][what].as_u64().unwrap_or(0);
    let (disk_bytes, bytes) = (size(algorithm, "disk_usage"), size(algorithm, "uncompressed"));
    let plain_bytes = size("none", "uncompressed");
    ensure!(
        bytes > plain_bytes && disk_bytes < bytes - bytes / 4,
        "{how}: {bytes} bytes have become {disk_bytes}, beside {plain_bytes} that are not compressed: {out}"
    );
    Ok(())
}

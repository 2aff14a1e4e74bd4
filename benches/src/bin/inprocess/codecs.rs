//! Streams under each compression: what the engine makes of one processor, of all with one caller, and of all with as many
//! callers (a mount has several: the kernel reads ahead), beside what the codec does alone on one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use cowshed_benches::content::{Content, fill_with};
use cowshed_benches::{Dice, Measured};
use cowshed_btrfs::env::{Env, SystemEnv};
use cowshed_btrfs::file::compress::{CompressPolicy, Compression, Encoder};
use cowshed_btrfs::file::decompress::{COMPRESSED_EXTENT_BYTES_MAX, Decoder};
use cowshed_btrfs::fs::MountOptions;
use cowshed_vfs::{FileSystem as _, Timestamp};

use crate::files::{CALL_BYTES, File, create, write};
use crate::rig::{CALLER, Rig};

/// `None`: not compressed, and no codec to compare with.
const HOW: [Option<&str>; 5] = [None, Some("lzo"), Some("zstd:1"), Some("zstd:3"), Some("zlib")];
const CONTENTS: [Content; 3] = [Content::Text, Content::Half, Content::Noise];
/// What the codec does alone, to have it measured: so many calls' worth.
const ALONE_CALLS: usize = 128;

/// The system, with another number of processors.
struct Processors(usize);

impl Env for Processors {
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

/// Of the engine, in GB/s.
#[derive(Clone, Copy)]
struct Rates {
    write: f64,
    read: f64,
    /// By as many callers as there are processors.
    read_together: f64,
}

/// One line of the table; GB/s.
struct Line {
    how: Option<&'static str>,
    content: Content,
    alone: Option<[f64; 2]>,
    one: Rates,
    all: Rates,
}

impl Line {
    fn print(&self, json: bool) {
        let (how, content) = (self.how.unwrap_or("none"), format!("{:?}", self.content).to_lowercase());
        let (one, all) = (self.one, self.all);
        if json {
            let line = serde_json::json!({
                "how": how,
                "content": content,
                "write": [self.alone.map(|a| a[0]), one.write, all.write],
                "read": [self.alone.map(|a| a[1]), one.read, all.read, all.read_together],
            });
            println!("{line}");
            return;
        }
        let alone = |way: usize| self.alone.map_or("    -".into(), |rates| format!("{:5.2}", rates[way]));
        println!(
            "{how:<7} {content:<6} write: alone {}, engine {:5.2}, all {:5.2}; read: alone {}, engine {:5.2}, all {:5.2}, \
             all callers {:5.2} GB/s",
            alone(0),
            one.write,
            all.write,
            alone(1),
            one.read,
            all.read,
            all.read_together,
        );
    }
}

pub fn run(only: &str, stream_bytes: u64, memory_bytes_max: u64, json: bool) -> Result<()> {
    for how in HOW {
        for content in CONTENTS {
            let name = format!("{} {content:?}", how.unwrap_or("none")).to_lowercase();
            if !name.contains(only) {
                continue;
            }
            let mut data = vec![0; CALL_BYTES];
            Dice(3).fill(&mut data);
            fill_with(content, &mut data);
            let compression: Option<Compression> = how.map(str::parse).transpose()?;
            let alone = compression.map(|how| alone(how, &data)).transpose()?;
            let calls = stream_bytes / CALL_BYTES as u64;
            let rates = |processors| in_engine(compression, &data, calls, memory_bytes_max, processors);
            let line = Line {
                how,
                content,
                alone: alone.flatten(),
                one: rates(1)?,
                all: rates(SystemEnv.processors())?,
            };
            line.print(json);
        }
    }
    Ok(())
}

fn gb_per_s(measured: &Measured) -> f64 {
    measured.bytes as f64 / measured.wall_s / 1e9
}

/// Of compressing and decompressing on one processor; nothing where the data does not become smaller.
fn alone(how: Compression, data: &[u8]) -> Result<Option<[f64; 2]>> {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let bytes = (ALONE_CALLS * data.len()) as u64;
    let chunks = || data.chunks(COMPRESSED_EXTENT_BYTES_MAX);
    let packed: Option<Vec<Vec<u8>>> = chunks().map(|c| encoder.compress(how, c, c.len() - 4096)).collect();
    let Some(packed) = packed else { return Ok(None) };
    let write = Measured::of(|| {
        for chunk in std::iter::repeat_n(data, ALONE_CALLS).flat_map(|data| data.chunks(COMPRESSED_EXTENT_BYTES_MAX)) {
            let packed = encoder.compress(how, chunk, chunk.len());
            std::hint::black_box(packed.context("it was compressed before")?);
        }
        anyhow::Ok((0, bytes))
    })?;
    let mut out = vec![0; data.len()];
    let read = Measured::of(|| {
        for _ in 0..ALONE_CALLS {
            for (packed, out) in packed.iter().zip(out.chunks_mut(COMPRESSED_EXTENT_BYTES_MAX)) {
                decoder.decompress(how.algorithm().on_disk(), packed, out)?;
            }
        }
        anyhow::Ok((0, bytes))
    })?;
    ensure!(out == data, "what comes out is not what went in");
    Ok(Some([gb_per_s(&write), gb_per_s(&read)]))
}

/// Of writing with a sync at the end and of reading what no cache has, by one caller.
fn in_engine(
    compression: Option<Compression>,
    data: &[u8],
    calls: u64,
    memory_bytes_max: u64,
    processors: usize,
) -> Result<Rates> {
    let options = MountOptions {
        compress: compression.map(|how| CompressPolicy { how, force: false }),
        ..MountOptions::default()
    };
    let rig = Rig::with(None, memory_bytes_max, options, Arc::new(Processors(processors)))?;
    let file = create(&rig, b"large")?;
    let bytes = calls * CALL_BYTES as u64;
    let at = |n: u64| n * CALL_BYTES as u64;
    let written = Measured::of(|| {
        for n in 0..calls {
            write(&rig, &file, at(n), data)?;
        }
        rig.commit()?;
        anyhow::Ok((calls, bytes))
    })?;
    rig.cool()?;
    let read = read_all(&rig, &file, data, calls, 1)?;
    rig.cool()?;
    let together = read_all(&rig, &file, data, calls, processors)?;
    rig.finish(None)?;
    Ok(Rates {
        write: gb_per_s(&written),
        read: gb_per_s(&read),
        read_together: gb_per_s(&together),
    })
}

/// Reads the file once, each call by whichever caller is free.
fn read_all(rig: &Rig, file: &File, data: &[u8], calls: u64, callers: usize) -> Result<Measured> {
    let next = AtomicU64::new(0);
    let read_some = || {
        let mut out = vec![0; CALL_BYTES];
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= calls {
                return Ok(());
            }
            let at = n * CALL_BYTES as u64;
            let count = rig.fs.read(&CALLER, file.node, file.handle, at, &mut out)?;
            ensure!(count == out.len(), "a short read");
            // All of it is compared elsewhere; this takes no time worth measuring.
            ensure!(out.first_chunk::<4096>() == data.first_chunk(), "not what was written");
        }
    };
    Measured::of(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..callers).map(|_| scope.spawn(read_some)).collect();
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().expect("readers do not panic"));
            joined.collect::<Result<()>>()
        })?;
        Ok((calls, calls * CALL_BYTES as u64))
    })
}

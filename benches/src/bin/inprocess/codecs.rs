//! Streams under each compression: what the engine makes of one caller and some processors, beside what the codec does
//! alone on one.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cowshed_benches::content::{Content, fill_with};
use cowshed_benches::{Dice, Measured};
use cowshed_btrfs::env::{Env, SystemEnv};
use cowshed_btrfs::file::compress::{CompressPolicy, Compression, Encoder};
use cowshed_btrfs::file::decompress::{COMPRESSED_EXTENT_BYTES_MAX, Decoder};
use cowshed_btrfs::fs::MountOptions;
use cowshed_vfs::{FileSystem as _, Timestamp};

use crate::files::{CALL_BYTES, create, write};
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

/// One line of the table; GB/s.
struct Line {
    how: Option<&'static str>,
    content: Content,
    alone: Option<[f64; 2]>,
    /// Write and read with one processor, and with all.
    engine: [[f64; 2]; 2],
}

impl Line {
    fn print(&self, json: bool) {
        let (how, content) = (self.how.unwrap_or("none"), format!("{:?}", self.content).to_lowercase());
        if json {
            let line = serde_json::json!({
                "how": how, "content": content, "alone": self.alone, "one": self.engine[0], "all": self.engine[1],
            });
            println!("{line}");
            return;
        }
        let alone = |way: usize| self.alone.map_or("    -".into(), |rates| format!("{:5.2}", rates[way]));
        let rate = |all: usize, way: usize| self.engine[all][way];
        println!(
            "{how:<7} {content:<6} write: alone {}, engine {:5.2}, all processors {:5.2} \
             read: alone {}, engine {:5.2}, all processors {:5.2} GB/s",
            alone(0),
            rate(0, 0),
            rate(1, 0),
            alone(1),
            rate(0, 1),
            rate(1, 1),
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
                engine: [rates(1)?, rates(SystemEnv.processors())?],
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
) -> Result<[f64; 2]> {
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
    let mut out = vec![0; CALL_BYTES];
    let read = Measured::of(|| {
        for n in 0..calls {
            let count = rig.fs.read(&CALLER, file.node, file.handle, at(n), &mut out)?;
            ensure!(count == out.len(), "a short read");
        }
        anyhow::Ok((calls, bytes))
    })?;
    ensure!(out == data, "what was read is not what was written");
    rig.finish(None)?;
    Ok([gb_per_s(&written), gb_per_s(&read)])
}

//! Streams under each compression: what the engine makes of one processor, of all with one caller,
//! and of all with as many callers (a mount has several: the kernel reads ahead), beside what the
//! codec does alone on one and on all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use cowshed_benches::Measured;
use cowshed_benches::content::{Content, fill_with};
use cowshed_btrfs::compression::compress::{self, CompressPolicy, Encoder};
use cowshed_btrfs::compression::decompress::{COMPRESSED_EXTENT_BYTES_MAX, Decoder};
use cowshed_btrfs::fs::MountOptions;
use cowshed_device_sim::Rng;
use cowshed_runtime::{Env, SystemEnv};
use cowshed_vfs::{Compression, FileSystem as _, Timestamp};

use crate::files::{CALL_BYTES, File, create, write};
use crate::rig::{CALLER, Rig};

/// `None`: not compressed, and no codec to compare with.
const HOW: [Option<&str>; 5] = [None, Some("lzo"), Some("zstd:1"), Some("zstd:3"), Some("zlib")];
const CONTENTS: [Content; 3] = [Content::Text, Content::Half, Content::Noise];
/// What the codec does alone, to have it measured: so many calls' worth.
const ALONE_CALLS: usize = 128;
/// A small step of a sequential reader, with a buffer of no great size.
const STEP_BYTES: usize = 64 << 10;

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
    /// By one caller in steps of [`STEP_BYTES`].
    read_steps: f64,
}

/// Of the codec without an engine, in GB/s: what processors that share caches, or are two threads
/// of one core, can do at all.
#[derive(Clone, Copy)]
struct Alone {
    write: f64,
    read: f64,
}

/// One line of the table: with one processor and with all.
struct Line {
    how: Option<&'static str>,
    content: Content,
    alone: [Option<Alone>; 2],
    engine: [Rates; 2],
}

impl Line {
    fn print(&self, json: bool) {
        let (how, content) = (self.how.unwrap_or("none"), format!("{:?}", self.content).to_lowercase());
        let [one, all] = self.engine;
        let alone = |rate: fn(Alone) -> f64| self.alone.map(|alone| alone.map(rate));
        let (alone_write, alone_read) = (alone(|a| a.write), alone(|a| a.read));
        if json {
            let line = serde_json::json!({
                "how": how,
                "content": content,
                "write": [alone_write[0], one.write, alone_write[1], all.write],
                "read": [alone_read[0], one.read, alone_read[1], all.read, all.read_together, all.read_steps],
            });
            println!("{line}");
            return;
        }
        let show = |rate: Option<f64>| rate.map_or("    -".into(), |rate| format!("{rate:5.2}"));
        println!(
            "{how:<7} {content:<6} write: codec {}, engine {:5.2}; all: codec {}, engine {:5.2}; \
             read: codec {}, engine {:5.2}; all: codec {}, engine {:5.2}, all callers {:5.2}, small steps {:5.2} GB/s",
            show(alone_write[0]),
            one.write,
            show(alone_write[1]),
            all.write,
            show(alone_read[0]),
            one.read,
            show(alone_read[1]),
            all.read,
            all.read_together,
            all.read_steps,
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
            Rng::new(3).fill(&mut data);
            fill_with(content, &mut data);
            let compression: Option<Compression> = how.map(str::parse).transpose()?;
            let processors = SystemEnv.processors();
            let alone = |threads| match compression {
                Some(how) => alone(how, &data, threads),
                None => Ok(None),
            };
            let calls = stream_bytes / CALL_BYTES as u64;
            let rates = |processors| in_engine(compression, &data, calls, memory_bytes_max, processors);
            let line = Line {
                how,
                content,
                alone: [alone(1)?, alone(processors)?],
                engine: [rates(1)?, rates(processors)?],
            };
            line.print(json);
        }
    }
    Ok(())
}

fn gb_per_s(measured: &Measured) -> f64 {
    measured.bytes as f64 / measured.wall_s / 1e9
}

/// Of compressing and decompressing in so many threads, each with data of its own; nothing where
/// the data does not become smaller.
fn alone(how: Compression, data: &[u8], threads: usize) -> Result<Option<Alone>> {
    let mut encoder = Encoder::default();
    let chunks = || data.chunks(COMPRESSED_EXTENT_BYTES_MAX);
    let packed: Option<Vec<Vec<u8>>> = chunks().map(|c| encoder.compress(how, c, c.len() - 4096)).collect();
    let Some(packed) = packed else { return Ok(None) };
    let write = in_threads(threads, data.len(), || {
        let (mut encoder, data) = (Encoder::default(), data.to_vec());
        for chunk in std::iter::repeat_n(&data, ALONE_CALLS).flat_map(|data| data.chunks(COMPRESSED_EXTENT_BYTES_MAX)) {
            let packed = encoder.compress(how, chunk, chunk.len());
            std::hint::black_box(packed.context("it was compressed before")?);
        }
        Ok(())
    })?;
    let read = in_threads(threads, data.len(), || {
        let (mut decoder, mut out) = (Decoder::default(), vec![0; data.len()]);
        for _ in 0..ALONE_CALLS {
            for (packed, out) in packed.iter().zip(out.chunks_mut(COMPRESSED_EXTENT_BYTES_MAX)) {
                decoder.decompress(compress::on_disk(how.algorithm()), packed, out)?;
            }
        }
        ensure!(out == data, "what comes out is not what went in");
        Ok(())
    })?;
    Ok(Some(Alone { write, read }))
}

/// GB/s of so many threads, each of which works on [`ALONE_CALLS`] times so many bytes.
fn in_threads(threads: usize, bytes: usize, work: impl Fn() -> Result<()> + Sync) -> Result<f64> {
    let measured = Measured::of(|| {
        on_threads(threads, &work)?;
        anyhow::Ok((0, (threads * ALONE_CALLS * bytes) as u64))
    })?;
    Ok(gb_per_s(&measured))
}

/// The same in so many threads, to the end of all.
fn on_threads(threads: usize, work: &(impl Fn() -> Result<()> + Sync)) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().expect("they do not panic"));
        joined.collect()
    })
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
    let read_cold = |step, callers| {
        rig.cool()?;
        read_all(&rig, &file, data, calls, step, callers)
    };
    let read = read_cold(CALL_BYTES, 1)?;
    let together = read_cold(CALL_BYTES, processors)?;
    let steps = read_cold(STEP_BYTES, 1)?;
    rig.finish(None)?;
    Ok(Rates {
        write: gb_per_s(&written),
        read: gb_per_s(&read),
        read_together: gb_per_s(&together),
        read_steps: gb_per_s(&steps),
    })
}

/// Reads the file once in such steps, each by whichever caller is free.
fn read_all(rig: &Rig, file: &File, data: &[u8], calls: u64, step: usize, callers: usize) -> Result<Measured> {
    let bytes = calls * CALL_BYTES as u64;
    let next = AtomicU64::new(0);
    let read_some = || {
        let mut out = vec![0; step];
        loop {
            let at = next.fetch_add(step as u64, Ordering::Relaxed);
            if at >= bytes {
                return Ok(());
            }
            let count = rig.fs.read(&CALLER, file.node, file.handle, at, &mut out)?;
            ensure!(count == out.len(), "a short read");
            // All of it is compared elsewhere; this takes no time worth measuring.
            let written = &data[(at % CALL_BYTES as u64) as usize..];
            ensure!(out[..4096] == written[..4096], "not what was written");
        }
    };
    Measured::of(|| {
        on_threads(callers, &read_some)?;
        Ok((calls, bytes))
    })
}

//! An archive, plain or as layers of a container image, is read into a tree or refused; nothing in
//! it leads out of the image, and what is read is used: contents are read to their ends.
#![no_main]

use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use cowshed_runtime::{Env, SystemEnv, Timestamp, Workers};
use cowshed_source::{Body, Platform, Reading, Tree, add_stream};
use sha2::Digest as _;

/// One thread: a fuzzer counts what its own thread does.
struct Alone;

impl Env for Alone {
    fn now(&self) -> Timestamp {
        SystemEnv.now()
    }
    fn random(&self, bytes: &mut [u8]) {
        SystemEnv.random(bytes);
    }
    fn processors(&self) -> usize {
        1
    }
}

static WORKERS: LazyLock<Workers> = LazyLock::new(|| Workers::new(Arc::new(Alone)));
/// Contents that are read of one file.
const READ_BYTES_MAX: u64 = 1 << 20;

fn entry(name: &str, body: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(124, format!("{:011o}\0", body.len()).as_bytes());
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    seal(&mut block);
    block.extend(body);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

/// Makes the checksum of a header right.
fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// With right checksums wherever a header may be: they keep faults out.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        seal(block);
    }
    bytes
}

fn docker(layers: &[&[u8]]) -> Vec<u8> {
    let names: Vec<String> = (0..layers.len()).map(|n| format!("\"l{n}\"")).collect();
    let manifest = format!("[{{\"Layers\":[{}]}}]", names.join(","));
    let mut archive = entry("manifest.json", manifest.as_bytes());
    for (n, layer) in layers.iter().enumerate() {
        archive.extend(entry(&format!("l{n}"), layer));
    }
    archive
}

/// An OCI archive whose index is these bytes, and that has a blob of them.
fn oci(bytes: &[u8]) -> Vec<u8> {
    let sum = sha2::Sha256::digest(bytes);
    let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    let index = format!("{{\"manifests\":[{{\"digest\":\"sha256:{hex}\"}}]}}");
    [
        entry("oci-layout", b"{}"),
        entry("index.json", index.as_bytes()),
        entry(&format!("blobs/sha256/{hex}"), bytes),
    ]
    .concat()
}

fn read(bytes: Vec<u8>) {
    let mut tree = Tree::default();
    let mut reading = Reading {
        platform: &Platform::default(),
        spool_dir: "/tmp".as_ref(),
        env: &Alone,
        workers: &WORKERS,
        layers: Some(Vec::new()),
    };
    let stream = Box::new(Cursor::new(bytes));
    if add_stream(&mut tree, "fuzzed", stream, &mut reading, &mut |_, _| true).is_err() {
        return;
    }
    // Right or wrong: what was read is read on.
    let _ = tree.check_sources();
    for inode in tree.inodes_mut() {
        let Body::File(content) = &inode.body else { continue };
        let opened = content.open().expect("contents of an archive are there");
        let mut end = 0;
        for piece in content.pieces() {
            assert!(piece.offset_bytes >= end && piece.len_bytes > 0, "pieces lie in order");
            end = piece.offset_bytes + piece.len_bytes;
            let mut buf = vec![0; piece.len_bytes.min(READ_BYTES_MAX) as usize];
            opened.read(piece, 0, &mut buf).expect("what was said to be there is there");
        }
        assert!(end <= content.size_bytes());
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((how, bytes)) = bytes.split_first() else { return };
    match how % 5 {
        0 => read(bytes.to_vec()),
        1 => read(sealed(bytes)),
        2 => read(docker(&[&sealed(bytes)])),
        3 => {
            let middle = bytes.len() / 1024 * 512;
            let (first, second) = bytes.split_at(middle);
            read(docker(&[&sealed(first), &sealed(second)]));
        }
        _ => read(oci(bytes)),
    }
});

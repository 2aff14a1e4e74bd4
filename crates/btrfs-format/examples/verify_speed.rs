//! How fast blocks are verified, with and without their checksum: the corpus of the mutation test,
//! over and over.
use std::hint::black_box;
use std::time::Instant;

use btrfs_format::block::{BlockExpect, Header};
use btrfs_format::{ChecksumType, TreeBlock};
use zerocopy::FromBytes;

const CORPUS: &[u8] = include_bytes!("../tests/corpus/blocks.bin");
const ROUNDS: usize = 2000;

fn main() {
    let blocks: Vec<(Vec<u8>, BlockExpect)> = CORPUS
        .chunks(4096)
        .map(|bytes| {
            let (header, _) = Header::ref_from_prefix(bytes).expect("a block has a header");
            let expect = BlockExpect {
                addr: header.bytenr.into(),
                fsid: header.fsid,
                csum_type: ChecksumType::Crc32c,
                sectorsize_bytes: 4096,
                level: None,
                generation: None,
                first_key: None,
                tree: None,
            };
            (bytes.to_vec(), expect)
        })
        .collect();
    let time = |name: &str, work: &dyn Fn(&[u8], &BlockExpect)| {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            for (bytes, expect) in &blocks {
                work(black_box(bytes), expect);
            }
        }
        let mib = (ROUNDS * CORPUS.len()) as f64 / (1 << 20) as f64;
        println!("{name}: {:.0} MiB/s", mib / start.elapsed().as_secs_f64());
    };
    time("copy", &|bytes, _| {
        black_box(std::sync::Arc::<[u8]>::from(bytes));
    });
    time("checksum", &|bytes, expect| {
        black_box(expect.csum_type.compute(&bytes[32..]));
    });
    time("copy and verify", &|bytes, expect| {
        black_box(TreeBlock::verify(bytes, expect).expect("a good block"));
    });
}

//! Each operation on a mounted volume without free space, and with a little more of it each time,
//! until it succeeds. Before that it fails with ENOSPC and changes nothing, neither for reads
//! through the page cache nor for direct ones.

use std::fs;
use std::io;

use cowshed_harness::{need, run};
use rustix::fs::FallocateFlags as F;

use super::brim::{BLOCK, Brim, How, Row, content, is_no_space, no_space};
use crate::extents::can_compare;
use crate::mount::Guard;

/// More than an operation moves in one step.
const FRAGMENTS: usize = 300;
/// Neighbours in a file that are none on disk.
const PIECES: usize = 40;
/// In blocks. An operation that fails with so much space is taken to fail always.
const ROOM_MAX: u64 = 2500;

struct Step {
    what: &'static str,
    /// Files that may change.
    files: &'static [&'static str],
    act: fn(&mut Brim) -> io::Result<()>,
    /// There must always be room.
    must: bool,
}

const fn step(what: &'static str, files: &'static [&'static str], act: fn(&mut Brim) -> io::Result<()>) -> Step {
    Step {
        what,
        files,
        act,
        must: false,
    }
}

const fn must(what: &'static str, files: &'static [&'static str], act: fn(&mut Brim) -> io::Result<()>) -> Step {
    Step {
        must: true,
        ..step(what, files, act)
    }
}

/// In this order, each on what those before it left.
const STEPS: &[Step] = &[
    step("overwrite of cloned data", &["shared", "shared_too"], |b| {
        b.write("shared", How::Buffered, 5000, &content(20, 60_000))
    }),
    step("direct overwrite of cloned data", &["shared", "shared_too"], |b| {
        b.write("shared_too", How::Direct, 2 * BLOCK, &content(21, 16 * BLOCK))
    }),
    step("overwrite in place", &["in_place"], |b| {
        b.write("in_place", How::Buffered, 100, &content(22, 40_000))
    }),
    step(
        "overwrite of cloned data in place",
        &["in_place", "in_place_too"],
        |b| b.write("in_place_too", How::Buffered, 8 * BLOCK, &content(23, 10 * BLOCK)),
    ),
    step("write into what is preallocated", &["promised"], |b| {
        b.write("promised", How::Direct, 3 * BLOCK, &content(24, 5 * BLOCK))
    }),
    step("write behind the end", &["odd"], |b| {
        b.write("odd", How::Buffered, 30_001, &content(25, 300_000))
    }),
    step("write into holes", &["fragmented"], |b| {
        b.write("fragmented", How::Direct, 200 * BLOCK, &content(26, 21 * BLOCK))
    }),
    step("clone into a file", &["target", "fragmented"], |b| {
        let mut new = b.model("target").to_vec();
        let all = b.model("fragmented").to_vec();
        new.resize(new.len().max(all.len()), 0);
        new[..all.len()].copy_from_slice(&all);
        let done = b.command("clone --range 0:0:0 @fragmented @target");
        match &done {
            Ok(()) => b.expect("target", new),
            Err(_) => b.expect_begun("target", &new),
        }
        done
    }),
    step("clone to a new file", &["fragmented", "cloned"], |b| {
        let done = b.command("clone @fragmented @cloned");
        match &done {
            Ok(()) => b.expect("cloned", b.model("fragmented").to_vec()),
            Err(_) => assert!(!b.path("cloned").exists(), "nothing is left"),
        }
        done
    }),
    step("clone to a larger file", &["swapped", "longer"], |b| {
        let done = b.command("clone @swapped @longer");
        let new = b.model("swapped").to_vec();
        match &done {
            Ok(()) => b.expect("longer", new),
            Err(_) => b.expect_begun("longer", &new),
        }
        done
    }),
    step("clone of a small file", &["small", "odd"], |b| {
        b.command("clone --range 0:0:512k @small @odd")?;
        let mut new = b.model("odd").to_vec();
        new.resize(512 << 10, 0);
        new.extend_from_slice(b.model("small"));
        b.expect("odd", new);
        Ok(())
    }),
    step("copy of whole blocks", &["fragmented", "copied"], |b| {
        let len = b.model("fragmented").len();
        b.copy("fragmented", 0, "copied", 0, len)
    }),
    step("copy to another place in a block", &["big", "copied"], |b| {
        b.copy("big", 100, "copied", 7000, 90_000)
    }),
    step("copy with a beginning of its own", &["fragmented", "copied"], |b| {
        b.copy("fragmented", 3 * BLOCK - 1000, "copied", 9 * BLOCK - 1000, 400 * BLOCK)
    }),
    step("cp --reflink=auto", &["big", "cp"], |b| {
        let [from, to] = ["big", "cp"].map(|name| b.path(name));
        if let Err(error) = run("cp", &["--reflink=auto".as_ref(), from.as_os_str(), to.as_os_str()]) {
            assert!(format!("{error:#}").contains("No space left"), "{error:#}");
            let _ = fs::remove_file(to);
            return Err(no_space());
        }
        b.expect("cp", b.model("big").to_vec());
        Ok(())
    }),
    step("exchange of files", &["target", "big"], |b| {
        b.command("exchange @target @big")?;
        let [a, c] = ["target", "big"].map(|name| b.model(name).to_vec());
        b.expect("target", c);
        b.expect("big", a);
        Ok(())
    }),
    step("exchange of ranges", &["fragmented", "pieces"], |b| {
        let len = PIECES * BLOCK;
        b.command(&format!("exchange --range 64k:{len}:0 @fragmented @pieces"))?;
        let [mut a, mut c] = ["fragmented", "pieces"].map(|name| b.model(name).to_vec());
        a[65536..65536 + len].swap_with_slice(&mut c[..len]);
        b.expect("fragmented", a);
        b.expect("pieces", c);
        Ok(())
    }),
    step("exchange with a small file", &["small", "swapped"], |b| {
        b.command("exchange @small @swapped")?;
        let [a, c] = ["small", "swapped"].map(|name| b.model(name).to_vec());
        b.expect("small", c);
        b.expect("swapped", a);
        Ok(())
    }),
    step("dedupe", &["same", "same_too"], |b| b.command("dedupe @same @same_too")),
    step("defrag", &["pieces", "fragmented"], |b| {
        b.command("defrag @pieces")?;
        b.command("defrag -t 64k @fragmented")
    }),
    step("defrag with compression", &["fragmented", "target"], |b| {
        b.command("defrag -c zstd @fragmented")?;
        b.command("defrag -c lzo @target")
    }),
    step("fallocate", &["fragmented"], |b| {
        let len = b.model("fragmented").len();
        b.fallocate("fragmented", F::empty(), 0, len + 3 * BLOCK)
    }),
    step("fallocate behind the end", &["small"], |b| {
        b.fallocate("small", F::KEEP_SIZE, 0, 20 * BLOCK)
    }),
    step("a hole that ends in blocks", &["target"], |b| {
        b.fallocate("target", F::PUNCH_HOLE | F::KEEP_SIZE, 5000, 30_000)
    }),
    must("a hole of whole blocks", &["cloned"], |b| {
        b.fallocate("cloned", F::PUNCH_HOLE | F::KEEP_SIZE, 8 * BLOCK, 350 * BLOCK)
    }),
    step("zeros over blocks", &["cloned"], |b| {
        b.fallocate("cloned", F::ZERO_RANGE, 300 * BLOCK, 200 * BLOCK)
    }),
    step("zeros over parts of blocks", &["same"], |b| {
        b.fallocate("same", F::ZERO_RANGE, 5001, 60_000)
    }),
    step("an atomic group", &["same_too"], |b| {
        let writes: Vec<_> = (0..6)
            .map(|n| (n * 9 * BLOCK, content(40 + n as u64, 3 * BLOCK + 10)))
            .collect();
        b.write_group("same_too", &writes, true)
    }),
    step("a small atomic group", &["small"], |b| {
        b.write_group("small", &[(10, content(50, 50)), (100, content(51, 20))], true)
    }),
    step("an atomic group that is given up", &["same_too"], |b| {
        b.write_group("same_too", &[(0, content(52, 50_000))], false)
    }),
    must("a cut in the midst of a block", &["cut"], |b| b.set_len("cut", 50_001)),
    step("a size in the midst of a block grows", &["cut"], |b| {
        b.set_len("cut", 90_000)
    }),
    must("a cut of a small file", &["small"], |b| b.set_len("small", 33)),
    must("a cut between blocks", &["cp"], |b| b.set_len("cp", 10 * BLOCK)),
    must("a deletion", &["copied"], |b| {
        fs::remove_file(b.path("copied"))?;
        b.forget("copied");
        Ok(())
    }),
    step("a new file", &["new"], |b| {
        if !b.path("new").exists() {
            fs::File::create_new(b.path("new"))?;
            b.expect("new", Vec::new());
        }
        b.write("new", How::Buffered, 0, &content(60, 200_000))
    }),
];

fn make_files(b: &mut Brim) {
    let plain: [(&'static str, usize); 10] = [
        ("big", 256 << 10),
        ("small", 200),
        ("odd", 10_100),
        ("swapped", 3 * BLOCK + 5),
        ("same", 100_000),
        ("target", 700_000),
        ("copied", 50_000),
        ("cut", 80_000),
        ("shared", 100_000),
        ("longer", 77_777),
    ];
    let new = |b: &mut Brim, name: &'static str| {
        fs::File::create_new(b.path(name)).unwrap();
        b.expect(name, Vec::new());
    };
    for (seed, (name, len)) in plain.into_iter().enumerate() {
        new(b, name);
        b.write(name, How::Buffered, 0, &content(seed as u64, len)).unwrap();
    }
    new(b, "same_too");
    b.write("same_too", How::Buffered, 0, &content(4, 100_000)).unwrap();
    for name in ["in_place", "in_place_too"] {
        new(b, name);
        run("chattr", &["+C".as_ref(), b.path(name).as_os_str()]).unwrap();
    }
    b.write("in_place", How::Buffered, 0, &content(10, 100_000)).unwrap();
    for (from, to) in [("shared", "shared_too"), ("in_place", "in_place_too")] {
        b.command(&format!("clone @{from} @{to}")).unwrap();
        b.expect(to, b.model(from).to_vec());
    }
    new(b, "promised");
    b.fallocate("promised", F::empty(), 0, 20 * BLOCK).unwrap();
    new(b, "fragmented");
    for n in 0..FRAGMENTS {
        let bytes = content(100 + n as u64, BLOCK);
        b.write("fragmented", How::Direct, n * 2 * BLOCK, &bytes).unwrap();
    }
    new(b, "pieces");
    for first in [1, 0] {
        for n in (first..PIECES).step_by(2) {
            let bytes = content(500 + n as u64, BLOCK);
            b.write("pieces", How::Direct, n * BLOCK, &bytes).unwrap();
        }
        b.settle(&["pieces", "fragmented"], "made");
    }
    b.remount();
}

/// How much more room each time: `1`, or more and more.
#[derive(Clone, Copy, Debug)]
enum Rooms {
    Each,
    Doubled,
}

fn enumerate(row: Row, rooms: Rooms) {
    let (Some(()), Some(())) = (can_compare(), need::tool("chattr")) else {
        return;
    };
    let mut b = Brim::new(row);
    let mnt = b.mnt.clone();
    let _guard = Guard(&mnt);
    make_files(&mut b);
    b.verify_all("made");
    let mut refused = 0;
    for (number, step) in STEPS.iter().enumerate() {
        b.fill();
        let (mut room, mut more) = (0, 1);
        let mut failures = 0;
        loop {
            let when = format!("{} with {room} blocks", step.what);
            match (step.act)(&mut b) {
                Ok(()) => break,
                Err(error) => assert!(is_no_space(&error), "{row:?}, {when}: {error}"),
            }
            failures += 1;
            assert!(!step.must, "{row:?}, {when}: there must be room");
            assert!(room < ROOM_MAX, "{row:?}, {when}: never");
            b.verify(step.files, &format!("{when}, refused"));
            b.make_room(more);
            room += more;
            more = match rooms {
                Rooms::Each => 1 + room / 24,
                Rooms::Doubled => 1 + room / 2,
            };
        }
        refused += failures;
        let when = format!("{} with {room} blocks", step.what);
        b.verify(step.files, &when);
        b.settle(step.files, &format!("{when}, synced"));
        // All of them, or others in each kind of volume.
        let turn = number + row.mkfs.len() + row.options.len();
        if matches!(rooms, Rooms::Each) || turn.is_multiple_of(4) {
            b.verify_synced(step.files, &when);
        }
        if number % 12 == 11 {
            b.verify_all(&when);
        }
    }
    assert!(
        refused > STEPS.len() / 2,
        "{row:?}: hardly ever short of space: {refused}"
    );
    b.finish();
}

const PLAIN: Row = Row {
    mkfs: "",
    options: "treelog",
    names: false,
};

#[test]
fn each_operation_without_room_for_data() {
    enumerate(PLAIN, Rooms::Doubled);
}

#[test]
fn each_operation_without_any_room() {
    enumerate(Row { names: true, ..PLAIN }, Rooms::Doubled);
}

#[test]
fn each_operation_without_room_in_mixed_groups() {
    let row = Row {
        mkfs: "--mixed",
        ..PLAIN
    };
    enumerate(row, Rooms::Doubled);
}

#[test]
fn each_operation_without_room_for_what_is_compressed() {
    for options in ["compress-force=lzo", "compress-force=zlib", "compress=zstd"] {
        enumerate(Row { options, ..PLAIN }, Rooms::Doubled);
    }
}

#[test]
fn each_operation_without_room_on_a_mount_without_copies() {
    let row = Row {
        options: "nodatacow",
        ..PLAIN
    };
    enumerate(row, Rooms::Doubled);
}

#[test]
#[ignore = "each operation at each number of free blocks on a mount: minutes"]
fn each_operation_at_each_number_of_free_blocks() {
    for mkfs in ["", "--mixed", "-n 4k"] {
        for options in [
            "treelog",
            "compress-force=lzo",
            "compress-force=zlib",
            "compress=zstd",
            "nodatacow",
        ] {
            for names in [false, true] {
                enumerate(Row { mkfs, options, names }, Rooms::Each);
            }
        }
    }
}

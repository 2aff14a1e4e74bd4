//! `inspect`: superblocks, trees, chunks, extents, blocks.

use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::extents::{Mounted, mounted};
use crate::mount::{Guard, unmount};
use crate::support::{Scratch, run};

#[test]
fn superblocks_all_copies_and_damaged_ones() {
    let volume = Scratch::filled();
    let text = run("inspect super {}", &[&volume.image]).ok().text();
    assert!(
        text.contains("bytenr=65536") && !text.contains("backup_roots"),
        "{text}"
    );
    let full = run("inspect super -f {}", &[&volume.image]).ok().text();
    assert!(full.contains("sys_chunk_array") && full.contains("backup_roots"));
    let all = run("inspect super -a --json {}", &[&volume.image]).ok().json();
    let copies: Vec<_> = all.as_array().unwrap().iter().map(|c| c["copy"].clone()).collect();
    assert_eq!(copies, [0, 1], "as many as fit");
    run("inspect super -s 2 {}", &[&volume.image]).fails(&["too small"]);
    let file = fs::OpenOptions::new().write(true).open(&volume.image).unwrap();
    file.write_all_at(b"XXXXXXXX", 65536 + 64).unwrap();
    let gone = run("inspect super {}", &[&volume.image]).code(1);
    assert!(gone.err.contains("no btrfs superblock"), "{}", gone.err);
    run("inspect super -F {}", &[&volume.image]).ok();
    // The other copy speaks for it, to look at.
    run("ls {}", &[&volume.image]).ok();
}

#[test]
fn trees_by_name_number_and_block() {
    let volume = Scratch::filled();
    let fs_tree = run("inspect tree -t fs {}", &[&volume.image]).ok().text();
    assert!(
        fs_tree.contains("owner FS_TREE") && fs_tree.contains("name: hello"),
        "{fs_tree}"
    );
    assert_eq!(run("inspect tree -t 5 {}", &[&volume.image]).ok().text(), fs_tree);
    let all = run("inspect tree {}", &[&volume.image]).ok().text();
    for name in ["root tree", "chunk tree", "CSUM_TREE", "FREE_SPACE_TREE"] {
        assert!(all.contains(name), "{name} in: {all}");
    }
    let blocks = run("inspect tree --json {}", &[&volume.image]).ok().json();
    assert!(blocks.as_array().unwrap().len() > 6);
    let roots = run("inspect tree --roots --json {}", &[&volume.image]).ok().json();
    let root = roots.as_array().unwrap().iter().find(|r| r["tree"] == 5).unwrap();
    let addr = root["block"].as_u64().unwrap();
    let block = run(&format!("inspect block {addr} --json {{}}"), &[&volume.image])
        .ok()
        .json();
    assert_eq!((block[0]["addr"].as_u64(), &block[0]["owner"]), (Some(addr), &5.into()));
    let same = run(&format!("inspect tree -b {addr:#x} {{}}"), &[&volume.image])
        .ok()
        .text();
    assert!(fs_tree.starts_with(&same) && !same.is_empty());
    run("inspect tree -t wobble {}", &[&volume.image]).fails(&["wobble"]);
    run("inspect tree -t 4711 {}", &[&volume.image]).fails(&["4711"]);
    run("inspect block 1 {}", &[&volume.image]).fails(&["multiple"]);
    run("inspect block 0 {}", &[&volume.image]).fails(&[]);
}

#[test]
fn chunks_and_the_extents_in_them() {
    let volume = Scratch::filled();
    let chunks = run("inspect chunk --json {}", &[&volume.image]).ok().json();
    let data = of_type(&chunks, "DATA");
    assert_eq!((&data["profile"], &data["used"]), (&"single".into(), &(1 << 20).into()));
    assert_eq!(of_type(&chunks, "METADATA")["stripes"].as_array().unwrap().len(), 2);
    let addr = data["logical"].as_u64().unwrap();
    let places = run(&format!("inspect extent {addr} --json {{}}"), &[&volume.image])
        .ok()
        .json();
    assert_eq!(places["places"].as_array().unwrap().len(), 1);
    // Somewhere in the chunk lies the one file that has an extent.
    let found = (0..8).map(|mib| {
        run(
            &format!("inspect extent {} --json {{}}", addr + (mib << 20)),
            &[&volume.image],
        )
        .ok()
        .json()
    });
    let extent = found.map(|f| f["extent"].clone()).find(|e| !e.is_null()).unwrap();
    assert_eq!(extent["back_refs"][0]["path"], "/big");
    assert_eq!(extent["back_refs"][0]["tree"], 5);
    let block = of_type(&chunks, "SYSTEM")["logical"].as_u64().unwrap();
    let text = run(&format!("inspect extent {block} {{}}"), &[&volume.image])
        .ok()
        .text();
    assert!(text.contains("type SYSTEM"), "{text}");
    run("inspect extent 1 {}", &[&volume.image]).fails(&["no chunk"]);
    run("inspect extent x {}", &[&volume.image]).fails(&["no address"]);
}

fn of_type(chunks: &Value, name: &str) -> Value {
    let all = chunks.as_array().unwrap();
    all.iter().find(|c| c["type"] == name).unwrap().clone()
}

#[test]
fn a_bad_block_is_named_and_the_rest_is_shown() {
    let volume = Scratch::filled();
    let roots = run("inspect tree --roots --json {}", &[&volume.image]).ok().json();
    let addr = |tree: u64| {
        let all = roots.as_array().unwrap();
        all.iter().find(|r| r["tree"] == tree).unwrap()["block"]
            .as_u64()
            .unwrap()
    };
    let csum = addr(7);
    let places = run(&format!("inspect extent {csum} --json {{}}"), &[&volume.image])
        .ok()
        .json();
    let file = fs::OpenOptions::new().write(true).open(&volume.image).unwrap();
    for place in places["places"].as_array().unwrap() {
        file.write_all_at(b"damage", place["offset"].as_u64().unwrap() + 200)
            .unwrap();
    }
    let ran = run("inspect tree {}", &[&volume.image]).code(1);
    assert!(ran.err.contains(&csum.to_string()), "{}", ran.err);
    assert!(ran.text().contains("owner FS_TREE") && !ran.text().contains("panicked"));
    run(&format!("inspect block {csum} {{}}"), &[&volume.image]).fails(&["checksum"]);
}

#[test]
fn account_of_a_mounted_volume() {
    let Some(Mounted { scratch: _scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let account = |args: &str| run(&format!("inspect space {args} {{}}"), &[&mnt]);
    for n in 0..300 {
        fs::write(mnt.join(format!("file {n}")), b"x").unwrap();
    }
    fs::remove_file(mnt.join("file 7")).unwrap();
    let json = account("--json").ok().json();
    let line = |name: &str| {
        let lines = json["reservations"].as_array().unwrap();
        let line = lines.iter().find(|line| line["name"] == name).unwrap().clone();
        move |field: &str| line[field].as_i64().unwrap()
    };
    let create = line("create");
    assert_eq!(
        (create("granted"), create("held_bytes"), create("refused")),
        (300, 0, 0)
    );
    assert!(create("items") >= 1200 && create("peak_bytes") > 0, "{json:#}");
    assert_eq!(line("unlink")("granted"), 1);
    let pending = &json["pending"];
    assert!(pending["items"].as_i64() >= Some(1200), "{json:#}");
    assert!(pending["held_bytes"].as_i64() <= pending["held_by_items_bytes"].as_i64());
    let text = account("").ok().text();
    assert!(text.contains("create") && text.contains("metadata"), "{text}");
    run("inspect space /proc/self/status", &[]).fails(&["not on a mount"]);
    unmount(&mnt);
}

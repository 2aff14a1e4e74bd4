//! Images of archives: every form of tar, container images, and archives that mean harm.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use cowshed_harness::tree::{Kinds, MakeOptions, make};
use cowshed_harness::{limit, need, shell};

use super::{assert_same, noise, small_tree, source};
use crate::support::{COMMAND_MAX, COWSHED, run};

#[test]
fn archives_of_every_form_hold_the_source_entry_by_entry() {
    let Some(()) = need::kernel_btrfs() else { return };
    for tool in ["tar", "gzip", "zstd", "xz"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let (dir, root) = source();
    let kinds = Kinds {
        // tar does not store sockets.
        specials: false,
        ..Kinds::all()
    };
    let options = MakeOptions {
        kinds,
        total_bytes: 24 << 20,
        ..MakeOptions::new(3, 400)
    };
    make(&root, &options).unwrap();
    let image = dir.path().join("image");
    for (flags, name) in [
        ("--sparse", "a.tar"),
        ("--sparse --sparse-version=0.1", "b.tar.gz"),
        ("--sparse --sparse-version=0.0", "c.tar.zst"),
        ("", "d.tar.xz"),
    ] {
        // The lowest level: what counts is the form.
        let tar = format!(
            "XZ_OPT=-0 tar --format=posix --numeric-owner --acls --xattrs --xattrs-include=* {flags} -caf {name} -C root ."
        );
        shell(dir.path(), &tar).unwrap();
        run("build -q --from {} {}", &[&dir.path().join(name), &image]).ok();
        assert_same(&image, &root);
    }
    // By a pipe, with GNU's own headers: times in seconds, no attributes.
    let (dir, root) = source();
    small_tree(&root);
    let long = root.join("n".repeat(200)).join("m".repeat(150));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("deep"), "deep").unwrap();
    let holes = fs::File::create(root.join("holes")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, &noise(9000), 5 << 20).unwrap();
    holes.set_len(50 << 20).unwrap();
    shell(dir.path(), "find root -exec touch -h -d @1600000000 {} +").unwrap();
    let image = dir.path().join("image");
    let pipe = format!("tar --format=gnu --sparse -cf - -C root . | gzip | {COWSHED} build -q --from - image");
    shell(dir.path(), &pipe).unwrap();
    assert_same(&image, &root);
}

/// A ustar entry.
fn entry(name: &str, kind: u8, size: &str, link: &str, body: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, size.as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, link.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.extend(body);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

fn file(name: &str, body: &str) -> Vec<u8> {
    entry(name, b'0', &format!("{:011o}\0", body.len()), "", body.as_bytes())
}

fn link(name: &str, kind: u8, target: &str) -> Vec<u8> {
    entry(name, kind, "00000000000\0", target, b"")
}

#[test]
fn archives_that_mean_harm_are_refused_by_entry_and_nothing_is_made() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let (tar, image) = (dir.path().join("bad.tar"), dir.path().join("image"));
    let mut truncated = file("short", &"x".repeat(3000));
    truncated.truncate(1500);
    let mut garbled = file("garbled", "");
    garbled[0] ^= 1;
    let pax = |record: &str, then: Vec<u8>| {
        let header = entry("x", b'x', &format!("{:011o}\0", record.len()), "", record.as_bytes());
        [header, then].concat()
    };
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        (
            "traversal",
            file("a/../../escape", "x"),
            &["a/../../escape", "leads out"],
        ),
        (
            "hard link out",
            link("l", b'1', "../../etc/passwd"),
            &["'l'", "leads out"],
        ),
        ("hard link to nothing", link("l", b'1', "gone"), &["'l'", "not there"]),
        ("hard link to itself", link("l", b'1', "l"), &["'l'", "not there"]),
        (
            "hard link to a directory",
            [link("d", b'5', ""), link("l", b'1', "d")].concat(),
            &["'l'", "directory"],
        ),
        (
            "loop of links",
            [link("a", b'2', "b"), link("b", b'2', "a"), file("a/x", "")].concat(),
            &["'a/x'", "too many symbolic links"],
        ),
        (
            "below a file",
            [file("f", ""), file("f/x", "")].concat(),
            &["'f/x'", "no directory"],
        ),
        ("truncated", truncated, &["ends in the middle"]),
        ("checksum", garbled, &["checksum"]),
        ("empty", Vec::new(), &["empty"]),
        ("size of 2^63", entry("huge", b'0', "\u{0}", "", b""), &["huge"]),
        ("type", link("odd", b'M', ""), &["'odd'", "type"]),
        ("no records", pax("12 path", file("f", "")), &["list of records"]),
        ("size in records", pax("10 size=-\n", file("f", "")), &["size"]),
        ("negative size", pax("11 size=-5\n", file("f", "")), &["'f'", "size"]),
        (
            "long name",
            pax(&format!("310 path={}\n", "n".repeat(300)), file("f", "")),
            &["255"],
        ),
        (
            "map of holes",
            pax("22 GNU.sparse.size=10\n26 GNU.sparse.map=0,5,3,9\n", file("f", "123")),
            &["'f'", "map of holes"],
        ),
        ("noise", noise(4096), &["checksum"]),
    ];
    for (name, mut bytes, words) in cases {
        if name == "size of 2^63" {
            // In GNU's binary form, and as large as it gets.
            bytes[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
            bytes[148..156].fill(b' ');
            let sum: u32 = bytes[..512].iter().map(|byte| u32::from(*byte)).sum();
            bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            fs::write(&tar, &bytes).unwrap();
            run("build -q --from {} {}", &[&tar, &image]).fails_with(1, &["ends in the middle"]);
            continue;
        }
        fs::write(&tar, &bytes).unwrap();
        let ran = run("build -q --from {} {}", &[&tar, &image]);
        assert_eq!(ran.code, 1, "{name}: {}", ran.err);
        for word in words {
            assert!(ran.err.contains(word), "{name}: no {word:?} in: {}", ran.err);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}: nothing is made");
    }
}

/// As umoci writes layers of `insert`: neither is the last block filled up, nor is there an end.
#[test]
fn contents_that_end_with_the_archive_need_no_padding() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let (plain, image) = (dir.path().join("open.tar"), dir.path().join("image"));
    let mut bytes = [file("first", "one"), file("last", "two")].concat();
    bytes.truncate(3 * 512 + 3);
    fs::write(&plain, &bytes).unwrap();
    shell(dir.path(), "gzip -k open.tar").unwrap();
    for tar in [&plain, &dir.path().join("open.tar.gz")] {
        run("build -q --from {} {}", &[tar, &image]).ok();
        let read = run("cat {} first last", &[&image]).ok();
        assert_eq!(read.out, b"onetwo");
        fs::remove_file(&image).unwrap();
    }
    bytes.truncate(3 * 512 + 2);
    fs::write(&plain, &bytes).unwrap();
    run("build -q --from {} {}", &[&plain, &image]).fails_with(1, &["ends in the middle"]);
}

#[test]
fn absolute_names_and_links_stay_inside_and_the_last_entry_of_a_name_counts() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let (tar, image) = (dir.path().join("a.tar"), dir.path().join("image"));
    let bytes = [
        file("/etc/name", "first"),
        link("usr/lib", b'5', ""),
        link("lib", b'2', "/usr/lib"),
        file("lib/so", "inside"),
        link("out", b'2', "../../../../usr"),
        file("out/lib/other", "inside, too"),
        file("etc/name", "second"),
        link("etc/same", b'1', "/etc/name"),
    ]
    .concat();
    fs::write(&tar, bytes).unwrap();
    run("build -q --verify --from {} {}", &[&tar, &image]).ok();
    let cat = |path: &str| run(&format!("cat {{}} {path}"), &[&image]).ok().text();
    assert_eq!(cat("/etc/name"), "second");
    assert_eq!(cat("/etc/same"), "second");
    assert_eq!(cat("/usr/lib/so"), "inside");
    assert_eq!(cat("/usr/lib/other"), "inside, too");
}

#[test]
fn bomb_is_refused() {
    let Some(()) = need::tool("zstd") else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    // 6 GB of zeros in one file, in less than a megabyte.
    let head = file("zeros", "");
    let mut head = head[..512].to_vec();
    head[124..136].copy_from_slice(b"63146314000\0");
    head[148..156].fill(b' ');
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    fs::write(dir.path().join("head"), &head).unwrap();
    shell(
        dir.path(),
        "(cat head; head -c 6800000000 /dev/zero) | zstd -1 -q > bomb.tar.zst",
    )
    .unwrap();
    run("build -q --from {} {}", &[&dir.path().join("bomb.tar.zst"), &image]).fails_with(1, &["250 times"]);
    assert!(!image.exists());
}

/// Makes an OCI image layout of two layers in `dir/oci`, and the archive of `docker save` of the
/// same.
pub fn container_images(dir: &Path) {
    let script = r#"
        mkdir -p one/etc/old one/data one/gone two/etc two/data
        echo first > one/etc/name; echo stays > one/etc/stays; echo x > one/etc/old/file
        echo below > one/data/below; echo y > one/gone/file
        echo second > two/etc/name; touch two/etc/.wh.old two/.wh.gone
        echo above > two/data/above; touch two/data/.wh..wh..opq
        mkdir -p oci/blobs/sha256 docker/l1 docker/l2
        tar -cf docker/l1/layer.tar -C one . ; tar -cf docker/l2/layer.tar -C two .
        add() { sum=$(sha256sum "$1" | cut -d' ' -f1); size=$(stat -c %s "$1"); mv "$1" oci/blobs/sha256/$sum; }
        gzip -c docker/l1/layer.tar > l1; add l1; l1=$sum
        zstd -q -c docker/l2/layer.tar > l2; add l2; l2=$sum
        layer=application/vnd.oci.image.layer.v1.tar
        echo "{\"schemaVersion\":2,\"layers\":[{\"mediaType\":\"$layer+gzip\",\"digest\":\"sha256:$l1\",\"size\":1},
            {\"mediaType\":\"$layer+zstd\",\"digest\":\"sha256:$l2\",\"size\":1}]}" > m; add m; m=$sum
        echo "{\"manifests\":[
            {\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"sha256:$m\",\"platform\":{\"os\":\"linux\",\"architecture\":\"riscv64\"}},
            {\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"sha256:$l1\",\"platform\":{\"os\":\"linux\",\"architecture\":\"s390x\"}}]}" > i; add i
        echo "{\"manifests\":[{\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"digest\":\"sha256:$sum\"}]}" > oci/index.json
        echo '{"imageLayoutVersion":"1.0.0"}' > oci/oci-layout
        echo '[{"Config":"c.json","Layers":["l1/layer.tar","l2/layer.tar"]}]' > docker/manifest.json
        tar -cf oci.tar -C oci . ; tar -cf docker.tar -C docker .
        gzip -k docker.tar
    "#;
    shell(dir, script).unwrap();
}

#[test]
fn layers_of_container_images_are_laid_over_each_other() {
    for tool in ["tar", "gzip", "zstd", "sha256sum"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let dir = cowshed_harness::scratch_dir().unwrap();
    container_images(dir.path());
    let image = dir.path().join("image");
    let list = |what: &str| {
        let from = dir.path().join(what);
        run(
            "build -q --verify --platform linux/riscv64 --from {} {}",
            &[&from, &image],
        )
        .ok();
        assert_eq!(run("cat {} /etc/name", &[&image]).ok().text(), "second\n", "{what}");
        run("ls -R {} /", &[&image]).ok().text()
    };
    let listed = list("oci");
    for name in ["stays", "above"] {
        assert!(listed.contains(name), "{listed}");
    }
    for name in ["old", "below", "gone", ".wh."] {
        assert!(!listed.contains(name), "{name} in {listed}");
    }
    for other in ["oci.tar", "docker.tar", "docker.tar.gz"] {
        assert_eq!(list(other), listed, "{other}");
    }
    let oci = dir.path().join("oci");
    run("build -q --platform linux/mips --from {} {}", &[&oci, &image]).fails_with(1, &["linux/mips"]);
    run("build -q --platform linux/s390x --from {} {}", &[&oci, &image]).fails_with(1, &["blobs/sha256"]);
    run("build -q --platform linux --from {} {}", &[&oci, &image]).fails(&["OS/ARCHITECTURE"]);
    // A layer that is not what its digest says.
    shell(dir.path(), "for f in oci/blobs/sha256/*; do printf x >> $f; done").unwrap();
    run("build -q --from {} {}", &[&oci, &image]).fails_with(1, &["digest"]);
}

#[test]
fn owners_that_fakeroot_keeps_are_used() {
    let Some(()) = need::tool("fakeroot") else { return };
    let (dir, root) = source();
    small_tree(&root);
    let script =
        format!("chown 123:456 root/etc/hostname && mknod root/null c 1 3 && {COWSHED} build -q --from root image");
    let mut command = Command::new("fakeroot");
    command
        .args(["sh", "-c", &script])
        .current_dir(dir.path())
        .stdin(Stdio::null());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let image = dir.path().join("image");
    let stat = run("stat --json {} /etc/hostname", &[&image]).ok().json();
    assert_eq!((&stat[0]["uid"], &stat[0]["gid"]), (&123.into(), &456.into()));
    let null = run("stat --json {} /null", &[&image]).ok().json();
    assert!(null[0]["type"].to_string().contains("char"), "{null}");
}

//! Layers of container images that have not the digest that their image says. Digests are computed
//! beside the reading and copying: what was made of such a layer must not be seen.

use std::fs;
use std::path::{Path, PathBuf};

use btrfs_format::ChecksumType;
use cowshed_harness::{LoopDevice, need, shell};

use super::{noise, small_tree, source};
use crate::support::{COWSHED, run};

fn sha256(bytes: &[u8]) -> String {
    let sum = ChecksumType::Sha256.compute(bytes);
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes an OCI image layout of layers of `dir`; gives the paths of their blobs.
fn layout(dir: &Path, layers: &[&str]) -> Vec<PathBuf> {
    let blobs = dir.join("oci/blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let add = |bytes: &[u8]| {
        let digest = sha256(bytes);
        fs::write(blobs.join(&digest), bytes).unwrap();
        digest
    };
    let digests: Vec<_> = layers
        .iter()
        .map(|layer| add(&fs::read(dir.join(layer)).unwrap()))
        .collect();
    let described: Vec<_> = digests
        .iter()
        .map(|digest| format!(r#"{{"digest": "sha256:{digest}"}}"#))
        .collect();
    let manifest = add(format!(r#"{{"layers": [{}]}}"#, described.join(",")).as_bytes());
    let index = format!(r#"{{"manifests": [{{"digest": "sha256:{manifest}"}}]}}"#);
    fs::write(dir.join("oci/index.json"), index).unwrap();
    fs::write(dir.join("oci/oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    digests.iter().map(|digest| blobs.join(digest)).collect()
}

/// A layout `oci` of a plain, a gzip and a zstd layer. Beside it `other.tar*`: archives that are
/// read as well as the layers are.
fn prepared() -> Option<(tempfile::TempDir, Vec<PathBuf>)> {
    for tool in ["tar", "gzip", "zstd"] {
        need::tool(tool)?;
    }
    let (dir, root) = source();
    small_tree(&root);
    fs::write(root.join("large"), noise(3 << 20)).unwrap();
    let script = "tar -cf a.tar -C root . && gzip -k a.tar && zstd -q a.tar && printf x >> root/large &&
                  tar -cf other.tar -C root . && gzip -k other.tar && zstd -q other.tar && rm -r root";
    shell(dir.path(), script).unwrap();
    let layers = layout(dir.path(), &["a.tar", "a.tar.gz", "a.tar.zst"]);
    Some((dir, layers))
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn layer_with_a_wrong_digest_is_named_and_nothing_is_made() {
    let Some((dir, layers)) = prepared() else { return };
    let (oci, packed, image) = (
        dir.path().join("oci"),
        dir.path().join("oci.tar"),
        dir.path().join("image"),
    );
    run("build -q --from {} {}", &[&oci, &image]).ok();
    let good = fs::read(&image).unwrap();
    let others = ["other.tar", "other.tar.gz", "other.tar.zst"];
    for (layer, other) in layers.iter().zip(others) {
        let name = layer.file_name().unwrap().to_str().unwrap();
        let right = fs::read(layer).unwrap();
        let other = fs::read(dir.path().join(other)).unwrap();
        // One byte of some file's contents, an archive as good, one that ends too early.
        let mut flipped = right.clone();
        flipped[right.len() / 2] ^= 1;
        for wrong in [&flipped, &other, &right[..right.len() / 2]] {
            fs::write(layer, wrong).unwrap();
            shell(dir.path(), "tar -cf oci.tar -C oci .").unwrap();
            let before = names(dir.path());
            let digest = format!("has the digest sha256:{}", sha256(wrong));
            for from in [&oci, &packed] {
                for flags in [
                    "",
                    "--jobs 1",
                    "--jobs 3 --compress zstd --layers l",
                    "--dedupe --dry-run",
                ] {
                    let line = format!("build -q {flags} --from {{}} {{}}");
                    run(&line, &[from, &dir.path().join("new")]).fails_with(1, &[name, &digest]);
                    assert_eq!(names(dir.path()), before, "{flags}");
                    run(&line, &[from, &image]).fails_with(1, &[name, &digest]);
                    assert!(fs::read(&image).unwrap() == good, "{flags}: the old image is untouched");
                }
            }
        }
        let piped = format!("{COWSHED} build -q --from oci - 2>said | wc -c; cat said; rm said");
        let said = shell(dir.path(), &piped).unwrap();
        assert!(said.starts_with("0\n") && said.contains("has the digest"), "{said}");
        fs::write(layer, right).unwrap();
    }
    run("build -q --from {} {}", &[&oci, &image]).ok();
    assert!(fs::read(&image).unwrap() == good);
}

#[test]
fn device_holds_no_volume_where_a_layer_has_a_wrong_digest() {
    let Some(()) = need::loop_devices() else { return };
    let Some((dir, layers)) = prepared() else { return };
    let (oci, disk) = (dir.path().join("oci"), dir.path().join("disk"));
    fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    let device = LoopDevice::attach(&disk).unwrap();
    for flags in ["", "--compress zstd", "--jobs 1"] {
        let line = format!("build -q --force {flags} --from {{}} {{}}");
        run(&line, &[&oci, device.path()]).ok();
        run("ls {} /large", &[device.path()]).ok();
        let right = fs::read(&layers[2]).unwrap();
        fs::copy(dir.path().join("other.tar.zst"), &layers[2]).unwrap();
        run(&line, &[&oci, device.path()]).fails_with(1, &["has the digest", "holds no volume"]);
        run("ls {} /", &[device.path()]).fails(&["btrfs"]);
        fs::write(&layers[2], right).unwrap();
    }
    run("build -q --from {} {}", &[&oci, device.path()]).ok();
}

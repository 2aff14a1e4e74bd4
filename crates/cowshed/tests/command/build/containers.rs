//! Container images that other tools made: umoci writes layers of random changes, and what it
//! unpacks is what an image of ours must hold; skopeo copies them to every form, and reads ours.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cowshed_device_sim::Rng;
use cowshed_harness::tree::{Compare, Kinds, MakeOptions, compare, make};
use cowshed_harness::{need, shell};

use crate::support::run;

const LAYERS: usize = 4;
const CHANGES: usize = 25;

/// What umoci can have in a layer: no sockets, and no times after 2262, which its language counts
/// in nanoseconds.
fn kinds() -> Kinds {
    Kinds {
        specials: false,
        times: false,
        ..Kinds::all()
    }
}

/// Everything below a directory, itself left out; parents first.
fn paths(root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|name| name.unwrap().path()).collect();
        names.sort();
        for path in names {
            if path.symlink_metadata().unwrap().is_dir() {
                left.push(path.clone());
            }
            all.push(path);
        }
    }
    all
}

fn remove(path: &Path) {
    match path.symlink_metadata().unwrap().is_dir() {
        true => fs::remove_dir_all(path).unwrap(),
        false => fs::remove_file(path).unwrap(),
    }
}

/// One change of a tree, as the next layer of an image might have it.
fn change(root: &Path, rng: &mut Rng, number: usize) {
    let all = paths(root);
    let path = &all[rng.index(all.len())];
    let kind = path.symlink_metadata().unwrap();
    let fresh = |dir: &Path| dir.join(format!("new-{number}"));
    match (rng.below(7), kind.is_dir()) {
        (0, _) => remove(path),
        (1, _) => {
            remove(path);
            fs::write(path, format!("file {number}")).unwrap();
        }
        (2, _) => {
            remove(path);
            fs::create_dir(path).unwrap();
            fs::write(fresh(path), "in a directory that was something else").unwrap();
        }
        (3, _) => {
            remove(path);
            symlink("new-target", path).unwrap();
        }
        (4, true) => fs::rename(path, root.join(format!("moved-{number}"))).unwrap(),
        (5, true) => fs::set_permissions(path, PermissionsExt::from_mode(0o2711)).unwrap(),
        (_, true) => fs::write(fresh(path), vec![b'n'; rng.below(5000) as usize]).unwrap(),
        (_, false) if kind.is_file() && rng.below(2) == 0 => fs::hard_link(path, fresh(root)).unwrap(),
        (_, false) if kind.is_file() => fs::write(path, format!("again {number}")).unwrap(),
        (_, false) => remove(path),
    }
}

/// What umoci unpacks under a tag.
fn unpacked(dir: &Path, tag: &str) -> PathBuf {
    shell(
        dir,
        &format!("umoci --log=error unpack --image oci:{tag} unpacked-{tag}"),
    )
    .unwrap();
    dir.join(format!("unpacked-{tag}/rootfs"))
}

/// What an image of this source holds is what umoci unpacked.
#[track_caller]
fn assert_holds(dir: &Path, source: &str, unpacked: &Path) {
    let (image, ours) = (dir.join("image"), dir.join("ours"));
    run("build -q --from {} {}", &[&dir.join(source), &image]).ok();
    run("check --check-data-csum {}", &[&image]).ok();
    run("extract {} {}", &[&image, &ours]).ok();
    compare(unpacked, &ours, &Compare::copy()).unwrap().assert_none();
    fs::remove_file(image).unwrap();
    fs::remove_dir_all(ours).unwrap();
}

fn with_tools() -> Option<()> {
    need::root()?;
    ["umoci", "skopeo", "python3"].into_iter().try_for_each(need::tool)
}

#[test]
fn layers_of_umoci_hold_what_umoci_unpacks() {
    let Some(()) = with_tools() else { return };
    let scratch = cowshed_harness::scratch_dir().unwrap();
    let dir = scratch.path();
    let root = dir.join("bundle/rootfs");
    let begin = "umoci --log=error init --layout oci && umoci --log=error new --image oci:0
                 umoci --log=error unpack --image oci:0 bundle";
    shell(dir, begin).unwrap();
    let mut rng = Rng::new(31);
    for layer in 1..=LAYERS {
        match layer {
            1 => {
                let kinds = kinds();
                make(
                    &root,
                    &MakeOptions {
                        kinds,
                        ..MakeOptions::new(3, 150)
                    },
                )
                .unwrap();
            }
            _ => (0..CHANGES).for_each(|number| change(&root, &mut rng, layer * CHANGES + number)),
        }
        let pack = format!("umoci --log=error repack --image oci:{layer} --refresh-bundle bundle");
        shell(dir, &pack).unwrap();
    }
    // A directory that hides what was there, and one name that goes.
    fs::create_dir(root.join("hidden")).unwrap();
    fs::write(root.join("hidden/below"), "hidden").unwrap();
    fs::write(root.join("gone"), "gone").unwrap();
    let end = "umoci --log=error repack --image oci:last --refresh-bundle bundle
               mkdir added && echo above > added/above && chmod 710 added
               umoci --log=error insert --opaque --image oci:last added /hidden
               umoci --log=error insert --whiteout --image oci:last /gone";
    shell(dir, end).unwrap();
    for layer in 1..=LAYERS {
        assert_holds(dir, &format!("oci:{layer}"), &unpacked(dir, &layer.to_string()));
    }
    let last = unpacked(dir, "last");
    assert_holds(dir, "oci:last", &last);
    // Several images: which one must be said.
    let (layout, image) = (dir.join("oci"), dir.join("image"));
    run("build {} --from {}", &[&image, &layout]).fails_with(1, &["several images", "0, 1, 2", "PATH:NAME"]);
    run("build {} --from {}", &[&image, &dir.join("oci:none")]).fails_with(1, &["no image \"none\"", "last"]);
    run("build {} --from {}", &[&image, &dir.join("added:last")]).fails_with(1, &["no container image"]);
    let layer = dir.join("layer.tar");
    shell(dir, "tar -cf layer.tar -C added .").unwrap();
    for transport in ["oci", "oci-archive", "docker-archive"] {
        for path in [&dir.join("added"), &layer] {
            let named = PathBuf::from(format!("{transport}:{}", path.display()));
            run("build {} --from {}", &[&image, &named]).fails_with(1, &["no container image"]);
        }
    }
    // Whatever form skopeo gives it.
    let policy = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
    fs::write(dir.join("policy.json"), policy).unwrap();
    let copy = "copy() { skopeo --policy policy.json copy -q \"$@\"; }
                copy oci:oci:last docker-archive:docker.tar:host/name:v1
                copy oci:oci:last oci-archive:oci.tar:tagged
                copy --dest-compress-format zstd oci:oci:last oci:zstd:compressed";
    shell(dir, copy).unwrap();
    for source in [
        "docker.tar",
        "docker.tar:host/name:v1",
        "oci.tar",
        "oci.tar:tagged",
        "zstd",
        "zstd:compressed",
    ] {
        assert_holds(dir, source, &last);
    }
    run("build {} --from {}", &[&image, &dir.join("docker.tar:host/name:v2")])
        .fails_with(1, &["no image \"host/name:v2\"", "host/name:v1"]);
    assert!(!image.exists());
}

#[test]
fn exported_image_has_a_name_and_is_read_by_others() {
    let Some(()) = with_tools() else { return };
    let scratch = cowshed_harness::scratch_dir().unwrap();
    let dir = scratch.path();
    let (source, image, out) = (dir.join("source"), dir.join("image"), dir.join("out"));
    fs::create_dir(&source).unwrap();
    let kinds = kinds();
    make(
        &source,
        &MakeOptions {
            kinds,
            ..MakeOptions::new(5, 200)
        },
    )
    .unwrap();
    // umoci's library takes an attribute without a value for one that goes.
    let without_empty = "import os
for dir, dirs, files in os.walk('source'):
    for path in [dir] + [os.path.join(dir, name) for name in dirs + files]:
        for name in os.listxattr(path, follow_symlinks=False):
            if not os.getxattr(path, name, follow_symlinks=False):
                os.removexattr(path, name, follow_symlinks=False)";
    shell(dir, &format!("python3 -c \"{without_empty}\"")).unwrap();
    run("build -q --from {} {}", &[&source, &image]).ok();
    run("export oci --tag named {} {}", &[&image, &out]).ok();
    run("export oci --tag other {} {}", &[&image, &dir.join("out.tar")]).ok();
    // A layout may have other images, which its index would lose.
    run("export oci {} {}", &[&image, &out]).fails_with(1, &["not empty"]);
    // Of an export that fails nothing is left.
    let fails = format!(
        "SOURCE_DATE_EPOCH=soon {} export oci image half 2>&1 | grep SOURCE_DATE_EPOCH",
        env!("CARGO_BIN_EXE_cowshed")
    );
    shell(dir, &fails).unwrap();
    assert!(!dir.join("half").exists());
    let policy = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
    fs::write(dir.join("policy.json"), policy).unwrap();
    let read = "umoci --log=error unpack --image out:named one
                skopeo --policy policy.json copy -q oci-archive:out.tar:other oci:copied:other
                umoci --log=error unpack --image copied:other two";
    shell(dir, read).unwrap();
    for unpacked in ["one", "two"] {
        compare(&source, &dir.join(unpacked).join("rootfs"), &Compare::copy())
            .unwrap()
            .assert_none();
    }
}

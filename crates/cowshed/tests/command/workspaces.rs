//! docs/workspaces.md, run as it stands: by an ordinary user, with the image on ext4.

use cowshed_harness::{limit, need};

use crate::support::{COWSHED, commands_of, in_name_space};

const PAGE: &str = include_str!("../../../../docs/workspaces.md");

/// `$1`: a directory. `$2`: the program. `$3`: what the user runs.
const SCRIPT: &str = r#"
    set -eu
    mount -t tmpfs tmpfs "$1"
    cd "$1"
    mkdir bin dev disk
    cp "$2" bin/cowshed
    mknod -m 666 dev/fuse c 10 229
    mount --bind dev/fuse /dev/fuse
    truncate -s 1g disk.img
    mkfs.ext4 -q disk.img
    mount -o loop disk.img disk
    chmod 755 . bin bin/cowshed
    mkdir -p disk/home/project/src
    cd disk/home
    # A tree of 4 MiB, and a job that changes 100 KiB of it.
    for n in 1 2 3 4; do head -c 1048576 /dev/urandom > project/src/file$n; done
    printf 'result: src/file1\n\thead -c 100000 src/file$(NUMBER) > result; echo $(NUMBER) > src/number; cp result again; rm again\n' \
        > project/Makefile
    chown -R 1000:1000 .
    export PATH="$1/bin:$PATH" HOME="$1/disk/home"
    setpriv --reuid=1000 --regid=1000 --clear-groups sh -euc "$3"
    setpriv --reuid=1000 --regid=1000 --clear-groups sh -euc '
        cowshed mount work.img work
        echo "left: $(ls work)"
        cat work/base/src/number
        head -c 100000 project/src/file2 | cmp - work/base/result
        for n in 1 2 3 4; do cmp project/src/file$n work/base/src/file$n; done
        cowshed umount work
    '
    cd /
    umount "$1/disk"
"#;

#[test]
fn workspaces_are_as_the_page_says() {
    if need::root().is_none() || need::fuse().is_none() {
        return;
    }
    for program in ["fusermount3", "setpriv", "unshare", "mkfs.ext4", "make"] {
        let Some(()) = need::tool(program) else { return };
    }
    let commands = commands_of(PAGE);
    assert!(commands.lines().count() > 15, "{commands}");
    let dir = tempfile::tempdir().unwrap();
    let mut unshare = in_name_space();
    unshare
        .args(["-m", "sh", "-c", SCRIPT, "sh"])
        .arg(dir.path())
        .arg(COWSHED)
        .arg(&commands);
    let ran = limit::output(&mut unshare).unwrap_or_else(|e| panic!("{e:#}"));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    // What the job made is there, and nothing else.
    let diff: Vec<&str> = said.lines().filter(|line| line.starts_with("A ")).collect();
    assert_eq!(diff.len(), 2, "{said}");
    for name in ["result", "src/number"] {
        assert!(diff.iter().any(|line| line.contains(&format!("  {name}  "))), "{said}");
    }
    // Total, exclusive and shared bytes: of each copy the files that its job wrote are its own.
    let numbers = |name: &str| -> Vec<u64> {
        let line = said.lines().find(|line| line.ends_with(name));
        let line = line.unwrap_or_else(|| panic!("no line of {name}: {said}"));
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    assert_eq!(numbers("work/base")[1], 0, "{said}");
    for job in ["work/job1", "work/job2", "work/job3"] {
        let [total, exclusive, ..] = numbers(job)[..] else {
            panic!("{said}")
        };
        assert!((100_000..110_000).contains(&exclusive) && total > 4 << 20, "{said}");
    }
    assert!(said.contains("left: base\n2\n"), "{said}");
}

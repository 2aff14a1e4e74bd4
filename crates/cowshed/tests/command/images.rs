//! docs/images.md, run as it stands.

use cowshed_harness::need;

use crate::build::archives::container_images;
use crate::support::{COWSHED, commands_of, run};

const PAGE: &str = include_str!("../../../../docs/images.md");

#[test]
fn images_are_as_the_page_says() {
    for tool in ["tar", "gzip", "zstd", "sha256sum"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let commands = commands_of(PAGE);
    assert_eq!(commands.matches("cowshed build").count(), 3, "{commands}");
    let dir = cowshed_harness::scratch_dir().unwrap();
    container_images(dir.path());
    let script = format!(
        "set -eu; mkdir bin; ln -s {COWSHED} bin/cowshed; PATH=$PWD/bin:$PATH; mv oci container\n\
         mkdir -p root/etc root/var/cache root/bin; echo old > root/etc/hostname; echo x > root/var/cache/x\n\
         head -c 100000 /dev/zero > root/bin/a; cp root/bin/a root/bin/b; tar -cf rootfs.tar -C root .\n{commands}"
    );
    let said = cowshed_harness::shell(dir.path(), &script).unwrap();
    assert!(said.ends_with("001\n002\n"), "{said}");
    let disk = dir.path().join("disk.img");
    assert!(std::fs::metadata(&disk).unwrap().len() > 1 << 30);
    let alone = dir.path().join("alone.img");
    cowshed_harness::shell(
        dir.path(),
        "dd if=disk.img of=alone.img bs=1M skip=1 conv=sparse status=none",
    )
    .unwrap();
    assert_eq!(run("cat {} /etc/hostname", &[&alone]).ok().text(), "cow\n");
    let user = run("stat -o subvol=@home --json {} /user", &[&alone]).ok().json();
    assert_eq!(user[0]["uid"], 1000);
    let appliance = dir.path().join("appliance.img");
    run("check --check-data-csum {}", &[&appliance]).ok();
    assert_eq!(run("ls {} /var/cache", &[&appliance]).ok().text(), "");
    assert_eq!(run("cat {} /bin/b", &[&appliance]).ok().out, [0; 100_000]);
    assert_eq!(
        run("cat {} /.layers/001/etc/name", &[&dir.path().join("container.img")])
            .ok()
            .text(),
        "first\n"
    );
    let members = cowshed_harness::shell(
        dir.path(),
        "tar -tf container.tar; tar -xOf container.tar --wildcards '*etc/hostname'",
    );
    let members = members.unwrap();
    assert!(
        members.contains("etc/name\n") && members.ends_with("cow\n"),
        "{members}"
    );
}

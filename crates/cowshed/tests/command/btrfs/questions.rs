//! Commands that change nothing, beside the stock command: on a mount of the kernel's to the byte,
//! then, with the same ids, uuids and transactions, on a mount of ours and on the image.

use std::collections::BTreeSet;

use cowshed_harness::progs::is_of_another_device;
use cowshed_harness::{KernelVolume, shell};

use super::{Answer, At, can_compare, fresh, ours, stock, text, with_own_mount};

/// Where the lines are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    KernelMount,
    OurMount,
    Image,
}

/// Both answers, in a form in which they shall be equal; `None`: they differ by nature.
pub type Plain<'a> = &'a dyn Fn(&str, On, Answer) -> Option<Answer>;

#[track_caller]
fn same(line: &str, on: On, plain: Plain<'_>, (own, stock): (Answer, Answer)) {
    let (Some(own), Some(stock)) = (plain(line, on, own), plain(line, on, stock)) else {
        return;
    };
    assert_eq!(own.out, stock.out, "{on:?}: {line}: {}", own.err);
    assert_eq!(own.code, stock.code, "{on:?}: {line}: {}", own.err);
    // Usage is worded in another way, and refused with the same code.
    let is_usage = own.err.contains("--help") || stock.err.contains("expected");
    if !is_usage {
        assert_eq!(own.err, stock.err, "{on:?}: {line}");
    }
}

/// Devices of tests that run at the same time come and go.
fn without_scans(answer: Answer) -> Answer {
    let lines = answer
        .err
        .lines()
        .filter(|line| !line.starts_with("ERROR: cannot scan "));
    let err = lines.map(|line| format!("{line}\n")).collect();
    Answer { err, ..answer }
}

/// Asks all lines of all, on one volume. There are at least so many different answers.
#[track_caller]
fn ask(volume: &KernelVolume, lines: &[String], answers_min: usize, plain: Plain<'_>) {
    let mounted = volume.mount_with("noatime,subvolid=5").unwrap();
    let root = text(&mounted.dir().canonicalize().unwrap());
    let mut answers = Vec::new();
    for line in lines {
        let answer = without_scans(stock(&root).run(line));
        same(
            line,
            On::KernelMount,
            &|_, _, answer| Some(answer),
            (ours(&root).run(line), answer.clone()),
        );
        answers.push(answer);
    }
    let device = source_of(&root);
    mounted.unmount_quietly().unwrap();
    let texts: BTreeSet<_> = answers.iter().map(|answer| &answer.out).collect();
    assert!(texts.len() >= answers_min, "the answers differ: {}", texts.len());

    // A device is called as the image file, where it is one.
    let image = text(&volume.image().canonicalize().unwrap());
    let compare = |at: &At<'_>, on: On| {
        for (line, answer) in lines.iter().zip(&answers) {
            let mut answer = answer.clone();
            for text in [&mut answer.out, &mut answer.err] {
                *text = text.replace(&device, "DEVICE");
            }
            let mut own = at.run(line);
            for text in [&mut own.out, &mut own.err] {
                *text = text
                    .replace(&format!("{image} "), "DEVICE ")
                    .replace(&format!("{image}\n"), "DEVICE\n");
                *text = text
                    .replace(&format!("{image}]"), "DEVICE]")
                    .replace(&format!("{image}\t"), "DEVICE\t");
                *text = text
                    .replace(&format!("{image},"), "DEVICE,")
                    .replace(&format!("{image}\""), "DEVICE\"");
            }
            same(line, on, plain, (own, answer));
        }
    };
    with_own_mount(volume, "subvolid=5,noatime", |root| compare(&ours(root), On::OurMount));
    compare(&ours(&format!("{}:", text(volume.image()))), On::Image);
    volume.assert_clean();
}

/// The device of a mount.
fn source_of(root: &str) -> String {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(1) == Some(root));
    line.and_then(|line| line.split(' ').next()).unwrap().to_owned()
}

fn strings(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

/// Shared and compressed extents, holes, names of several kinds, and subvolumes.
fn fill(volume: &KernelVolume) {
    let script = r"
        btrfs -q subvolume create a; mkdir -p d/deep empty; echo hi >d/tiny
        dd if=/dev/urandom of=a/g bs=64k count=3; cp --reflink=always a/g d/g; ln d/g d/deep/g; ln d/g hard
        sync -f .; dd if=/dev/urandom of=d/g bs=4k count=1 seek=5 conv=notrunc
        yes | head -c 300k >d/comp; truncate -s 1M d/holes; fallocate -l 64k d/pre
        btrfs -q subvolume snapshot a s1; btrfs -q subvolume snapshot -r a s2; echo more >>s1/g
        mkdir packed; chattr +c packed; yes | head -c 300k >packed/f; sync -f .
        btrfs property set packed compression zstd; btrfs send -q s2 | btrfs receive -q d
        btrfs filesystem label . 'a name'; sync -f .; btrfs subvolume sync .; sync -f .";
    volume.with_mount(|root| shell(root, script)).unwrap();
}

/// What is kept for deletions is each one's own: the kernel's reserve for its trees, and ours.
fn without_reserve(answer: Answer) -> Answer {
    let mut lines: Vec<String> = Vec::new();
    let mut is_of_reserve = false;
    for line in answer.out.lines() {
        is_of_reserve |= line.contains("\"GlobalReserve\"");
        let shown = match line.trim_start() {
            reserve if reserve.starts_with("GlobalReserve, single: total=") => "GlobalReserve",
            reserve if reserve.starts_with("Global reserve:") => "Global reserve",
            total if is_of_reserve && total.starts_with("\"total\"") => "total",
            _ => line,
        };
        lines.push(shown.to_owned());
    }
    let out = lines.join("\n");
    Answer { out, ..answer }
}

/// The widths of columns follow from the length of the device's name.
fn without_widths(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if !((c == ' ' || c == '-') && out.ends_with(c)) {
            out.push(c);
        }
    }
    out
}

#[test]
fn space_is_shown_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    fill(&volume);
    let mut lines = Vec::new();
    let units = [
        "", "-b", "-h", "-H", "--iec", "--si", "-k", "-m", "-g", "-t", "--si -k", "-k --si", "-m -g", "-b --si",
    ];
    for unit in units {
        lines.push(format!("filesystem df {unit} @/"));
        lines.push(format!("filesystem usage {unit} @/"));
        lines.push(format!("device usage {unit} @/d"));
    }
    for unit in [
        "",
        "--raw",
        "--si",
        "--iec",
        "--kbytes",
        "--mbytes",
        "--gbytes",
        "--human-readable",
    ] {
        lines.push(format!("filesystem show {unit} @/"));
        lines.push(format!("filesystem du {unit} @/"));
        lines.push(format!("filesystem du -s {unit} @/a @/d/g @/d @/empty"));
    }
    lines.extend(strings(&[
        "--format json filesystem df @/d",
        "filesystem usage -T @/",
        "filesystem usage -T -b @/",
        "filesystem usage @/ @/d",
        "filesystem df @/d/g",
        "filesystem df @/none",
        "filesystem df",
        "filesystem usage @/d/g",
        "filesystem usage @/none",
        "filesystem du @/none",
        "filesystem du @/d/holes @/d/pre @/d/comp",
        "filesystem show @/d",
        "filesystem show @/none",
        "filesystem sync @/",
        "filesystem sync @/d/g",
        "filesystem sync @/none",
        "filesystem label @/",
        "device usage @/d/g",
        "device stats @/",
        "device stats -c @/d",
        "device stats -T @/",
        "--format json device stats @/",
        "device stats @/d/g",
        "device stats @/none",
        "fi df @/",
        "dev us @/",
    ]));
    ask(&volume, &lines, 50, &|line, _, answer| {
        let mut answer = without_reserve(answer);
        if line.contains("-T") {
            answer.out = without_widths(&answer.out);
        }
        Some(answer)
    });
}

#[test]
fn properties_are_shown_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    fill(&volume);
    let mut lines = Vec::new();
    for place in ["", "a", "s2", "d", "d/g", "packed", "packed/f", "d/s2", "none"] {
        for command in ["list", "get"] {
            lines.push(format!("property {command} @/{place}"));
        }
        for name in ["ro", "label", "compression", "wobble"] {
            lines.push(format!("property get @/{place} {name}"));
        }
        let of_dirs = ["i", "s", "f", "inode", "subvol", "filesystem", "x"];
        let types = match place {
            // Each type has an error of its own where there is nothing.
            "none" => &of_dirs[..1],
            // The stock command takes a file for a device.
            file if file.contains('/') => &of_dirs[..2],
            _ => &of_dirs[..],
        };
        for ty in types {
            lines.push(format!("property get -t {ty} @/{place}"));
            lines.push(format!("property list -t {ty} @/{place}"));
        }
    }
    lines.extend(strings(&[
        "property get",
        "property wobble @/",
        "prop l @/",
        "property get -ts @/a ro",
    ]));
    ask(&volume, &lines, 12, &|_, _, answer| Some(answer));
}

#[test]
fn numbers_are_resolved_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    fill(&volume);
    let mut lines = Vec::new();
    for place in ["", "a", "d", "d/g", "s1/g", "none"] {
        lines.push(format!("inspect-internal rootid @/{place}"));
        for id in ["5", "256", "257", "259", "999", "x"] {
            lines.push(format!("inspect-internal subvolid-resolve {id} @/{place}"));
        }
        for inode in ["256", "257", "258", "259", "260", "999", "x"] {
            lines.push(format!("inspect-internal inode-resolve {inode} @/{place}"));
        }
    }
    // The first extents of data, and addresses of metadata and of nothing.
    for logical in [
        "13631488", "13635584", "13651968", "13828096", "13832192", "14000128", "30408704", "1", "x",
    ] {
        for how in ["", "-P", "-o", "-P -o", "-s 70000 -P"] {
            lines.push(format!("inspect-internal logical-resolve {how} {logical} @/"));
        }
    }
    lines.push("inspect-internal logical-resolve 13631488 @/none".into());
    lines.push("inspect rootid @/".into());
    ask(&volume, &lines, 30, &|line, on, mut answer| {
        let is_of_extent = line.contains("logical-resolve");
        // In an image each subvolume is reached by its path.
        if is_of_extent && on == On::Image && !line.contains("-P") {
            return None;
        }
        if is_of_extent {
            let mut sorted: Vec<_> = answer.out.lines().collect();
            sorted.sort_unstable();
            answer.out = sorted.join("\n");
        }
        Some(answer)
    });
    let image = format!("{}:", volume.image().display());
    let paths = ours(&image).ok("inspect-internal logical-resolve 13631488 @/");
    let found: BTreeSet<_> = paths.lines().collect();
    let expected = ["@/a/g", "@/s1/g", "@/s2/g", "@/d/g", "@/d/deep/g", "@/hard"];
    assert_eq!(found, BTreeSet::from(expected));
}

/// The commands that read devices, on the image itself.
#[test]
fn images_are_dumped_and_checked_as_by_the_stock_command() {
    let Some(()) = can_compare() else { return };
    let volume = fresh();
    fill(&volume);
    // Trees of two levels.
    let script = "mkdir many; for i in $(seq 1 1500); do echo $i >many/a_longer_name_$i; done; sync -f .";
    volume.with_mount(|root| shell(root, script)).unwrap();
    let image = text(volume.image());
    for (name, bytes) in [("short", 5000), ("zeros", 1 << 20)] {
        std::fs::write(format!("{image}.{name}"), vec![0; bytes]).unwrap();
    }
    let roots = stock(&image).ok("inspect-internal dump-tree -r @");
    let block = roots
        .lines()
        .find_map(|line| line.strip_prefix("fs tree key (FS_TREE ROOT_ITEM 0) "));
    let block = block.and_then(|line| line.split(' ').next()).unwrap();
    assert!(roots.contains("fs tree key (FS_TREE ROOT_ITEM 0) ") && !roots.contains(&format!("{block} level 0")));
    let mut lines = strings(&[
        "inspect-internal dump-super @",
        "inspect-internal dump-super -f @",
        "inspect-internal dump-super -fa @",
        "inspect-internal dump-super -a @ @",
        "inspect-internal dump-super -s 1 @",
        "inspect-internal dump-super -s 2 @",
        "inspect-internal dump-super -i 1 @",
        "inspect-internal dump-super --bytenr 65536 @",
        "inspect-internal dump-super --bytenr 4096 @",
        "inspect-internal dump-super -F --bytenr 4096 @",
        "inspect-internal dump-super @none",
        "inspect-internal dump-tree @",
        "inspect-internal dump-tree --bfs @",
        "inspect-internal dump-tree --dfs @",
        "inspect-internal dump-tree -r @",
        "inspect-internal dump-tree -R @",
        "inspect-internal dump-tree -e @",
        "inspect-internal dump-tree -d @",
        "inspect-internal dump-tree -u @",
        "inspect-internal dump-tree -t 999 @",
        "inspect-internal dump-tree -t wobble @",
        "inspect-internal tree-stats @",
        "inspect-internal tree-stats -b @",
        "check @",
        "check --readonly --mode original @",
        "check --check-data-csum @",
        "filesystem show @",
        "filesystem show --raw @",
        "filesystem show @none",
        "filesystem label @",
        "filesystem label @none",
        "filesystem label @.short",
        "filesystem label @.short x",
        "filesystem label @.zeros",
        "filesystem label @.zeros LONG",
    ]);
    for tree in [
        "5",
        "fs",
        "root",
        "chunk",
        "extent",
        "csum",
        "uuid",
        "256",
        "257",
        "data_reloc_tree",
    ] {
        lines.push(format!("inspect-internal dump-tree -t {tree} @"));
    }
    lines.push(format!("inspect-internal dump-tree -b {block} @"));
    lines.push(format!("inspect-internal dump-tree --follow -b {block} @"));
    let plain = |answer: Answer| {
        // The time that reading took, what tree-stats has besides its sums, and what each checker
        // takes for waste.
        let own = ["Total read time", "Seek histogram", "btree space waste bytes"];
        let is_own = |line: &str| own.iter().any(|own| line.contains(own));
        let is_bar = |line: &str| {
            let cells = line.trim_start();
            line.starts_with("\t\t") && cells.starts_with(|c: char| c.is_ascii_digit()) && cells.contains(" - ")
        };
        let is_kept = |line: &&str| !is_own(line) && !is_bar(line);
        let kept = |text: &str| text.lines().filter(is_kept).collect::<Vec<_>>().join("\n");
        // Steps of the stock checker, notes of ours, and what tests beside this one cause.
        let steps = |text: &str| {
            text.lines()
                .filter(|line| !line.starts_with('[') && !line.starts_with("note: ") && !is_of_another_device(line))
                .collect::<Vec<_>>()
                .join("\n")
        };
        Answer {
            out: kept(&answer.out),
            err: steps(&answer.err),
            ..answer
        }
    };
    for line in &lines {
        let (own, stock) = (
            plain(ours(&image).run_in(line, "UTC")),
            plain(stock(&image).run_in(line, "UTC")),
        );
        let differing = own.out.lines().zip(stock.out.lines()).find(|(own, stock)| own != stock);
        assert!(
            own == stock,
            "{line}: {differing:?} {} {} {} {}",
            own.code,
            stock.code,
            own.err,
            stock.err
        );
    }
}

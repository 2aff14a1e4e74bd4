//! Parent pointers, which are attributes that links make.

use super::*;

#[test]
fn attris_of_parent_pointers_make_the_tree_that_links_make_on_linux() {
    if is_able() {
        run_links().unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// A name of one file that is made, changed or removed.
enum Link {
    Make(Vec<u8>),
    Move(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
}

impl Link {
    fn attri<'a>(&'a self, ino: (u64, u32), parent: &'a [u8]) -> Attri<'a> {
        let (op, name) = match self {
            Self::Make(name) => (attri_op::PARENT_SET, name),
            Self::Move(name, _) => (attri_op::PARENT_REPLACE, name),
            Self::Remove(name) => (attri_op::PARENT_REMOVE, name),
        };
        let mut attri = Attri {
            ino,
            op,
            filter: attr_flags::PARENT,
            name,
            value: parent,
            ..Attri::default()
        };
        if let Self::Move(_, new) = self {
            (attri.new_name, attri.new_value) = (new, parent);
        }
        attri
    }

    fn call(&self, dir: &Path) -> Result<()> {
        let path = |name: &[u8]| dir.join(std::ffi::OsStr::from_bytes(name));
        match self {
            Self::Make(name) => fs::hard_link(path(b"first"), path(name))?,
            Self::Move(old, new) => fs::rename(path(old), path(new))?,
            Self::Remove(name) => fs::remove_file(path(name))?,
        }
        Ok(())
    }
}

fn run_links() -> Result<()> {
    let one = || -> Result<(XfsVolume, u64, u64)> {
        let volume = volume("-b size=1k")?;
        set_new_bits(volume.image())?;
        let (ino, dir) = volume.with_mount(|root| {
            fs::create_dir(root.join("dir"))?;
            let path = root.join("dir/first");
            fs::write(&path, b"")?;
            Ok((fs::metadata(path)?.ino(), fs::metadata(root.join("dir"))?.ino()))
        })?;
        Ok((volume, ino, dir))
    };
    let ((ours, ino, dir), (linux, other, _)) = (one()?, one()?);
    ensure!(ino == other, "the same inode");
    let start = recovered(ours.image())?;
    let generation = |of: u64| Ok::<u32, anyhow::Error>(common::inode(&start, of)?.core().generation.get());
    let parent = [&dir.to_be_bytes()[..], &generation(dir)?.to_be_bytes()].concat();
    let (file, linux_start) = ((ino, generation(ino)?), recovered(linux.image())?);
    let linux_parent = common::inode(&linux_start, dir)?.core().generation.get();
    drop((start, linux_start));
    let mut rng = Rng::new(11);
    let mut all = names(&mut rng, 470);
    let new = all.split_off(400);
    let mut links: Vec<Link> = all.iter().cloned().map(Link::Make).collect();
    rng.shuffle(&mut all);
    for (place, new) in all.iter_mut().zip(new) {
        links.push(Link::Move(std::mem::replace(place, new.clone()), new));
    }
    rng.shuffle(&mut all);
    links.extend(all.into_iter().map(Link::Remove));
    let (mut deepest, mut since) = (0, 0);
    let mut log = Log::open(ours.image())?;
    for (at, link) in links.iter().enumerate() {
        log.append(&[link.attri(file, &parent).item(1)], |_| {})?;
        let found = stored(&recovered(ours.image())?, ino).with_context(|| format!("link {at}"))?;
        put_home(ours.image())?;
        deepest = deepest.max(found.levels);
        if (at + 1) % 58 == 0 || at + 1 == links.len() {
            linux.with_mount(|root| {
                links[since..=at]
                    .iter()
                    .try_for_each(|link| link.call(&root.join("dir")))
            })?;
            since = at + 1;
            let mut kernel = stored(&recovered(linux.image())?, ino)?;
            for value in kernel.attrs.values_mut() {
                ensure!(value.ends_with(&linux_parent.to_be_bytes()), "the directory");
                value.clone_from(&parent);
            }
            found.compare(&kernel).with_context(|| format!("link {at}"))?;
        }
    }
    ensure!(deepest == 3, "{deepest} levels");
    // The names are not those of the directory, but all else is.
    let report = judge(ours.image())?;
    ensure!(report.is_clean(), "{report}");
    Ok(())
}

#[test]
fn last_parent_pointer_leaves_what_it_leaves_on_linux() {
    if !is_able() {
        return;
    }
    // Names of 255 bytes are never in the inode.
    for len in [5, 254, 255] {
        run_last_pointer(len).unwrap_or_else(|error| panic!("{len} bytes: {error:#}"));
    }
}

fn run_last_pointer(len: usize) -> Result<()> {
    let volume = volume("")?;
    set_new_bits(volume.image())?;
    let name = vec![b'n'; len];
    let (ino, dir) = volume.with_mount(|root| {
        let path = root.join(std::ffi::OsStr::from_bytes(&name));
        fs::write(&path, b"")?;
        Ok((fs::metadata(path)?.ino(), fs::metadata(root)?.ino()))
    })?;
    let start = recovered(volume.image())?;
    let generation = |of: u64| Ok::<u32, anyhow::Error>(common::inode(&start, of)?.core().generation.get());
    let parent = [&dir.to_be_bytes()[..], &generation(dir)?.to_be_bytes()].concat();
    let before = stored(&start, ino)?;
    let file = (ino, generation(ino)?);
    ensure!(before.is_short == (len < 255), "{before:?}");
    // Renamed to a long name and back, then removed.
    let long = vec![b'l'; 255];
    let links = [
        Link::Move(name.clone(), long.clone()),
        Link::Move(long, name.clone()),
        Link::Remove(name),
    ];
    for link in links {
        Log::open(volume.image())?.append(&[link.attri(file, &parent).item(1)], |_| {})?;
        let found = stored(&recovered(volume.image())?, ino)?;
        volume.with_mount(|_| Ok(()))?;
        found.compare(&stored(&recovered(volume.image())?, ino)?)?;
    }
    Ok(())
}

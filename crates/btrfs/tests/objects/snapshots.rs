//! Subvolumes and snapshots that we make: random operations beside a model, judged by both checkers
//! and by the kernel, which goes on with the volume, and we after it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use btrfs_check::{CheckOptions, check};
use cowshed_btrfs::fs::MountOptions;
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_device_sim::Rng;
use cowshed_harness::{KernelVolume, VolumeOptions, run};
use cowshed_vfs::{Error, FileSystem, Handle, InitInfo, NodeId, NothingHeld, RenameFlags, SetAttr, Volume, WriteFlags};

use crate::rig::{ROOT, Rig, kernel_can};

/// What a subvolume holds: files, and places of subvolumes that belong elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    files: BTreeMap<String, Vec<u8>>,
    stand_ins: Vec<String>,
    is_read_only: bool,
}

/// Paths from the top level to subvolumes; the top level itself is "".
type Model = BTreeMap<String, Content>;

fn join(above: &str, name: &str) -> String {
    match above {
        "" => name.to_owned(),
        _ => format!("{above}/{name}"),
    }
}

fn noise(dice: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    dice.fill(&mut bytes);
    bytes
}

/// The path of the subvolume that another one lies in, and the name there.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn is_inside(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Every file below a directory by its path, and the directories, which end in a slash.
fn walk(root: &Path) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    fn visit(dir: &Path, path: &str, out: &mut BTreeMap<String, Vec<u8>>) -> std::io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let path = join(path, &entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                out.insert(format!("{path}/"), Vec::new());
                visit(&entry.path(), &path, out)?;
            } else {
                out.insert(path, std::fs::read(entry.path())?);
            }
        }
        Ok(())
    }
    let mut out = BTreeMap::new();
    visit(root, "", &mut out)?;
    Ok(out)
}

/// What a walk finds where the volume is as the model says.
fn shown(model: &Model) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    for (path, content) in model {
        if !path.is_empty() {
            out.insert(format!("{path}/"), Vec::new());
        }
        for (name, bytes) in &content.files {
            out.insert(join(path, name), bytes.clone());
        }
        for name in &content.stand_ins {
            out.insert(format!("{}/", join(path, name)), Vec::new());
        }
    }
    out
}

fn assert_same(found: &BTreeMap<String, Vec<u8>>, model: &Model, when: &str) {
    let wanted = shown(model);
    let names = |map: &BTreeMap<String, Vec<u8>>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(&wanted), "{when}: names");
    for (path, bytes) in &wanted {
        assert!(found[path] == *bytes, "{when}: the content of {path}");
    }
}

struct Player {
    /// Deleted subvolumes are dropped while they are remembered.
    drops_early: bool,
    rig: Rig,
    model: Model,
    dice: Rng,
    made: usize,
    /// What was done to subvolumes since the mount, for messages.
    history: Vec<String>,
}

impl Player {
    fn new(seed: u64, options: &VolumeOptions) -> Self {
        let volume = KernelVolume::make(options).expect("mkfs.btrfs");
        let (drops_early, rig) = (seed % 2 == 1, Rig::on(volume));
        if drops_early {
            rig.fs.set_caches(Arc::new(NothingHeld));
        }
        Self {
            drops_early,
            rig,
            model: BTreeMap::from([(String::new(), Content::default())]),
            dice: Rng::new(seed),
            made: 0,
            history: Vec::new(),
        }
    }

    fn node(&self, path: &str) -> NodeId {
        self.rig.node(path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// A subvolume that `is_fit`.
    fn pick(&mut self, is_fit: impl Fn(&Content) -> bool) -> Option<String> {
        let fit: Vec<_> = self
            .model
            .iter()
            .filter(|(_, c)| is_fit(c))
            .map(|(p, _)| p.clone())
            .collect();
        (!fit.is_empty()).then(|| fit[self.dice.index(fit.len())].clone())
    }

    fn pick_file(&mut self) -> Option<(String, String)> {
        let path = self.pick(|c| !c.is_read_only && !c.files.is_empty())?;
        let names: Vec<_> = self.model[&path].files.keys().cloned().collect();
        let name = names[self.dice.index(names.len())].clone();
        Some((path, name))
    }

    fn has_nested(&self, path: &str) -> bool {
        let below = join(path, "");
        path.is_empty()
            || self
                .model
                .keys()
                .any(|other| other.starts_with(&below) && other != path)
    }

    fn step(&mut self) {
        match self.dice.index(22) {
            0..=6 => self.write(),
            7 => self.truncate(),
            8 => self.unlink(),
            9 => self.rename(),
            10 | 11 => self.clone_range(),
            12 => self.create(),
            13 | 14 => self.snapshot(),
            15 => self.delete(),
            16 => self.set_read_only(),
            17 => self.refused(),
            18 => self.fsync(),
            19 => self.move_subvolume(),
            20 => self.exchange_subvolumes(),
            _ if self.dice.index(4) == 0 => self.rig.commit(),
            _ => self.write(),
        }
    }

    fn write(&mut self) {
        let Some(path) = self.pick(|c| !c.is_read_only) else {
            return;
        };
        let name = format!("f{}", self.dice.index(24));
        let at = join(&path, &name);
        let content = self.model.get_mut(&path).expect("it was picked");
        if !content.files.contains_key(&name) {
            self.rig.create(&at).expect("a new file");
            content.files.insert(name.clone(), Vec::new());
        }
        let bytes = content.files.get_mut(&name).expect("it is there");
        let offset = self.dice.index(bytes.len() + 5000);
        let size = self.dice.index(3);
        let len = 1 + self.dice.index([300, 5000, 60_000][size]);
        let data = noise(&mut self.dice, len);
        let node = self.rig.node(&at).expect("it is there");
        let written = self
            .rig
            .fs
            .write(&ROOT, node, Handle::NONE, offset as u64, &data, WriteFlags::empty());
        assert_eq!(written, Ok(data.len()));
        let end = offset + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset..end].copy_from_slice(&data);
    }

    fn truncate(&mut self) {
        let Some((path, name)) = self.pick_file() else { return };
        let bytes = self
            .model
            .get_mut(&path)
            .and_then(|c| c.files.get_mut(&name))
            .expect("picked");
        let size = self.dice.index(bytes.len() + 3000);
        bytes.resize(size, 0);
        let set = SetAttr {
            size_bytes: Some(size as u64),
            ..SetAttr::default()
        };
        self.rig.setattr(&join(&path, &name), &set).expect("a truncation");
    }

    fn unlink(&mut self) {
        let Some((path, name)) = self.pick_file() else { return };
        self.rig.unlink(&join(&path, &name)).expect("a name goes");
        self.model.get_mut(&path).expect("picked").files.remove(&name);
    }

    fn rename(&mut self) {
        let Some((path, name)) = self.pick_file() else { return };
        let new = format!("f{}", self.dice.index(24));
        let flags = RenameFlags::empty();
        self.rig
            .rename(&join(&path, &name), &join(&path, &new), flags)
            .expect("a rename");
        let files = &mut self.model.get_mut(&path).expect("picked").files;
        let bytes = files.remove(&name).expect("picked");
        files.insert(new, bytes);
    }

    /// A whole file over another one, also of another subvolume.
    fn clone_range(&mut self) {
        let Some(from) = self.pick(|c| !c.files.is_empty()) else {
            return;
        };
        let Some((path, name)) = self.pick_file() else { return };
        let names: Vec<_> = self.model[&from].files.keys().cloned().collect();
        let source = names[self.dice.index(names.len())].clone();
        let bytes = self.model[&from].files[&source].clone();
        if (&from, &source) == (&path, &name) || bytes.is_empty() {
            return;
        }
        let target = self
            .model
            .get_mut(&path)
            .and_then(|c| c.files.get_mut(&name))
            .expect("picked");
        // A tail may be cloned to the end of a file alone.
        if target.len() > bytes.len() {
            return;
        }
        let (a, b) = (self.node(&join(&from, &source)), self.node(&join(&path, &name)));
        let cloned = self.rig.fs.clone_range(Some(&ROOT), (a, 0), (b, 0), 0);
        cloned.expect("a clone");
        let target = self
            .model
            .get_mut(&path)
            .and_then(|c| c.files.get_mut(&name))
            .expect("picked");
        *target = bytes;
    }

    fn new_path(&mut self) -> Option<(String, String)> {
        self.made += 1;
        let above = match self.dice.index(3) {
            0 => self.pick(|c| !c.is_read_only)?,
            _ => String::new(),
        };
        (above.matches('/').count() < 6).then(|| (above, format!("s{}", self.made)))
    }

    fn create(&mut self) {
        let Some((above, name)) = self.new_path() else { return };
        let made = self
            .rig
            .fs
            .subvolumes()
            .unwrap()
            .create(&ROOT, self.node(&above), name.as_bytes());
        made.expect("a subvolume");
        self.history.push(format!("create {above}/{name}"));
        self.model.insert(join(&above, &name), Content::default());
    }

    fn snapshot(&mut self) {
        let Some(source) = self.pick(|_| true) else { return };
        let Some((above, name)) = self.new_path() else { return };
        let is_read_only = self.dice.index(4) == 0;
        let (from, dir) = (self.node(&source), self.node(&above));
        let made = self
            .rig
            .fs
            .subvolumes()
            .unwrap()
            .snapshot(&ROOT, from, dir, name.as_bytes(), is_read_only);
        made.expect("a snapshot");
        self.history
            .push(format!("snapshot {source} {above}/{name} {is_read_only}"));
        let below = match source.as_str() {
            "" => String::new(),
            path => format!("{path}/"),
        };
        let mut content = self.model[&source].clone();
        content.is_read_only = is_read_only;
        let nested = self.model.keys().filter_map(|path| path.strip_prefix(&below));
        let nested = nested.filter(|rest| !rest.is_empty() && !rest.contains('/'));
        content.stand_ins.extend(nested.map(str::to_owned));
        self.model.insert(join(&above, &name), content);
    }

    fn delete(&mut self) {
        let Some(path) = self.pick(|_| true) else { return };
        let (above, name) = split(&path);
        let deleted = self
            .rig
            .fs
            .subvolumes()
            .unwrap()
            .delete(&ROOT, self.node(above), name.as_bytes());
        let is_above_read_only = self.model.get(above).is_some_and(|c| c.is_read_only);
        if path.is_empty() {
            assert_eq!(deleted, Err(Error::Invalid));
        } else if is_above_read_only {
            assert_eq!(deleted, Err(Error::ReadOnly));
        } else if self.has_nested(&path) {
            assert_eq!(deleted, Err(Error::NotEmpty), "{path} has others in it");
        } else {
            assert_eq!(deleted, Ok(()), "{path} goes");
            if self.drops_early {
                self.rig.fs.subvolumes().unwrap().drop_at_once();
            }
            self.history.push(format!("delete {path}"));
            self.model.remove(&path);
        }
    }

    fn move_subvolume(&mut self) {
        let Some(path) = self.pick(|_| true).filter(|path| !path.is_empty()) else {
            return;
        };
        let Some((to, name)) = self.new_path() else { return };
        let (above, _) = split(&path);
        let is_read_only = |path: &str| self.model[path].is_read_only;
        let wanted = if is_read_only(above) {
            Err(Error::ReadOnly)
        } else if is_inside(&to, &path) {
            Err(Error::Invalid)
        } else if is_read_only(&path) && above != to {
            // The way up from its root would change.
            Err(Error::ReadOnly)
        } else {
            Ok(())
        };
        let new = join(&to, &name);
        let moved = self.rig.rename(&path, &new, RenameFlags::empty());
        assert_eq!(moved, wanted, "{path} to {new}: {:?}", self.history);
        if moved.is_ok() {
            self.history.push(format!("move {path} {new}"));
            self.renamed(|other| is_inside(other, &path).then(|| format!("{new}{}", &other[path.len()..])));
        }
    }

    fn exchange_subvolumes(&mut self) {
        let [Some(a), Some(b)] = [(); 2].map(|()| self.pick(|c| !c.is_read_only)) else {
            return;
        };
        let is_fit = |path: &str| !path.is_empty() && !self.model[split(path).0].is_read_only;
        if !is_fit(&a) || !is_fit(&b) || a == b {
            return;
        }
        let exchanged = self.rig.rename(&a, &b, RenameFlags::EXCHANGE);
        if is_inside(&a, &b) || is_inside(&b, &a) {
            assert_eq!(exchanged, Err(Error::Invalid), "{a} and {b}: {:?}", self.history);
            return;
        }
        assert_eq!(exchanged, Ok(()), "{a} and {b}: {:?}", self.history);
        self.history.push(format!("exchange {a} {b}"));
        self.renamed(|other| {
            let [of_a, of_b] = [&a, &b].map(|path| is_inside(other, path));
            match (of_a, of_b) {
                (true, _) => Some(format!("{b}{}", &other[a.len()..])),
                (_, true) => Some(format!("{a}{}", &other[b.len()..])),
                _ => None,
            }
        });
    }

    /// Subvolumes have other paths now.
    fn renamed(&mut self, new: impl Fn(&str) -> Option<String>) {
        let model = std::mem::take(&mut self.model);
        self.model = model
            .into_iter()
            .map(|(path, content)| (new(&path).unwrap_or(path), content))
            .collect();
    }

    fn set_read_only(&mut self) {
        let Some(path) = self.pick(|_| true).filter(|path| !path.is_empty()) else {
            return;
        };
        let content = self.model.get_mut(&path).expect("picked");
        content.is_read_only = !content.is_read_only;
        let (node, is) = (self.rig.node(&path).expect("there"), content.is_read_only);
        self.rig
            .fs
            .subvolumes()
            .unwrap()
            .set_read_only(&ROOT, node, is)
            .expect("a flag");
        self.history.push(format!("read-only {path} {is}"));
    }

    /// What must not be possible.
    fn refused(&mut self) {
        if let Some(path) = self.pick(|c| c.is_read_only) {
            let made = self.rig.create(&join(&path, "new"));
            assert_eq!(
                made.err(),
                Some(Error::ReadOnly),
                "{path}: {:?} {:?}",
                self.history,
                listed(&self.rig)
            );
        }
        let Some((path, name)) = self.pick_file() else { return };
        let (file, dir) = (self.node(&join(&path, &name)), self.node(&path));
        let fs = &self.rig.fs;
        let by_name = |name: &str| fs.subvolumes().unwrap().create(&ROOT, dir, name.as_bytes());
        assert_eq!(by_name(&name), Err(Error::Exists));
        assert_eq!(by_name(&"x".repeat(256)), Err(Error::NameTooLong));
        assert_eq!(
            fs.subvolumes().unwrap().snapshot(&ROOT, file, dir, b"new", false),
            Err(Error::Invalid)
        );
        assert_eq!(
            fs.subvolumes().unwrap().delete(&ROOT, dir, name.as_bytes()),
            Err(Error::NotDirectory)
        );
        assert_eq!(
            fs.subvolumes().unwrap().delete(&ROOT, dir, b"none"),
            Err(Error::NotFound)
        );
    }

    fn fsync(&mut self) {
        let Some((path, name)) = self.pick_file() else { return };
        let node = self.node(&join(&path, &name));
        self.rig.fs.fsync(&ROOT, node, Handle::NONE, false).expect("an fsync");
    }

    /// Ends the mount; both checkers and the kernel judge, which then goes on by itself, and we
    /// after it.
    fn judge(self, when: &str) -> Self {
        let Self {
            drops_early,
            rig,
            mut model,
            mut dice,
            made,
            ..
        } = self;
        let dropped = || rig.fs.subvolumes().unwrap().all_deleted().unwrap().is_empty();
        if drops_early {
            let until = Instant::now() + Duration::from_secs(60);
            while !dropped() {
                assert!(Instant::now() < until, "{when}: deleted subvolumes stay");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let listed = listed(&rig);
        let mut wanted: Vec<_> = model.iter().map(|(p, c)| (p.clone(), c.is_read_only)).collect();
        wanted.sort();
        assert_eq!(listed, wanted, "{when}: the list of subvolumes");
        // One time in two it is as a power cut leaves it, behind a sync.
        let volume = if dice.index(2) == 0 {
            rig.commit();
            rig.crash()
        } else {
            rig.unmount()
        };
        volume.assert_clean();
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(volume.image(), OpenMode::ReadOnly).unwrap());
        let report = check(&[device], &CheckOptions::default());
        assert!(report.is_clean(), "{when}: {report}");
        let by_kernel = volume.with_mount(|root| {
            assert_same(&walk(root)?, &model, when);
            let writable: Vec<_> = model.iter_mut().filter(|(_, c)| !c.is_read_only).collect();
            for (path, content) in writable {
                let name = format!("f{}", dice.index(24));
                let data = noise(&mut dice, 9000);
                std::fs::write(root.join(path).join(&name), &data)?;
                content.files.insert(name, data);
            }
            if made % 2 == 0 {
                let name = format!("k{made}");
                let [from, to] = [root.to_owned(), root.join(&name)].map(|path| path.display().to_string());
                run("btrfs", &["-q", "subvolume", "snapshot", &from, &to])?;
                let mut content = model[""].clone();
                let nested = model.keys().filter(|path| !path.is_empty() && !path.contains('/'));
                content.stand_ins.extend(nested.cloned());
                model.insert(name, content);
            }
            Ok(())
        });
        by_kernel.unwrap_or_else(|error| panic!("{when}: {error}"));
        let rig = Rig::mounted(volume, MountOptions::default(), InitInfo::TRUSTED);
        if drops_early {
            rig.fs.set_caches(Arc::new(NothingHeld));
        }
        Self {
            drops_early,
            rig,
            model,
            dice,
            made,
            history: Vec::new(),
        }
    }
}

/// Path and flag of all subvolumes, by path.
fn listed(rig: &Rig) -> Vec<(String, bool)> {
    let (mut all, mut id) = (Vec::new(), 0);
    while let Some((info, path)) = rig.fs.subvolumes().unwrap().next(&ROOT, id).expect("a list") {
        id = info.id + 1;
        let path = String::from_utf8(path).expect("text");
        all.push((path, info.is_read_only));
    }
    all.sort();
    all
}

fn play(seed: u64, steps: usize) {
    let options = VolumeOptions {
        size_bytes: 1 << 30,
        node_bytes: Some(if seed.is_multiple_of(2) { 4096 } else { 16384 }),
        ..VolumeOptions::default()
    };
    let mut player = Player::new(seed, &options);
    for step in 1..=steps {
        player.step();
        // Not too many: each judge reads all of them.
        while player.model.len() > 40 {
            player.delete();
        }
        if step % 100 == 0 {
            player = player.judge(&format!("seed {seed}, step {step}"));
        }
    }
    player.rig.finish();
}

#[test]
fn random_snapshots_are_those_of_the_model_and_the_kernel_goes_on() {
    if !kernel_can() {
        return;
    }
    for seed in 0..2 {
        play(seed, 300);
    }
}

#[test]
#[ignore = "10,000 steps; run with --release -- --ignored"]
fn random_snapshots_for_long() {
    if !kernel_can() {
        return;
    }
    for seed in 100..104 {
        play(seed, 2500);
    }
}

//! Random scripts, in the words of the named cases.

use std::fmt;

use cowshed_device_sim::Rng;

use crate::op::Op;

/// The directory that a script plays in.
pub(super) const TOP: &str = "w";
/// Names in a directory: few, so that they are used again.
const NAMES: u64 = 5;
/// Operations after the setup.
const STEPS_MIN: u64 = 5;
const STEPS_MAX: u64 = 16;

/// A setup, which a sync ends, and operations with fsyncs among them.
#[derive(Clone, Debug)]
pub struct Script {
    setup: Vec<String>,
    steps: Vec<String>,
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; sync; {}", self.setup.join("; "), self.steps.join("; "))
    }
}

fn parsed(lines: &[String]) -> Vec<Op> {
    let parse = |line: &String| Op::parse(line).expect("lines that are made here can be read");
    lines.iter().map(parse).collect()
}

impl Script {
    /// A script from dice: the same dice, the same script.
    pub fn random(rng: &mut Rng) -> Script {
        let mut maker = Maker {
            rng,
            dirs: vec![TOP.to_owned()],
            files: Vec::new(),
            others: Vec::new(),
        };
        let setup = maker.setup();
        let steps = maker.steps();
        Script { setup, steps }
    }

    /// What is committed before the first step.
    pub fn setup(&self) -> Vec<Op> {
        parsed(&self.setup)
    }

    /// The operations whose crashes are compared.
    pub fn steps(&self) -> Vec<Op> {
        parsed(&self.steps)
    }

    /// Lines of setup and steps together, but for the first, which makes the directory of all.
    pub fn len(&self) -> usize {
        self.setup.len() + self.steps.len() - 1
    }

    /// There is nothing but the directory of all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The script without one of these lines.
    pub fn without(&self, line: usize) -> Script {
        let mut shorter = self.clone();
        match line.checked_sub(self.setup.len() - 1) {
            Some(step) => drop(shorter.steps.remove(step)),
            None => drop(shorter.setup.remove(line + 1)),
        }
        shorter
    }
}

/// Knows roughly what there is. An operation may fail all the same; then it does so on both sides.
struct Maker<'r> {
    rng: &'r mut Rng,
    dirs: Vec<String>,
    /// Names of regular files.
    files: Vec<String>,
    /// Names of what else there is.
    others: Vec<String>,
}

impl Maker<'_> {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    fn dir(&mut self) -> String {
        let at = self.rng.index(self.dirs.len());
        self.dirs[at].clone()
    }

    fn file(&mut self) -> Option<String> {
        if self.files.is_empty() {
            return None;
        }
        let at = self.rng.index(self.files.len());
        Some(self.files[at].clone())
    }

    /// A name that may be in use.
    fn place(&mut self) -> String {
        format!(
            "{}/{}",
            self.dir(),
            ["f", "g", "h", "i", "j"][self.below(NAMES) as usize]
        )
    }

    fn setup(&mut self) -> Vec<String> {
        let mut lines = vec![format!("mkdir {TOP}")];
        for name in ["a", "b", "a/c"].iter().take(1 + self.below(3) as usize) {
            let dir = format!("{TOP}/{name}");
            lines.push(format!("mkdir {dir}"));
            self.dirs.push(dir);
        }
        for _ in 0..2 + self.below(5) {
            lines.extend(self.make());
        }
        for _ in 0..self.below(4) {
            lines.extend(self.link());
            lines.extend(self.set_xattr());
        }
        lines
    }

    fn steps(&mut self) -> Vec<String> {
        let count = STEPS_MIN + self.below(STEPS_MAX - STEPS_MIN);
        let mut lines = Vec::new();
        while (lines.len() as u64) < count {
            lines.extend(self.step());
        }
        lines.extend(self.fsync());
        lines
    }

    fn step(&mut self) -> Option<String> {
        match self.below(100) {
            0..18 => self.fsync(),
            18..34 => self.link(),
            34..46 => self.rename(),
            46..50 => self.rename_dir(),
            50..53 => Some(format!("exchange {} {}", self.file()?, self.file()?)),
            53..54 => self.whiteout(),
            54..64 => self.unlink(),
            64..73 => self.make(),
            73..76 => self.mkdir(),
            76..78 => Some(format!("rmdir {}", self.dir())),
            78..86 => self.set_xattr(),
            86..91 => Some(format!("write {} 0 {}8k", self.file()?, self.letter())),
            91..93 => Some(format!(
                "truncate {} {}",
                self.file()?,
                ["0", "4k", "12k"][self.below(3) as usize]
            )),
            93..95 => Some(format!(
                "chmod {} {}",
                self.file()?,
                ["600", "640", "755"][self.below(3) as usize]
            )),
            95..96 => Some(format!("punch {} 0 4k", self.file()?)),
            96..97 => Some(format!("prealloc {} 8k 8k", self.file()?)),
            97..99 => self.special(),
            _ => Some("sync".to_owned()),
        }
    }

    fn letter(&mut self) -> char {
        char::from(b'a' + self.below(26) as u8)
    }

    fn fsync(&mut self) -> Option<String> {
        Some(match self.below(8) {
            0..2 => format!("fsync {}", self.dir()),
            2 => format!("fdatasync {}", self.file()?),
            _ => format!("fsync {}", self.file()?),
        })
    }

    fn make(&mut self) -> Option<String> {
        let path = self.place();
        self.files.push(path.clone());
        Some(match self.below(3) {
            0 => format!("create {path}"),
            _ => format!("write {path} 0 {}8k", self.letter()),
        })
    }

    fn special(&mut self) -> Option<String> {
        let path = self.place();
        self.others.push(path.clone());
        Some(match self.below(2) {
            0 => format!("symlink to-{} {path}", self.letter()),
            _ => format!("fifo {path}"),
        })
    }

    fn link(&mut self) -> Option<String> {
        let (from, to) = (self.file()?, self.place());
        self.files.push(to.clone());
        Some(format!("link {from} {to}"))
    }

    fn rename(&mut self) -> Option<String> {
        let at = self.rng.index(self.files.len().max(1));
        let from = self.files.get(at)?.clone();
        let to = self.place();
        self.files[at] = to.clone();
        Some(format!("rename {from} {to}"))
    }

    /// What stays under the old name cannot be opened.
    fn whiteout(&mut self) -> Option<String> {
        let at = self.rng.index(self.files.len().max(1));
        let from = self.files.get(at)?.clone();
        let to = self.place();
        self.files[at] = to.clone();
        self.files.retain(|path| *path != from);
        self.others.push(from.clone());
        Some(format!("whiteout {from} {to}"))
    }

    fn rename_dir(&mut self) -> Option<String> {
        let at = self.rng.index(self.dirs.len());
        let from = self.dirs.get(at).filter(|dir| *dir != TOP)?.clone();
        let to = format!("{}/{}", self.dir(), ["d", "e"][self.below(2) as usize]);
        let moved = |path: &String| match path.strip_prefix(&from) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => path.clone(),
        };
        if !to.starts_with(&from) {
            self.dirs = self.dirs.iter().map(moved).collect();
            self.files = self.files.iter().map(moved).collect();
        }
        Some(format!("rename {from} {to}"))
    }

    fn unlink(&mut self) -> Option<String> {
        let at = self.rng.index(self.files.len().max(1));
        self.files.get(at)?;
        if !self.others.is_empty() && self.rng.one_in(5) {
            return self.others.pop().map(|path| format!("unlink {path}"));
        }
        Some(format!("unlink {}", self.files.swap_remove(at)))
    }

    fn mkdir(&mut self) -> Option<String> {
        let dir = format!("{}/{}", self.dir(), ["d", "e"][self.below(2) as usize]);
        self.dirs.push(dir.clone());
        Some(format!("mkdir {dir}"))
    }

    fn set_xattr(&mut self) -> Option<String> {
        let (path, name) = (self.file()?, ["user.x", "user.y"][self.below(2) as usize]);
        Some(match self.below(3) {
            0 => format!("rmx {path} {name}"),
            _ => format!("setx {path} {name} {}", self.letter()),
        })
    }
}

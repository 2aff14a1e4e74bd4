//! A tree of text files from a seed: the same on every machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cowshed_device_sim::Rng;

use super::Sizes;

/// The word that `grep` looks for, in one of so many files.
pub const NEEDLE: &str = "needle";
const NEEDLE_EVERY: usize = 50;
const DIRS_OF_EACH: usize = 8;
/// What text is cut from.
const TEXT_BYTES: usize = 1 << 20;

pub struct Shape<'a> {
    pub seed: u64,
    pub files: usize,
    pub files_of_each_dir: usize,
    pub sizes: &'a Sizes,
    /// One file of so many gets a symbolic link beside it.
    pub link_every: usize,
}

/// Makes a directory of such files.
pub fn generate(top: &Path, shape: &Shape<'_>) -> Result<()> {
    let mut dice = Rng::new(shape.seed);
    let text = text(&mut dice);
    for n in 0..shape.files {
        let dir = top.join(dir_of(n / shape.files_of_each_dir));
        if n % shape.files_of_each_dir == 0 {
            fs::create_dir_all(&dir)?;
        }
        let name = format!("file-{n}.txt");
        let path = dir.join(&name);
        let bytes = content(&mut dice, &text, n, shape.sizes);
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        if n % shape.link_every == 0 {
            std::os::unix::fs::symlink(&name, dir.join(format!("link-{n}")))?;
        }
    }
    Ok(())
}

/// Gives another content to every n-th file, in place, and deletes the file after it.
pub fn change(top: &Path, shape: &Shape<'_>, every: usize) -> Result<()> {
    let mut dice = Rng::new(shape.seed + 1);
    let text = text(&mut dice);
    let path = |n: usize| {
        top.join(dir_of(n / shape.files_of_each_dir))
            .join(format!("file-{n}.txt"))
    };
    for n in (0..shape.files - 1).step_by(every) {
        let bytes = content(&mut dice, &text, n, shape.sizes);
        fs::write(path(n), bytes)?;
        fs::remove_file(path(n + 1))?;
    }
    Ok(())
}

/// A tree in which each directory has at most so many others.
fn dir_of(n: usize) -> PathBuf {
    match n {
        0 => PathBuf::from("dir-0"),
        _ => dir_of((n - 1) / DIRS_OF_EACH).join(format!("dir-{n}")),
    }
}

/// Between two neighbours of the distribution, evenly.
fn size(dice: &mut Rng, sizes: &Sizes) -> usize {
    let step = dice.index(sizes.len() - 1);
    let (low, high) = (sizes[step], sizes[step + 1]);
    (low + dice.below(high - low + 1)) as usize
}

fn content(dice: &mut Rng, text: &[u8], n: usize, sizes: &Sizes) -> Vec<u8> {
    let size = size(dice, sizes);
    let word = if n.is_multiple_of(NEEDLE_EVERY) {
        NEEDLE
    } else {
        "nothing"
    };
    let mut bytes = format!("file {n} has {word} {:x}\n", dice.next_u64()).into_bytes();
    while bytes.len() < size {
        let start = dice.index(text.len());
        let part = &text[start..text.len().min(start + size - bytes.len())];
        bytes.extend_from_slice(part);
    }
    bytes
}

fn text(dice: &mut Rng) -> Vec<u8> {
    let mut text = Vec::with_capacity(TEXT_BYTES);
    while text.len() < TEXT_BYTES {
        let (word, number) = (dice.below(5000), dice.below(1000));
        text.extend(format!("word{word} stands in line {number}, and so it goes on\n").into_bytes());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape<'static> = Shape {
        seed: 3,
        files: 120,
        files_of_each_dir: 10,
        sizes: &[10, 100, 5000],
        link_every: 20,
    };

    fn bytes_of(top: &Path, name: &str) -> Vec<u8> {
        fs::read(top.join(name)).unwrap()
    }

    #[test]
    fn same_seed_gives_the_same_tree() {
        let scratch = cowshed_harness::scratch_dir().unwrap();
        let [one, other] = ["one", "other"].map(|name| scratch.path().join(name));
        for top in [&one, &other] {
            generate(top, &SHAPE).unwrap();
        }
        for n in [0, 59, 119] {
            let name = dir_of(n / 10).join(format!("file-{n}.txt"));
            let name = name.to_str().unwrap();
            assert_eq!(bytes_of(&one, name), bytes_of(&other, name));
        }
        assert!(bytes_of(&one, "dir-0/link-0").starts_with(b"file 0 has needle"));
        let before = bytes_of(&one, "dir-0/file-0.txt");
        change(&one, &SHAPE, 4).unwrap();
        assert_ne!(bytes_of(&one, "dir-0/file-0.txt"), before);
        assert!(!one.join("dir-0/file-1.txt").exists() && one.join("dir-0/file-2.txt").exists());
    }

    #[test]
    fn directories_are_a_tree() {
        assert_eq!(dir_of(9), Path::new("dir-0/dir-1/dir-9"));
        assert_eq!(dir_of(8), Path::new("dir-0/dir-8"));
    }

    #[test]
    fn sizes_are_within_the_distribution() {
        let mut dice = Rng::new(1);
        assert!((0..1000).all(|_| (5..=20).contains(&size(&mut dice, &[5, 10, 20]))));
    }
}

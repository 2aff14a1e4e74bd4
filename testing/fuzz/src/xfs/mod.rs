//! Damaged volumes of XFS: for the checker, log recovery and the engine.
//!
//! The sound volumes lie in `corpus/`, so that a case is the same on every machine. Their files are
//! zeros: contents have no checksums.

mod damage;
mod exercise;
mod pieces;

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cowshed_device::MemDevice;
use cowshed_device_sim::Rng;

use crate::exercise::Outcome;
use crate::{Cases, Image, pack};

pub use damage::Damage;
pub use pieces::{Piece, metadata_blocks, pieces};

/// A sound volume, or one with a dirty log.
pub struct Base {
    pub name: &'static str,
    pub device: MemDevice,
    /// Its metadata, a list for each kind.
    pub kinds: Vec<Vec<Piece>>,
}

const CORPUS: [(&str, &[u8]); 5] = [
    ("xfs-4k", include_bytes!("../../corpus/xfs-4k.pack")),
    ("xfs-1k", include_bytes!("../../corpus/xfs-1k.pack")),
    ("xfs-64k", include_bytes!("../../corpus/xfs-64k.pack")),
    ("xfs-v4", include_bytes!("../../corpus/xfs-v4.pack")),
    ("xfs-log", include_bytes!("../../corpus/xfs-log.pack")),
];

/// All of them.
pub fn bases() -> Result<Vec<Base>> {
    CORPUS.iter().map(|(name, packed)| base(name, packed)).collect()
}

fn base(name: &'static str, packed: &[u8]) -> Result<Base> {
    let mut devices = pack::unpack(packed).context(name)?;
    ensure!(devices.len() == 1, "{name}: one device");
    let device = devices.remove(0);
    let kinds = pieces(&device).context(name)?;
    Ok(Base { name, device, kinds })
}

impl Cases for [Base] {
    fn image(&self, case: u64) -> (Image, Rng) {
        let mut rng = Rng::new(case);
        let base = &self[rng.index(self.len())];
        let device = base.device.snapshot();
        let damage = Damage::make(&device, &base.kinds, &mut rng);
        let description = format!("{}: {}", base.name, damage.done.join("; "));
        let cut = damage.cut_at.map(|at| (0, at));
        (Image::new(vec![Arc::new(device)], cut, description), rng)
    }

    fn exercise(&self, image: &Image, rng: Rng) -> Result<Outcome, String> {
        exercise::run(image, rng)
    }
}

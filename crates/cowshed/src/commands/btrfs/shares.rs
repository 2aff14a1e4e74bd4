//! `cowshed du --subvolumes`: what each subvolume of a volume refers to, and what of it no other
//! does.

use std::ffi::OsStr;
use std::io::{IsTerminal as _, Write as _, stdout};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use cowshed_vfs::SubvolumeUsage;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::place::{Images, Place};
use super::roots::{Roots, TOP_LEVEL};
use super::say::reason;
use super::table::Table;
use super::units::Style;
use crate::people::{bytes_json, printable};

pub fn run(paths: &[PathBuf], is_json: bool, is_human: bool) -> Result<u8> {
    let [path] = paths else {
        bail!("--subvolumes shows all of a volume: one path, please");
    };
    let mut images = Images::to_read();
    let place = match Images::is_device(path) {
        true => images.top_of(path)?,
        false => images.directory(path)?,
    };
    let all = match place.usage(bar(path)) {
        Ok(all) => all,
        Err(error) if matches!(place, Place::Kernel(_)) => bail!(
            "{}: {}; the kernel counts this on its own mounts: btrfs quota enable, btrfs qgroup show",
            path.display(),
            reason(&error)
        ),
        Err(error) => bail!("{}: {}", path.display(), reason(&error)),
    };
    let roots = Roots::load(&place)?;
    let named = all.iter().filter_map(|usage| {
        // One that was deleted meanwhile has no path.
        let root = roots.find(usage.id).filter(|root| !root.is_deleted())?;
        let path = match root.id {
            TOP_LEVEL => Ok(Vec::new()),
            _ => roots.path(root, 0),
        };
        Some(path.map(|path| (usage, path)))
    });
    let named = named.collect::<std::io::Result<Vec<_>>>()?;
    let text = match (is_json, is_human) {
        (true, _) => {
            let all: Vec<_> = named.iter().map(|(usage, path)| json_of(usage, path)).collect();
            format!("{:#}\n", Value::from(all))
        }
        (_, true) => table(&named, Style::default()),
        _ => table(&named, Style::RAW),
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(0)
}

/// Shows progress on a terminal.
fn bar(path: &Path) -> impl FnMut(u64, u64) + use<> {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(0).with_style(style()).with_message(printable(path)),
        false => ProgressBar::hidden(),
    };
    move |done, known| {
        bar.set_length(known);
        bar.set_position(done);
        if done >= known {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    let template = "{bar:30} {pos}/{len} blocks {msg}";
    // The template is ours and right; were it not, the default would do.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn table(all: &[(&SubvolumeUsage, Vec<u8>)], style: Style) -> String {
    let mut table = Table::new(6);
    table.row(
        ["ID", "Data", "Exclusive", "Metadata", "Exclusive", "Path"]
            .map(str::to_owned)
            .into(),
    );
    for (usage, path) in all {
        let path = match usage.id {
            TOP_LEVEL => "<FS_TREE>".to_owned(),
            _ => printable(OsStr::from_bytes(path)),
        };
        table.row(vec![
            usage.id.to_string(),
            style.text(usage.data_bytes),
            style.text(usage.data_exclusive_bytes),
            style.text(usage.metadata_bytes),
            style.text(usage.metadata_exclusive_bytes),
            path,
        ]);
    }
    table.text(&[5])
}

fn json_of(usage: &SubvolumeUsage, path: &[u8]) -> Value {
    json!({
        "id": usage.id,
        "path": bytes_json(path),
        "data_bytes": usage.data_bytes,
        "data_exclusive_bytes": usage.data_exclusive_bytes,
        "data_shared_bytes": usage.data_bytes - usage.data_exclusive_bytes,
        "metadata_bytes": usage.metadata_bytes,
        "metadata_exclusive_bytes": usage.metadata_exclusive_bytes,
        "metadata_shared_bytes": usage.metadata_bytes - usage.metadata_exclusive_bytes,
    })
}

//! `filesystem usage`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use btrfs_format::features::block_group::{
    DATA, METADATA, PROFILE_MASK, RAID0, RAID5, RAID6, RAID10, SYSTEM, TYPE_MASK,
};
use clap::Args;
use cowshed_vfs::DeviceInfo;

use super::super::place::{Images, Place};
use super::super::say::{reason, warning};
use super::super::space::{Chunk, Space, chunks, spaces, types_with_several_profiles, warn_of_profiles};
use super::super::table::Table;
use super::super::units::{Style, Units};
use super::super::volume::size_of_device;

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct UsageArgs {
    #[command(flatten)]
    units: Units,
    /// Devices as lines of a table
    #[arg(short = 'T')]
    table: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Directories on volumes
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// Below this much, what no chunk has is not counted as free.
const UNALLOCATED_BYTES_MIN: u64 = 16 << 20;

/// Profiles whose block groups are spread over a number of stripes.
const STRIPED: u64 = RAID0 | RAID10 | RAID5 | RAID6;

pub fn run(args: &UsageArgs) -> Result<u8> {
    let mut images = Images::to_read();
    for (n, path) in args.paths.iter().enumerate() {
        let place = images.directory(path)?;
        let usage = Usage::load(&place)?;
        let style = args.units.style();
        let mut text = usage.overall(style);
        match args.table {
            true => text += &usage.table(style),
            false => usage.linear(style, &mut text),
        }
        if n + 1 < args.paths.len() {
            text.push('\n');
        }
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    Ok(0)
}

pub struct Usage {
    /// Of each type and profile, in the order in which they are shown.
    spaces: Vec<Space>,
    reserve: Space,
    devices: Vec<DeviceInfo>,
    /// Bytes on each device, by flags and the number of stripes that data is spread over, 1 where
    /// it is not. Empty where the chunks cannot be read.
    on_devices: BTreeMap<(u64, u64, usize), u64>,
    available_bytes: u64,
}

impl Usage {
    pub fn load(place: &Place) -> Result<Usage> {
        let failed = |error| anyhow!("cannot get space info: {}", reason(&error));
        let all = spaces(place).map_err(failed)?;
        let reserve = all.iter().copied().find(|space| space.is_global_reserve());
        let mut spaces: Vec<Space> = all.into_iter().filter(|space| !space.is_global_reserve()).collect();
        spaces.sort_by_key(|space| (rank(space.flags), space.flags));
        let mut on_devices = BTreeMap::new();
        match chunks(place) {
            Ok(chunks) => chunks.iter().for_each(|chunk| add(&mut on_devices, chunk)),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                warning("cannot read detailed chunk info, per-device usage will not be shown, run as root");
            }
            Err(error) => return Err(failed(error)),
        }
        Ok(Usage {
            spaces,
            reserve: reserve.unwrap_or_default(),
            devices: place.devices().map_err(failed)?,
            on_devices,
            available_bytes: place.available_bytes().map_err(failed)?,
        })
    }

    /// Sum of a type: bytes of the volume, bytes used of it, and both on devices.
    fn sum(&self, kind: u64) -> [u64; 4] {
        let mut sums = [0; 4];
        for space in self.spaces.iter().filter(|space| space.has(kind)) {
            let ratio = space.ratio();
            let one = [
                space.total_bytes,
                space.used_bytes,
                space.total_bytes * ratio,
                space.used_bytes * ratio,
            ];
            sums.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
        }
        sums
    }

    fn size_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.total_bytes).sum()
    }

    fn slack_bytes(&self) -> u64 {
        self.devices.iter().map(slack_bytes).sum()
    }

    fn overall(&self, style: Style) -> String {
        let is_mixed = self
            .spaces
            .iter()
            .any(|space| space.flags & TYPE_MASK == DATA | METADATA);
        let [.., total, used] = self.sum(TYPE_MASK);
        let [data, data_used, data_total, data_total_used] = self.sum(DATA);
        let [metadata, _, metadata_total, _] = match is_mixed {
            true => self.sum(DATA),
            false => self.sum(METADATA),
        };
        let size = self.size_bytes();
        let missing = self.devices.iter().filter(|device| device.name.is_none());
        let missing: u64 = missing.map(|device| device.total_bytes).sum();
        let unallocated = size.saturating_sub(total);
        let ratio = |total: u64, of: u64| if of == 0 { 1.0 } else { total as f64 / of as f64 };
        let data_ratio = ratio(data_total, data);
        let metadata_ratio = ratio(metadata_total, metadata);
        let ratio_max = self.spaces.iter().map(|space| space.ratio()).max().unwrap_or(1) as f64;
        let in_chunks = match data {
            0 => 0,
            _ => ((data_total - data_total_used) as f64 / data_ratio) as u64,
        };
        debug_assert!(data >= data_used, "a block group has no more than its size");
        let (mut free, mut free_min) = (in_chunks, in_chunks);
        if unallocated > UNALLOCATED_BYTES_MIN {
            free += (unallocated as f64 / data_ratio) as u64;
            free_min += (unallocated as f64 / ratio_max) as u64;
        }
        if is_mixed {
            // What is reserved for metadata lies in the same groups.
            let reserved = self.reserve.total_bytes;
            (free, free_min) = (free.saturating_sub(reserved), free_min.saturating_sub(reserved));
        }
        let width = if style.is_default() { 10 } else { 18 };
        let mut text = String::from("Overall:\n");
        let mut line = |what: &str, value: String, more: String| {
            // Writing to a string cannot fail.
            let tabs = if what.len() < 11 { "\t\t\t" } else { "\t\t" };
            let tabs = if what.len() > 19 { "\t" } else { tabs };
            let _ = writeln!(text, "    {what}:{tabs}{value:>width$}{more}");
        };
        let size_line = |bytes| style.text(bytes);
        line("Device size", size_line(size), String::new());
        line("Device allocated", size_line(total), String::new());
        line("Device unallocated", size_line(unallocated), String::new());
        line("Device missing", size_line(missing), String::new());
        line("Device slack", size_line(self.slack_bytes()), String::new());
        line("Used", size_line(used), String::new());
        line(
            "Free (estimated)",
            size_line(free),
            format!("\t(min: {})", style.text(free_min)),
        );
        line("Free (statfs, df)", size_line(self.available_bytes), String::new());
        line("Data ratio", format!("{data_ratio:.2}"), String::new());
        line("Metadata ratio", format!("{metadata_ratio:.2}"), String::new());
        let reserve_used = format!("\t(used: {})", style.text(self.reserve.used_bytes));
        line("Global reserve", size_line(self.reserve.total_bytes), reserve_used);
        let several = types_with_several_profiles(&self.spaces).into_iter();
        let several: Vec<_> = several.map(|(_, name)| name.to_lowercase()).collect();
        let (answer, which) = match several.is_empty() {
            true => ("no", String::new()),
            false => ("yes", format!("\t({})", several.join(", "))),
        };
        line("Multiple profiles", answer.to_owned(), which);
        text.push('\n');
        text
    }

    /// Warns where a type has block groups of several profiles.
    pub fn warn_of_profiles(&self) {
        warn_of_profiles(&self.spaces);
    }

    /// Bytes of a type and profile on a device, by the number of stripes.
    fn by_stripes(&self, id: u64, flags: u64) -> impl Iterator<Item = (usize, u64)> {
        let flags = flags & (TYPE_MASK | PROFILE_MASK);
        let all = self.on_devices.range((id, flags, 0)..=(id, flags, usize::MAX));
        all.map(|((_, _, stripes), bytes)| (*stripes, *bytes))
    }

    fn on_device(&self, id: u64, flags: u64) -> u64 {
        self.by_stripes(id, flags).map(|(_, bytes)| bytes).sum()
    }

    fn unallocated_bytes(&self, device: &DeviceInfo) -> u64 {
        let used = self.on_devices.iter().filter(|((id, ..), _)| *id == device.id);
        device.total_bytes.saturating_sub(used.map(|(_, bytes)| bytes).sum())
    }

    fn linear(&self, style: Style, text: &mut String) {
        let device_line = |text: &mut String, device: &DeviceInfo, bytes: u64| {
            let _ = writeln!(text, "   {}\t{:>10}", name(device), style.text(bytes));
        };
        for space in &self.spaces {
            let percent = match space.total_bytes {
                0 => 0.0,
                total => 100.0 * space.used_bytes as f64 / total as f64,
            };
            let _ = writeln!(
                text,
                "{},{}: Size:{}, Used:{} ({percent:.2}%)",
                space.type_name(),
                space.profile_name(),
                style.text(space.total_bytes),
                style.text(space.used_bytes),
            );
            for device in &self.devices {
                match self.on_device(device.id, space.flags) {
                    0 => {}
                    bytes => device_line(text, device, bytes),
                }
            }
            text.push('\n');
        }
        if !self.on_devices.is_empty() {
            text.push_str("Unallocated:\n");
            for device in &self.devices {
                device_line(text, device, self.unallocated_bytes(device));
            }
        }
    }

    /// What `device usage` shows.
    pub fn by_device(&self, style: Style) -> String {
        let mut text = String::new();
        for device in &self.devices {
            let _ = writeln!(text, "{}, ID: {}", name(device), device.id);
            let mut line = |what: &str, bytes: u64| {
                let _ = writeln!(text, "   {:<22}{:>10}", format!("{what}:"), style.text(bytes));
            };
            // btrfs(8) asks the device, not the volume.
            let size = if device.name.is_some() { device.total_bytes } else { 0 };
            line("Device size", size);
            line("Device slack", slack_bytes(device));
            for space in &self.spaces {
                let what = format!("{},{}", space.type_name(), space.profile_name());
                for (stripes, bytes) in self.by_stripes(device.id, space.flags) {
                    match stripes {
                        1 => line(&what, bytes),
                        _ => line(&format!("{what}/{stripes}"), bytes),
                    }
                }
            }
            line("Unallocated", self.unallocated_bytes(device));
            text.push('\n');
        }
        text
    }

    fn table(&self, style: Style) -> String {
        let mut types = vec![String::new(), String::new()];
        let mut names = vec!["Id".to_owned(), "Path".to_owned()];
        for space in &self.spaces {
            types.push(space.type_name().to_owned());
            names.push(space.profile_name().to_owned());
        }
        types.resize(types.len() + 3, String::new());
        names.extend(["Unallocated", "Total", "Slack"].map(str::to_owned));
        let mut table = Table::new(names.len());
        table.heading(types);
        table.heading(names);
        table.rule();
        let or_dash = |bytes: u64| if bytes == 0 { "-".to_owned() } else { style.text(bytes) };
        for device in &self.devices {
            let mut row = vec![device.id.to_string(), name(device)];
            row.extend(
                self.spaces
                    .iter()
                    .map(|space| or_dash(self.on_device(device.id, space.flags))),
            );
            row.push(style.text(self.unallocated_bytes(device)));
            row.push(style.text(device.total_bytes));
            row.push(or_dash(slack_bytes(device)));
            table.row(row);
        }
        table.rule();
        let mut total = vec![String::new(), "Total".to_owned()];
        total.extend(self.spaces.iter().map(|space| style.text(space.total_bytes)));
        let unallocated = self.devices.iter().map(|device| self.unallocated_bytes(device)).sum();
        total.extend([unallocated, self.size_bytes(), self.slack_bytes()].map(|bytes| style.text(bytes)));
        table.row(total);
        let mut used = vec![String::new(), "Used".to_owned()];
        used.extend(self.spaces.iter().map(|space| style.text(space.used_bytes)));
        used.resize(used.len() + 3, String::new());
        table.row(used);
        table.text(&[1])
    }
}

/// Order in which types are shown.
fn rank(flags: u64) -> u8 {
    match flags & TYPE_MASK {
        METADATA => 1,
        SYSTEM => 2,
        _ => 0,
    }
}

fn add(sums: &mut BTreeMap<(u64, u64, usize), u64>, chunk: &Chunk) {
    let flags = chunk.flags & (TYPE_MASK | PROFILE_MASK);
    let stripes = match flags & STRIPED {
        0 => 1,
        _ => chunk.stripes.len(),
    };
    for (device, bytes) in &chunk.stripes {
        *sums.entry((*device, flags, stripes)).or_default() += bytes;
    }
}

fn name(device: &DeviceInfo) -> String {
    device.name.clone().unwrap_or_else(|| "missing".to_owned())
}

fn slack_bytes(device: &DeviceInfo) -> u64 {
    let size = device
        .name
        .as_ref()
        .and_then(|name| size_of_device(Path::new(name)).ok());
    size.map_or(0, |size| size.saturating_sub(device.total_bytes))
}

//! `filesystem df`.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;

use super::super::place::Images;
use super::super::say::{Voice, json_object, reason};
use super::super::space::{Space, spaces, warn_of_profiles};
use super::super::units::Units;

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct DfArgs {
    #[command(flatten)]
    units: Units,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// A directory on the volume
    path: PathBuf,
}

pub fn run(args: &DfArgs, voice: Voice) -> Result<u8> {
    let mut images = Images::to_read();
    let place = images.directory(&args.path)?;
    let spaces = spaces(&place).map_err(|error| anyhow!("get_df failed: {}", reason(&error)))?;
    let text: String = match voice.is_json {
        true => json_object(
            "filesystem-df",
            &spaces.iter().map(|space| json(*space)).collect::<Vec<_>>(),
        ),
        false => {
            let style = args.units.style();
            let line = |space: &Space| {
                let (kind, profile) = (space.type_name(), space.profile_name());
                let (total, used) = (style.text(space.total_bytes), style.text(space.used_bytes));
                format!("{kind}, {profile}: total={total}, used={used}\n")
            };
            spaces.iter().map(line).collect()
        }
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    warn_of_profiles(&spaces);
    Ok(0)
}

fn json(space: Space) -> Vec<(&'static str, String)> {
    vec![
        ("bg-type", space.type_name().to_owned()),
        ("bg-profile", space.profile_name().to_owned()),
        ("total", space.total_bytes.to_string()),
        ("used", space.used_bytes.to_string()),
    ]
}

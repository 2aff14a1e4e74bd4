//! A file that says what to build: the long options by their names, with the values that they have
//! on the command line; an array gives an option several times.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Parser;
use toml::Value;

use super::args::BuildArgs;

/// Options whose values are files of the host: relative ones are beside the specification.
const PATHS: [&str; 4] = ["out", "from", "map-users", "file-contexts"];
/// What is no file although it stands in the place of one.
const NO_PATHS: [&str; 2] = ["-", "subuid"];

#[derive(Parser, Debug)]
#[command(name = "cowshed build", args_override_self = true)]
struct Whole {
    #[command(flatten)]
    args: BuildArgs,
}

/// What the specification and then the command line say.
pub(super) fn read(path: &Path, command_line: impl Iterator<Item = OsString>) -> Result<BuildArgs> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| shown.to_string())?;
    let table: toml::Table = text.parse().with_context(|| shown.to_string())?;
    let mut words = vec![OsString::from("cowshed build")];
    for (key, value) in &table {
        if key == "spec" {
            bail!("{shown}: a specification cannot name another one");
        }
        add(&mut words, path, key, value).with_context(|| shown.to_string())?;
    }
    words.extend(command_line);
    let whole = Whole::try_parse_from(words).map_err(|error| {
        let said = error.to_string();
        let first = said.lines().next().unwrap_or_default();
        anyhow::anyhow!("{shown}: {}", first.trim_start_matches("error: "))
    })?;
    Ok(whole.args)
}

fn add(words: &mut Vec<OsString>, spec: &Path, key: &str, value: &Value) -> Result<()> {
    let value = match value {
        Value::Array(values) => return values.iter().try_for_each(|value| add(words, spec, key, value)),
        Value::Boolean(false) => return Ok(()),
        Value::Boolean(true) => {
            words.push(format!("--{key}").into());
            return Ok(());
        }
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        other => bail!("'{key}': {} is no value of an option", other.type_str()),
    };
    let is_path = PATHS.contains(&key) && !NO_PATHS.contains(&value.as_str());
    let value: OsString = match spec.parent() {
        Some(dir) if is_path => match value.split_once('=') {
            // A source for a directory of the image.
            Some((into, path)) if key == "from" && !dir.join(&value).exists() => {
                let mut word = OsString::from(format!("{into}="));
                word.push(dir.join(path));
                word
            }
            _ => dir.join(value).into(),
        },
        _ => value.into(),
    };
    if key == "out" {
        words.push(value);
        return Ok(());
    }
    let mut word = OsString::from(format!("--{key}="));
    word.push(value);
    words.push(word);
    Ok(())
}

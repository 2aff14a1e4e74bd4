//! Messages of the `btrfs` command, as btrfs(8) words them.

use std::io;

/// The version of btrfs(8) whose output this is.
pub const LIKE_VERSION: &str = "btrfs-progs v6.2";

/// What the options before the command say about its output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Voice {
    /// Only errors.
    pub is_quiet: bool,
    /// More than else.
    pub is_verbose: bool,
    /// JSON instead of text.
    pub is_json: bool,
    /// Nothing is changed.
    pub is_dry_run: bool,
}

impl Voice {
    /// A line that `-q` leaves out.
    pub fn line(self, text: impl std::fmt::Display) {
        use io::Write as _;
        if !self.is_quiet {
            // The reader of the output may be gone; the work is done all the same.
            let _ = writeln!(io::stdout(), "{text}");
        }
    }
}

/// A line of output. Errors: the reader of the output is gone.
pub fn print(text: impl std::fmt::Display) -> io::Result<()> {
    use io::Write as _;
    writeln!(io::stdout(), "{text}")
}

pub fn error(text: impl std::fmt::Display) {
    crate::people::warn(format_args!("ERROR: {text}"));
}

pub fn warning(text: impl std::fmt::Display) {
    crate::people::warn(format_args!("WARNING: {text}"));
}

/// The text of an error of a call, without its number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => text.trim_end_matches(&format!(" (os error {code})")).to_owned(),
        None => text,
    }
}

/// What btrfs(8) has and this command does not: says so. The exit code.
pub fn refuse(what: &str) -> anyhow::Result<u8> {
    crate::people::warn(format_args!("btrfs: '{what}' is not implemented yet"));
    Ok(1)
}

/// A number as an argument has it.
pub fn number(text: &str) -> anyhow::Result<u64> {
    let digits = text.strip_prefix("0x");
    let parsed = digits.map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok());
    parsed.ok_or_else(|| anyhow::anyhow!("{text} is not a valid numeric value"))
}

/// A uuid; a dash for none.
pub fn uuid(uuid: [u8; 16]) -> String {
    match uuid == [0; 16] {
        true => "-".to_owned(),
        false => uuid::Uuid::from_bytes(uuid).to_string(),
    }
}

/// The JSON of a command: a list of objects whose values are strings.
pub fn json_object(name: &str, all: &[Vec<(&'static str, String)>]) -> String {
    let object = |fields: &Vec<(&'static str, String)>| {
        let line =
            |(key, value): &(&str, String)| format!("      \"{key}\": {}", serde_json::Value::from(value.as_str()));
        format!(
            "    {{\n{}\n    }}",
            fields.iter().map(line).collect::<Vec<_>>().join(",\n")
        )
    };
    let objects: Vec<_> = all.iter().map(object).collect();
    format!(
        "{{\n  \"__header\": {{\n    \"version\": \"1\"\n  }},\n  \"{name}\": [\n{}\n  ]\n}}\n",
        objects.join(",\n")
    )
}

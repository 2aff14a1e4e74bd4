//! Sizes as btrfs(8) prints them, and the options that choose the unit.

use clap::Args;

/// The options as `df` and `usage` have them: letters, too.
#[derive(Args, Clone, Copy, Debug)]
pub struct Units {
    /// Bytes
    #[arg(short = 'b', long, overrides_with_all = ["human_readable", "si_human", "iec", "si"])]
    raw: bool,
    /// Human friendly, by 1024: the default
    #[arg(short = 'h', long, overrides_with_all = ["raw", "si_human", "si", "kbytes", "mbytes", "gbytes", "tbytes"])]
    human_readable: bool,
    /// Human friendly, by 1000
    #[arg(short = 'H', overrides_with_all = ["raw", "human_readable", "iec"])]
    si_human: bool,
    /// By 1024: KiB, MiB
    #[arg(long, overrides_with_all = ["raw", "si_human", "si"])]
    iec: bool,
    /// By 1000: kB, MB
    #[arg(long, overrides_with_all = ["raw", "human_readable", "iec"])]
    si: bool,
    /// In KiB, or kB
    #[arg(short = 'k', long, overrides_with_all = ["mbytes", "gbytes", "tbytes"])]
    kbytes: bool,
    /// In MiB, or MB
    #[arg(short = 'm', long, overrides_with_all = ["kbytes", "gbytes", "tbytes"])]
    mbytes: bool,
    /// In GiB, or GB
    #[arg(short = 'g', long, overrides_with_all = ["kbytes", "mbytes", "tbytes"])]
    gbytes: bool,
    /// In TiB, or TB
    #[arg(short = 't', long, overrides_with_all = ["kbytes", "mbytes", "gbytes"])]
    tbytes: bool,
}

/// The options as `du` and `show` have them: words alone.
#[derive(Args, Clone, Copy, Debug)]
pub struct LongUnits {
    /// Bytes
    #[arg(long, overrides_with_all = ["human_readable", "iec", "si"])]
    raw: bool,
    /// Human friendly, by 1024: the default
    #[arg(long, overrides_with_all = ["raw", "si", "kbytes", "mbytes", "gbytes", "tbytes"])]
    human_readable: bool,
    /// By 1024: KiB, MiB
    #[arg(long, overrides_with_all = ["raw", "si"])]
    iec: bool,
    /// By 1000: kB, MB
    #[arg(long, overrides_with_all = ["raw", "human_readable", "iec"])]
    si: bool,
    /// In KiB, or kB
    #[arg(long, overrides_with_all = ["mbytes", "gbytes", "tbytes"])]
    kbytes: bool,
    /// In MiB, or MB
    #[arg(long, overrides_with_all = ["kbytes", "gbytes", "tbytes"])]
    mbytes: bool,
    /// In GiB, or GB
    #[arg(long, overrides_with_all = ["kbytes", "mbytes", "tbytes"])]
    gbytes: bool,
    /// In TiB, or TB
    #[arg(long, overrides_with_all = ["kbytes", "mbytes", "gbytes"])]
    tbytes: bool,
}

/// How sizes are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    is_raw: bool,
    is_decimal: bool,
    /// Divisions by the base; `None`: as many as leave less than the base.
    divisions: Option<usize>,
}

const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const DECIMAL: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

impl Units {
    pub fn style(&self) -> Style {
        Style {
            is_raw: self.raw,
            is_decimal: self.si || self.si_human,
            divisions: divisions([self.kbytes, self.mbytes, self.gbytes, self.tbytes]),
        }
    }
}

impl LongUnits {
    pub fn style(&self) -> Style {
        Style {
            is_raw: self.raw,
            is_decimal: self.si,
            divisions: divisions([self.kbytes, self.mbytes, self.gbytes, self.tbytes]),
        }
    }
}

fn divisions(chosen: [bool; 4]) -> Option<usize> {
    chosen.iter().position(|is_chosen| *is_chosen).map(|index| index + 1)
}

impl Style {
    /// Bytes alone.
    pub const RAW: Style = Style {
        is_raw: true,
        is_decimal: false,
        divisions: None,
    };

    pub fn is_default(self) -> bool {
        self == Style::default()
    }

    /// The text of a size. The last digits are those of single precision, as in btrfs(8).
    pub fn text(self, bytes: u64) -> String {
        if self.is_raw {
            return bytes.to_string();
        }
        let (base, names) = match self.is_decimal {
            true => (1000_u64, &DECIMAL),
            false => (1024, &BINARY),
        };
        let (value, divisions) = match self.divisions {
            Some(divisions) => {
                let unit = (0..divisions).fold(1_u64, |unit, _| unit * base);
                (bytes as f32 / unit as f32, divisions)
            }
            None => {
                let (mut last, mut size, mut divisions) = (bytes, bytes, 0);
                while size >= base {
                    (last, size) = (size, size / base);
                    divisions += 1;
                }
                let value = if divisions == 0 {
                    bytes as f32
                } else {
                    last as f32 / base as f32
                };
                (value, divisions)
            }
        };
        format!("{value:.2}{}", names[divisions.min(names.len() - 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_as_by_the_stock_command() {
        let human = Style::default();
        let shown = [0, 1023, 1024, 180_224, 1_630_208, 536_870_912, u64::MAX].map(|bytes| human.text(bytes));
        let expected = [
            "0.00B",
            "1023.00B",
            "1.00KiB",
            "176.00KiB",
            "1.55MiB",
            "512.00MiB",
            "16.00EiB",
        ];
        assert_eq!(shown, expected);
        let decimal = Style {
            is_decimal: true,
            ..human
        };
        assert_eq!(decimal.text(1_630_208), "1.63MB");
        let kilo = Style {
            divisions: Some(1),
            ..decimal
        };
        assert_eq!(kilo.text(536_870_912), "536870.94kB");
        assert_eq!(Style::RAW.text(42), "42");
    }
}

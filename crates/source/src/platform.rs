//! Machines that container images are made for.

/// `os/architecture`, perhaps with a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    pub(crate) os: String,
    pub(crate) architecture: String,
    pub(crate) variant: Option<String>,
}

impl Default for Platform {
    /// That of this machine, with Linux.
    fn default() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self {
            os: "linux".into(),
            architecture: architecture.into(),
            variant: None,
        }
    }
}

impl std::str::FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split('/').map(str::to_owned);
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some(os), Some(architecture), variant, None) if !os.is_empty() && !architecture.is_empty() => Ok(Self {
                os,
                architecture,
                variant,
            }),
            _ => Err(format!("{text:?} is not OS/ARCHITECTURE[/VARIANT]")),
        }
    }
}

//! What may be done with a volume: the one place that knows which features are supported.

use crate::features::{features2, flag_names, incompat, log_incompat, ro_compat, super_flags, version};
use crate::sb::Superblock;

/// Features by the format's names, joined by commas; unnamed bits as numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported feature: {name}")]
pub struct UnsupportedFeature {
    /// The names, as messages show them.
    pub name: String,
}

/// What may be done with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// All features are known.
    ReadWrite,
    /// A feature that does not disturb readers.
    ReadOnly {
        /// What keeps it from being written.
        why: UnsupportedFeature,
    },
    /// A feature that changes what structures mean.
    Refused {
        /// What keeps it from being opened.
        why: UnsupportedFeature,
    },
}

/// How far a caller goes to read a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLimit {
    /// As the kernel: a volume that needs repair is refused.
    Kernel,
    /// For rescue: a volume that needs repair is read.
    Rescue,
}

/// Incompatible features of volumes that are opened.
pub const SUPPORTED_INCOMPAT: u64 = incompat::FTYPE
    | incompat::SPINODES
    | incompat::META_UUID
    | incompat::BIGTIME
    | incompat::NREXT64
    | incompat::EXCHRANGE
    | incompat::PARENT
    | incompat::METADIR;
/// Features of volumes that can be written.
pub const SUPPORTED_RO_COMPAT: u64 = ro_compat::FINOBT | ro_compat::RMAPBT | ro_compat::REFLINK | ro_compat::INOBTCNT;
/// Features of logs that are recovered.
pub const SUPPORTED_LOG_INCOMPAT: u64 = log_incompat::XATTRS;
/// What every volume of V5 has; older volumes may lack it.
const VERSION_BITS_OF_V5: u64 = version::NLINK | version::LOGV2 | version::EXTFLG | version::DIRV2 | version::MOREBITS;
const FEATURES2_OF_V5: u64 = features2::LAZYSBCOUNT | features2::ATTR2 | features2::PROJID32 | features2::CRC;

impl Superblock {
    /// Decides by version, feature bits and realtime section.
    pub fn access(&self, limit: ReadLimit) -> Access {
        let refused = self.refused_features(limit);
        if !refused.is_empty() {
            return Access::Refused { why: feature(&refused) };
        }
        let read_only = self.read_only_features();
        if !read_only.is_empty() {
            return Access::ReadOnly {
                why: feature(&read_only),
            };
        }
        Access::ReadWrite
    }

    fn refused_features(&self, limit: ReadLimit) -> Vec<String> {
        let mut refused = Vec::new();
        match self.version() {
            4 => {
                let unknown = u64::from(self.features2.get()) & !features2::KNOWN;
                if self.has_version_bit(version::MOREBITS) {
                    refused.extend(flag_names(unknown, features2::NAMES));
                }
                if !self.has_version_bit(version::DIRV2) {
                    refused.push("directories of version 1".to_owned());
                }
            }
            5 => {
                let mut supported = SUPPORTED_INCOMPAT;
                if limit == ReadLimit::Rescue {
                    supported |= incompat::NEEDSREPAIR;
                }
                let unknown = u64::from(self.features_incompat.get()) & !supported;
                refused.extend(flag_names(unknown, incompat::NAMES));
                if self.has_incompat(incompat::METADIR) && self.rgcount.get() != 0 {
                    refused.push("realtime groups".to_owned());
                }
            }
            other => refused.push(format!("version {other}")),
        }
        refused
    }

    fn read_only_features(&self) -> Vec<String> {
        let mut why = Vec::new();
        if !self.is_v5() {
            why.push("version 4".to_owned());
        }
        if self.is_v5() {
            let unknown = u64::from(self.features_ro_compat.get()) & !SUPPORTED_RO_COMPAT;
            why.extend(flag_names(unknown, ro_compat::NAMES));
            let never_written = incompat::NEEDSREPAIR | incompat::METADIR;
            let bits = u64::from(self.features_incompat.get()) & never_written;
            why.extend(flag_names(bits, incompat::NAMES));
        }
        if self.has_version_bit(version::ASCII_CI) {
            why.push("ASCII_CI".to_owned());
        }
        if self.has_version_bit(version::SHARED) {
            why.push("SHARED".to_owned());
        }
        if self.rblocks.get() != 0 {
            why.push("realtime device".to_owned());
        }
        let flags = u64::from(self.flags) & super_flags::READONLY;
        why.extend(flag_names(flags, super_flags::NAMES));
        why
    }

    /// Names the bits for which a dirty log cannot be recovered. `None` without one.
    pub fn unsupported_log_features(&self) -> Option<UnsupportedFeature> {
        let unknown = u64::from(self.features_log_incompat.get()) & !SUPPORTED_LOG_INCOMPAT;
        let names = flag_names(unknown, log_incompat::NAMES);
        (self.is_v5() && !names.is_empty()).then(|| feature(&names))
    }

    /// The bits of the version that V5 makes mandatory and this one lacks.
    pub(super) fn missing_v5_bits(&self) -> Vec<String> {
        let mut missing = flag_names(VERSION_BITS_OF_V5 & !u64::from(self.versionnum.get()), version::NAMES);
        missing.extend(flag_names(
            FEATURES2_OF_V5 & !u64::from(self.features2.get()),
            features2::NAMES,
        ));
        missing
    }
}

fn feature(names: &[String]) -> UnsupportedFeature {
    UnsupportedFeature { name: names.join(", ") }
}

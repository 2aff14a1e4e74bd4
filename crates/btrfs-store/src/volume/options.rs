//! How a volume is opened.

/// What `rescue=` allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescue {
    pub use_backup_root: bool,
    pub no_log_replay: bool,
    pub ignore_bad_roots: bool,
    pub ignore_data_csums: bool,
    pub ignore_meta_csums: bool,
    pub ignore_super_flags: bool,
}

/// How a volume is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    pub read_only: bool,
    /// Open although devices are missing, as far as the profiles allow.
    pub degraded: bool,
    pub rescue: Rescue,
    /// Large I/O and barriers go to several devices at once, on threads. Off where a run must repeat exactly.
    pub parallel_devices: bool,
}

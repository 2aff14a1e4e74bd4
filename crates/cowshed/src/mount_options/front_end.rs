//! What of the options goes to the FUSE front end. Systems other than Linux have none: there the
//! options are known to the commands that read images, and have no effect.

#[cfg(target_os = "linux")]
pub use cowshed_fuse::{MountOptions as FuseOptions, TransportChoice};

#[cfg(not(target_os = "linux"))]
pub use none::*;

#[cfg(not(target_os = "linux"))]
mod none {
    #[derive(Clone, Debug, Default)]
    pub struct FuseOptions {
        pub read_only: bool,
        pub allow_suid: bool,
        pub allow_dev: bool,
        pub no_exec: bool,
        pub sync: bool,
        pub dir_sync: bool,
    }

    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum TransportChoice {
        #[default]
        Auto,
        Uring,
        Dev,
    }
}

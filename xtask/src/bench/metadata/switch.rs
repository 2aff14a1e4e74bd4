//! The administrator's switch for FUSE over io_uring.

use std::path::Path;

use anyhow::{Context as _, Result};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// FUSE over io_uring is allowed as long as this value lives; then the switch is as it was.
///
/// Only mounting needs it: the kernel looks at the switch when a mount begins.
pub struct UringOn {
    before: String,
}

impl UringOn {
    /// Does this kernel have FUSE over io_uring? Linux 6.14 and later do.
    pub fn is_possible() -> bool {
        Path::new(SWITCH).exists()
    }

    pub fn new() -> Result<UringOn> {
        let before = std::fs::read_to_string(SWITCH).context(SWITCH)?;
        std::fs::write(SWITCH, "1").context(SWITCH)?;
        Ok(UringOn { before })
    }
}

impl Drop for UringOn {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(SWITCH, &self.before) {
            eprintln!("{SWITCH} was {}: {error}", self.before.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use cowshed_harness::need;

    use super::*;

    #[test]
    fn switch_is_restored() {
        let (Some(()), true) = (need::root(), UringOn::is_possible()) else {
            return;
        };
        let read = || std::fs::read_to_string(SWITCH).unwrap();
        let before = read();
        let on = UringOn::new().unwrap();
        assert_eq!(read().trim_end(), "Y");
        drop(on);
        assert_eq!(read(), before);
    }
}

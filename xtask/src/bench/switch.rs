//! The administrator's switch for FUSE over io_uring.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// What the switch was before the value of [`UringOn`] that lives now.
static BEFORE: Mutex<Option<String>> = Mutex::new(None);

/// FUSE over io_uring is allowed as long as this value lives; then the switch is as it was. There
/// is one at a time.
///
/// Only mounting needs it: the kernel looks at the switch when a mount begins.
pub struct UringOn(());

impl UringOn {
    /// Does this kernel have FUSE over io_uring? Linux 6.14 and later do.
    pub fn is_possible() -> bool {
        Path::new(SWITCH).exists()
    }

    pub fn new() -> Result<UringOn> {
        let now = std::fs::read_to_string(SWITCH).context(SWITCH)?;
        let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        assert!(before.is_none(), "the switch is turned on twice");
        // From here on it is put back, also where turning it on fails.
        let on = UringOn(());
        std::fs::write(SWITCH, "1").context(SWITCH)?;
        Ok(on)
    }
}

impl Drop for UringOn {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the switch back if it is turned on now.
pub fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before
        && let Err(error) = std::fs::write(SWITCH, &before)
    {
        eprintln!("{SWITCH} was {}: {error}", before.trim_end());
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

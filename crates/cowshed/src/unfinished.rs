//! Signals that end the process while it writes what is to appear when it is complete.

use std::sync::Once;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::sys;

/// On SIGINT, SIGTERM and SIGHUP, removes what [`cowshed::image::NewFile`] has begun and layouts
/// that are not complete, and ends the process as the signal would. Signals that the caller
/// ignores, as nohup(1) does, stay ignored.
pub fn remove_when_interrupted() {
    static ONCE: Once = Once::new();
    ONCE.call_once(start);
}

fn start() {
    let caught = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| !sys::is_ignored(*signal));
    // Without it a file that has a hidden name stays, as after SIGKILL.
    let Ok(mut signals) = Signals::new(caught) else { return };
    let _ = std::thread::Builder::new()
        .name("cowshed-signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                cowshed::image::remove_unfinished();
                let _stopped = cowshed_source::remove_unfinished_layouts();
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
}

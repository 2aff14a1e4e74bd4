//! Times in the time zone of the user.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// A time as the calendar of the user's time zone has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Since 1970 UTC, as if the zone were UTC.
    pub shown_secs: i64,
    /// East of Greenwich.
    pub offset_secs: i64,
}

/// UTC where the time is none that the calendar has.
pub fn local(secs: i64) -> Local {
    let mut tm = MaybeUninit::<libc::tm>::zeroed();
    // The widths of both types are the platform's.
    #[allow(clippy::useless_conversion)]
    let offset_secs = match secs.try_into() {
        // SAFETY: both pointers are to values that live until after the call. The structure is
        // plain data that zeros are valid for, also where the call fails and fills nothing.
        Ok(time) => unsafe {
            match libc::localtime_r(&time, tm.as_mut_ptr()).is_null() {
                true => 0,
                false => i64::from(tm.assume_init_ref().tm_gmtoff),
            }
        },
        Err(_) => 0,
    };
    Local {
        shown_secs: secs.saturating_add(offset_secs),
        offset_secs,
    }
}

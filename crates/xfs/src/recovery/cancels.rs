//! Buffers whose earlier images are not replayed: what held metadata may hold data by now.

use std::collections::BTreeMap;

use xfs_format::Daddr;
use xfs_format::log::BufFormat;

/// Cancels that are still ahead in the log, by address and length.
#[derive(Default)]
pub(super) struct Cancels {
    ahead: BTreeMap<(Daddr, u32), u32>,
}

impl Cancels {
    /// Notes a cancel: the first pass.
    pub(super) fn note(&mut self, buf: &BufFormat) {
        *self.ahead.entry((buf.daddr, buf.len_bytes)).or_default() += 1;
    }

    /// A cancel was passed: the second pass.
    pub(super) fn pass(&mut self, buf: &BufFormat) {
        let key = (buf.daddr, buf.len_bytes);
        if let Some(count) = self.ahead.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.ahead.remove(&key);
            }
        }
    }

    /// True where a cancel of this buffer is ahead.
    pub(super) fn covers(&self, daddr: Daddr, len_bytes: u32) -> bool {
        self.ahead.contains_key(&(daddr, len_bytes))
    }

    /// True where a cancel of a buffer that begins in this range is ahead.
    pub(super) fn touches(&self, from: Daddr, to: Daddr) -> bool {
        self.ahead.range((from, 0)..(to, 0)).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_counts_until_it_was_passed() {
        let buf = |daddr, len_bytes| BufFormat {
            daddr: Daddr(daddr),
            len_bytes,
            flags: 0,
            ty: None,
        };
        let mut cancels = Cancels::default();
        cancels.note(&buf(8, 4096));
        cancels.note(&buf(8, 4096));
        cancels.note(&buf(64, 8192));
        cancels.pass(&buf(8, 4096));
        assert!(cancels.covers(Daddr(8), 4096) && !cancels.covers(Daddr(8), 8192));
        assert!(cancels.touches(Daddr(60), Daddr(65)) && !cancels.touches(Daddr(65), Daddr(900)));
        cancels.pass(&buf(8, 4096));
        cancels.pass(&buf(8, 4096));
        assert!(!cancels.covers(Daddr(8), 4096));
    }
}

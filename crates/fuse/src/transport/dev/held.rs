//! Large reads that one worker took from the queue, to serve them one after the other.

use std::collections::VecDeque;

use super::device::Road;

/// Large reads that one worker took from the queue and has not begun, in the order in which they
/// came.
#[derive(Debug, Default)]
pub struct HeldReads {
    requests: VecDeque<(Vec<u8>, Road)>,
    /// As many other requests were served since the last read.
    overtaken: u32,
}

impl HeldReads {
    /// More than the kernel has under way for one reader.
    const READS_MAX: usize = 16;
    /// So many others may be served before a read: some hundred microseconds.
    const OVERTAKEN_MAX: u32 = 16;

    pub fn has_any(&self) -> bool {
        !self.requests.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.requests.len() >= Self::READS_MAX
    }

    pub fn push(&mut self, request: &[u8], road: Road) {
        self.requests.push_back((request.to_vec(), road));
    }

    pub fn pop(&mut self) -> Option<(Vec<u8>, Road)> {
        self.overtaken = 0;
        self.requests.pop_front()
    }

    /// Another request is there: is it time for a read nevertheless?
    pub fn is_due(&mut self) -> bool {
        self.overtaken += 1;
        self.has_any() && self.overtaken > Self::OVERTAKEN_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_reads_keep_their_order_and_are_overtaken_a_few_times() {
        let road = Road::default();
        let mut held = HeldReads::default();
        assert!(!held.has_any() && held.pop().is_none());
        (0..100).for_each(|_| assert!(!held.is_due(), "there is none"));
        for n in 0..HeldReads::READS_MAX {
            assert!(!held.is_full());
            held.push(&[n as u8], road);
        }
        assert!(held.is_full());
        assert_eq!(held.pop(), Some((vec![0], road)));
        (0..HeldReads::OVERTAKEN_MAX).for_each(|_| assert!(!held.is_due()));
        assert!(held.is_due());
        assert_eq!(held.pop(), Some((vec![1], road)));
        assert!(!held.is_due());
    }
}

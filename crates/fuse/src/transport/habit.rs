//! What is done again while it pays.

/// Something that is tried again and again while it pays, and less and less often while it does
/// not.
#[derive(Debug, Default)]
pub struct Habit {
    /// So many times it is not due.
    pause: u32,
    next_pause: u32,
}

impl Habit {
    const PAUSE_MAX: u32 = 128;

    pub fn is_due(&mut self) -> bool {
        let is_due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        is_due
    }

    pub fn pays(&mut self) {
        self.next_pause = 0;
    }

    /// The first time has no consequences: anything may have happened.
    pub fn does_not_pay(&mut self) {
        self.pause = self.next_pause;
        self.next_pause = (self.next_pause * 2 + 1).min(Self::PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pay_is_done_less_and_less() {
        let mut habit = Habit::default();
        let mut times_due = 0;
        for _ in 0..10_000 {
            if habit.is_due() {
                times_due += 1;
                habit.does_not_pay();
            }
        }
        assert!((70..100).contains(&times_due), "{times_due}");
        habit.pays();
        habit.pause = 0;
        assert!((0..100).all(|_| {
            let is_due = habit.is_due();
            habit.pays();
            is_due
        }));
    }
}

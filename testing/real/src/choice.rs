//! Which kinds of volumes a matrix looks at.

#[derive(clap::Args)]
pub struct Choice {
    /// Only this many kinds, chosen by the seed
    #[arg(long)]
    pub count: Option<usize>,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only kinds whose description contains this
    #[arg(long)]
    pub only: Option<String>,
}

impl Choice {
    /// The chosen ones of all kinds.
    pub fn of<K: Clone>(&self, mut kinds: Vec<K>, describe: impl Fn(&K) -> String) -> Vec<K> {
        if let Some(only) = &self.only {
            kinds.retain(|kind| describe(kind).contains(only));
        }
        let (Some(count), len @ 1..) = (self.count, kinds.len()) else {
            return kinds;
        };
        // A stride that is coprime to the number of kinds visits them all as the seed advances.
        let start = (self.seed as usize).wrapping_mul(count) % len;
        (0..count.min(len)).map(|i| kinds[(start + i) % len].clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(count: Option<usize>, seed: u64, only: Option<&str>) -> Vec<u32> {
        let only = only.map(str::to_owned);
        Choice { count, seed, only }.of((0..10).collect(), u32::to_string)
    }

    #[test]
    fn seeds_go_through_all_kinds_and_names_choose_some() {
        assert_eq!(chosen(None, 1, None), (0..10).collect::<Vec<_>>());
        assert_eq!(chosen(Some(3), 0, None), [0, 1, 2]);
        assert_eq!(chosen(Some(3), 3, None), [9, 0, 1]);
        assert_eq!(chosen(Some(20), 0, None).len(), 10);
        assert_eq!(chosen(Some(3), 1, Some("7")), [7]);
        assert!(chosen(Some(3), 1, Some("x")).is_empty());
    }
}

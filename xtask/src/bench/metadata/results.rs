//! What was measured, by line and side.

use std::collections::BTreeMap;

use super::column::Column;
use super::stats::{Sample, geometric_mean};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The yardstick: files per second.
    FsMark,
    /// One call on many names: calls per second.
    Names,
    /// Programs: milliseconds.
    Commands,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::FsMark, Kind::Names, Kind::Commands];
}

/// A line of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub kind: Kind,
    pub name: &'static str,
    pub callers: usize,
}

impl Key {
    pub fn new(kind: Kind, name: &'static str, callers: usize) -> Key {
        Key { kind, name, callers }
    }
}

/// The wanted lines, in the order of the tables.
pub struct Results {
    rows: Vec<(Key, BTreeMap<Column, Vec<Sample>>)>,
}

impl Results {
    pub fn new(wanted: impl IntoIterator<Item = Key>) -> Results {
        let rows = wanted.into_iter().map(|key| (key, BTreeMap::new()));
        Results { rows: rows.collect() }
    }

    /// Lines that are not wanted only prepare others: without effect.
    pub fn record(&mut self, key: &Key, column: Column, sample: Sample) {
        if let Some((_, columns)) = self.rows.iter_mut().find(|(known, _)| known == key) {
            columns.entry(column).or_default().push(sample);
        }
    }

    /// Lines of this kind that were measured.
    pub fn keys(&self, kind: Kind) -> impl Iterator<Item = &Key> {
        let measured = self.rows.iter().filter(|(_, columns)| !columns.is_empty());
        measured.map(|(key, _)| key).filter(move |key| key.kind == kind)
    }

    /// The medians of one side's runs.
    pub fn median(&self, key: &Key, column: Column) -> Option<Sample> {
        let (_, columns) = self.rows.iter().find(|(known, _)| known == key)?;
        Sample::median(columns.get(&column)?)
    }

    /// How many times as fast as the kernel.
    pub fn ratio(&self, key: &Key, column: Column) -> Option<f64> {
        let [ours, kernel] = [column, Column::Kernel].map(|column| Some(self.median(key, column)?.value));
        match key.kind {
            Kind::FsMark | Kind::Names => Some(ours? / kernel?),
            Kind::Commands => Some(kernel? / ours?),
        }
    }

    /// The geometric mean of the ratios of all lines of these kinds that both sides have, and how
    /// many these are.
    pub fn mean_ratio(&self, kinds: &[Kind], column: Column) -> Option<(f64, usize)> {
        let keys = kinds.iter().flat_map(|kind| self.keys(*kind));
        let ratios: Vec<f64> = keys.filter_map(|key| self.ratio(key, column)).collect();
        Some((geometric_mean(&ratios)?, ratios.len()))
    }

    /// The sides that have a line of this kind, in their order.
    pub fn columns(&self, kind: Kind) -> Vec<Column> {
        let has = |column: &Column| self.keys(kind).any(|key| self.median(key, *column).is_some());
        Column::ALL.into_iter().filter(has).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_of_speed_whatever_the_unit() {
        let (rate, time) = (Key::new(Kind::Names, "stat", 1), Key::new(Kind::Commands, "find", 1));
        let mut results = Results::new([rate, time]);
        for (key, column, value) in [
            (rate, Column::Kernel, 100.0),
            (rate, Column::Uring, 50.0),
            (time, Column::Kernel, 100.0),
            (time, Column::Uring, 50.0),
            (time, Column::Uring, 50.0),
        ] {
            results.record(&key, column, Sample::of_value(value));
        }
        results.record(
            &Key::new(Kind::FsMark, "not wanted", 1),
            Column::Uring,
            Sample::of_value(1.0),
        );
        assert_eq!(results.ratio(&rate, Column::Uring), Some(0.5));
        assert_eq!(results.ratio(&time, Column::Uring), Some(2.0));
        assert_eq!(results.ratio(&rate, Column::Dev), None);
        let (mean, lines) = results.mean_ratio(&Kind::ALL, Column::Uring).unwrap();
        assert!((mean - 1.0).abs() < 1e-9 && lines == 2);
        assert_eq!(results.mean_ratio(&Kind::ALL, Column::Dev), None);
        assert_eq!(results.columns(Kind::Names), [Column::Kernel, Column::Uring]);
        assert!(results.columns(Kind::FsMark).is_empty());
    }
}

//! Groups of lines, each measured on a volume of its own.

use super::column::Column;
use super::commands::{Work, has_git};
use super::results::{Key, Kind};
use super::{Args, fs_mark, listing, names};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    FsMark { callers: usize },
    Names { callers: usize },
    Listing,
    Commands(Work),
}

impl Group {
    /// Those with a wanted line.
    pub fn wanted(args: &Args) -> Vec<Group> {
        let yardsticks = args.callers.iter().map(|callers| Group::FsMark { callers: *callers });
        let names = [1, 2].map(|callers| Group::Names { callers });
        let commands = Work::ALL.map(Group::Commands);
        let all = yardsticks.chain(names).chain([Group::Listing]).chain(commands);
        let is_possible = |group: &Group| *group != Group::Commands(Work::Git) || has_git();
        all.filter(|group| !group.keys(args).is_empty())
            .filter(is_possible)
            .collect()
    }

    pub fn name(self) -> &'static str {
        match self {
            Group::FsMark { .. } => fs_mark::NAME,
            Group::Names { .. } => "names",
            Group::Listing => "listing",
            Group::Commands(work) => work.name(),
        }
    }

    /// Its wanted lines, in order.
    pub fn keys(self, args: &Args) -> Vec<Key> {
        let key = |kind, callers| move |name| Key::new(kind, name, callers);
        let keys: Vec<Key> = match self {
            Group::FsMark { callers } => vec![Key::new(Kind::FsMark, fs_mark::NAME, callers)],
            Group::Names { callers } => {
                let lines = names::LINES.iter().map(|line| line.name);
                lines.map(key(Kind::Names, callers)).collect()
            }
            Group::Listing => {
                let lines = |callers| listing::LINES.into_iter().map(key(Kind::Names, callers));
                listing::CALLERS.into_iter().flat_map(lines).collect()
            }
            Group::Commands(work) => work.lines().iter().copied().map(key(Kind::Commands, 1)).collect(),
        };
        let is_wanted = |key: &Key| args.wants(self.name()) || args.wants(key.name);
        keys.into_iter().filter(is_wanted).collect()
    }

    /// Can this side run it? The engine in process has a few lines; the empty server no programs,
    /// whose data it would keep in its own memory.
    pub fn has(self, column: Column) -> bool {
        match (self, column) {
            (Group::Names { callers }, Column::InProcess) => callers == 1,
            (_, Column::InProcess) => false,
            (Group::Commands(_), column) => !column.is_empty_server(),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_wanted_by_its_name_or_its_group() {
        let only = |names: &[&str]| Args {
            only: names.iter().map(|name| name.to_string()).collect(),
            ..Args::for_tests()
        };
        let lines = |group: Group, names: &[&str]| group.keys(&only(names)).len();
        let names = Group::Names { callers: 1 };
        assert_eq!(lines(names, &[]), names::LINES.len());
        assert_eq!(lines(names, &["git", "rename"]), 1);
        assert_eq!(lines(Group::Listing, &["rename"]), 0);
        assert_eq!(lines(Group::Listing, &["listing"]), 4);
        assert_eq!(lines(Group::Commands(Work::Tree), &["tar"]), 3);
    }

    #[test]
    fn names_of_lines_are_unique() {
        let keys: Vec<Key> = Group::wanted(&Args::for_tests())
            .into_iter()
            .flat_map(|g| g.keys(&Args::for_tests()))
            .collect();
        for (n, key) in keys.iter().enumerate() {
            assert!(!keys[..n].contains(key) && !key.name.is_empty(), "{key:?}");
        }
    }
}

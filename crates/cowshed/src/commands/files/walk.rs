//! Walking a tree of either side: names in byte order, a stack of its own, symbolic links not
//! followed.

use std::ops::ControlFlow;

use super::session::Place;
use super::side::{Follow, Stat};

/// When a directory is shown: before or after what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

/// What a walk sees.
pub struct Visit<'v> {
    pub place: &'v Place,
    pub stat: &'v Stat,
    pub depth: usize,
    pub when: When,
}

/// What becomes of a directory that is seen before its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descend {
    Yes,
    No,
}

/// Takes what is seen, or the error that keeps something from being seen.
pub type Seen<'s> = &'s mut dyn FnMut(Result<Visit<'_>, (&Place, std::io::Error)>) -> ControlFlow<(), Descend>;

enum Step {
    Enter(Place),
    Leave(Place, Stat),
}

/// Walks from `start`. Files are seen once, directories before and after what is in them.
pub fn walk(start: &Place, follow: Follow, seen: Seen<'_>) -> ControlFlow<()> {
    let mut todo = vec![(0, Step::Enter(start.clone()))];
    while let Some((depth, step)) = todo.pop() {
        let place = match step {
            Step::Leave(place, stat) => {
                seen(Ok(Visit {
                    place: &place,
                    stat: &stat,
                    depth,
                    when: When::After,
                }))?;
                continue;
            }
            Step::Enter(place) => place,
        };
        let follow = if depth == 0 { follow } else { Follow::No };
        let stat = match place.stat(follow) {
            Ok(stat) => stat,
            Err(error) => {
                seen(Err((&place, error)))?;
                continue;
            }
        };
        let descend = seen(Ok(Visit {
            place: &place,
            stat: &stat,
            depth,
            when: When::Before,
        }))?;
        if !stat.is_dir() {
            continue;
        }
        let names = match descend {
            Descend::Yes => place.side.names(&place.path),
            Descend::No => Ok(Vec::new()),
        };
        todo.push((depth, Step::Leave(place.clone(), stat)));
        match names {
            Ok(names) => todo.extend(
                names
                    .iter()
                    .rev()
                    .map(|name| (depth + 1, Step::Enter(place.join(name)))),
            ),
            Err(error) => {
                seen(Err((&place, error)))?;
            }
        }
    }
    ControlFlow::Continue(())
}

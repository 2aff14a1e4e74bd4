//! The end of a command.

use anyhow::Result;

use super::rm;
use super::session::Session;
use crate::people::is_broken_pipe;

/// Commits, or gives up where the command failed. The exit code.
pub fn finish(session: Session<'_>, done: Result<()>) -> Result<u8> {
    match done {
        Ok(()) => Ok(session.finish(|session, place| {
            rm::remove_tree(session, place, rm::Removal::default());
        })),
        Err(error) => {
            session.give_up();
            if is_broken_pipe(&error) {
                return Err(error);
            }
            session.complain(format_args!("{error:#}"));
            Ok(1)
        }
    }
}

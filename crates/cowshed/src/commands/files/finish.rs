//! The end of a command.

use anyhow::Result;

use super::rm;
use super::session::Session;

/// Commits, or gives up where the command failed. The exit code.
pub fn finish(session: Session<'_>, done: Result<()>) -> Result<u8> {
    match done {
        Ok(()) => Ok(session.finish(|session, place| {
            rm::remove_tree(session, place, rm::Removal::default());
        })),
        Err(error) => {
            session.give_up();
            let is_broken_pipe = error
                .chain()
                .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
                .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
            if is_broken_pipe {
                return Err(error);
            }
            session.complain(format_args!("{error:#}"));
            Ok(1)
        }
    }
}

//! Clones of trees: a walk goes on with each call, so that the caller can show progress and stop.

use std::sync::Arc;
use std::time::Duration;

use cowshed_vfs::{Access, Context, Error, IoctlReply, NodeId, Result, TreeClone, TreeCloneStep, Volume};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::front::Front;
use crate::reply::{argument, reply};
use crate::walks::Entry;
use crate::wire::trees::{self, CloneTree, op, state};

/// How long a call goes on beginning steps.
const CALL_TIME: Duration = Duration::from_millis(20);

impl<V: Volume + ?Sized + 'static> Front<V> {
    /// Errors: `NotIoctl` for commands that are not of this module, and those of the calls.
    pub(crate) fn ioctl_trees(
        &self,
        ctx: &Context,
        node: NodeId,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        if cmd != trees::CLONE_TREE {
            return Err(Error::NotIoctl);
        }
        let mut call: CloneTree = *argument(input)?;
        let uid = ctx.creds.uid;
        match call.op.get() {
            op::BEGIN => {
                let len = usize::try_from(call.name_bytes.get()).map_err(|_| Error::Invalid)?;
                let name = call.name.get(..len).ok_or(Error::NameTooLong)?;
                let src = self.lent(call.token, Access::READ)?;
                let walk = self.volume().clone().clone_tree(ctx, src, node, name)?;
                self.env.random(&mut call.token.0);
                let entry = Entry {
                    walk: Arc::new(Mutex::new(walk)),
                    uid,
                    used: self.env.monotonic(),
                };
                self.clones.add(call.token, entry);
                call.state = state::MORE.into();
            }
            op::GO_ON => {
                let walk = self.clones.find(call.token, uid, self.env.monotonic())?;
                self.go_on(ctx, &mut **walk.lock(), &mut call);
                if call.state.get() != state::MORE {
                    self.clones.remove(call.token);
                }
            }
            op::END => {
                self.clones.find(call.token, uid, self.env.monotonic())?;
                self.clones.remove(call.token);
            }
            _ => return Err(Error::Invalid),
        }
        reply(output, call.as_bytes())
    }

    fn go_on(&self, ctx: &Context, walk: &mut dyn TreeClone, call: &mut CloneTree) {
        let until = self.env.monotonic() + CALL_TIME;
        let (mut state, mut errno, mut path) = (state::MORE, 0, Vec::new());
        while state == state::MORE && errno == 0 && self.env.monotonic() < until {
            match walk.step(ctx) {
                Ok(TreeCloneStep::More) => {}
                Ok(TreeCloneStep::Done) => state = state::DONE,
                Ok(TreeCloneStep::Without(left_out)) => (errno, path) = (left_out.error.errno(), left_out.path),
                Err(error) => (state, errno, path) = (state::FAILED, error.errno(), walk.path()),
            }
        }
        if errno == 0 {
            path = walk.path();
        }
        let progress = walk.progress();
        call.state = state.into();
        call.errno = errno.unsigned_abs().into();
        call.entries = progress.entries.into();
        call.bytes = progress.bytes.into();
        call.put_path(&path);
    }
}

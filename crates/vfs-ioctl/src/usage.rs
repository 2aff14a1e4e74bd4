//! Counts of what subvolumes use: a count goes on with each call, so that the caller can show
//! progress and stop.

use std::sync::Arc;
use std::time::Duration;

use cowshed_vfs::{Context, Error, IoctlReply, Result, Volume};
use parking_lot::Mutex;
use zerocopy::{FromZeros, IntoBytes};

use crate::counts::Count;
use crate::front::Front;
use crate::reply::{argument, reply};
use crate::walks::Entry;
use crate::wire::usage::{USAGE, UsageEntry, UsagePage, op};

/// How long a call goes on beginning steps.
const CALL_TIME: Duration = Duration::from_millis(20);

impl<V: Volume + ?Sized + 'static> Front<V> {
    /// Errors: `NotIoctl` for commands that are not of this module, and those of the calls.
    pub(crate) fn ioctl_usage(&self, ctx: &Context, cmd: u32, input: &[u8], output: &mut [u8]) -> Result<IoctlReply> {
        if cmd != USAGE {
            return Err(Error::NotIoctl);
        }
        let mut page: UsagePage = *argument(input)?;
        (page.is_done, page.count) = (0.into(), 0.into());
        page.entries = FromZeros::new_zeroed();
        let uid = ctx.creds.uid;
        match page.op.get() {
            op::BEGIN => {
                let walk = self.volume().subvolumes()?.usage(ctx)?;
                self.env.random(&mut page.token.0);
                let entry = Entry {
                    walk: Arc::new(Mutex::new(Count { walk, found: None })),
                    uid,
                    used: self.env.monotonic(),
                };
                self.counts.add(page.token, entry);
            }
            op::GO_ON => {
                let count = self.counts.find(page.token, uid, self.env.monotonic())?;
                let went_on = self.count_on(&mut count.lock(), &mut page);
                if went_on.is_err() {
                    self.counts.remove(page.token);
                }
                went_on?;
            }
            op::END => {
                self.counts.find(page.token, uid, self.env.monotonic())?;
                self.counts.remove(page.token);
            }
            _ => return Err(Error::Invalid),
        }
        reply(output, page.as_bytes())
    }

    fn count_on(&self, count: &mut Count, page: &mut UsagePage) -> Result<()> {
        let until = self.env.monotonic() + CALL_TIME;
        while count.found.is_none() && self.env.monotonic() < until {
            count.found = count.walk.step()?;
        }
        let (done, known) = count.walk.progress();
        (page.blocks_done, page.blocks_known) = (done.into(), known.into());
        let Some(found) = &count.found else {
            return Ok(());
        };
        page.is_done = 1.into();
        let start = usize::try_from(page.start.get()).unwrap_or(usize::MAX);
        for (entry, usage) in page.entries.iter_mut().zip(found.iter().skip(start)) {
            *entry = UsageEntry {
                id: usage.id.into(),
                data_bytes: usage.data_bytes.into(),
                data_exclusive_bytes: usage.data_exclusive_bytes.into(),
                metadata_bytes: usage.metadata_bytes.into(),
                metadata_exclusive_bytes: usage.metadata_exclusive_bytes.into(),
            };
            page.count += 1;
        }
        Ok(())
    }
}

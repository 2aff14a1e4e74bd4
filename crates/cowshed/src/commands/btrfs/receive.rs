//! `btrfs receive`: the command of our own name, with the options before it.

use anyhow::Result;

use super::say::Voice;
use crate::commands::receive::{self, ReceiveArgs};

pub fn run(args: &ReceiveArgs, voice: Voice) -> Result<u8> {
    receive::run(&args.with_voice(voice.is_quiet, voice.is_verbose))
}

//! Stands for the ring on processors that the crate `io-uring` has no definitions for.
#![allow(unsafe_code)]

use std::io;

use super::command::Command;

/// There is none.
pub enum Ring {}

impl Ring {
    pub fn new() -> io::Result<Ring> {
        let why = "this program has no support for it on this kind of processor";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    pub fn enable(&mut self) -> io::Result<()> {
        match *self {}
    }

    /// # Safety
    /// It cannot be called.
    pub unsafe fn push(&mut self, _: &Command) -> io::Result<()> {
        match *self {}
    }

    pub fn submit(&mut self) -> io::Result<()> {
        match *self {}
    }

    pub fn wait(&mut self) -> io::Result<i32> {
        match *self {}
    }
}

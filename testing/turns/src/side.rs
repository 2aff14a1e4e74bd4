//! What the two sides can do.

use anyhow::Result;
use cowshed_device::MemDevice;
use cowshed_device_sim::Event;

use crate::state::State;
use crate::step::Step;

/// One of the two, with the volume mounted.
pub trait Side {
    fn name(&self) -> &'static str;
    /// What it sees.
    fn look(&mut self) -> Result<State>;
    fn step(&mut self, step: &Step) -> Result<()>;
    /// So many steps have returned.
    fn mark(&self, step: usize);
    /// What was done to the device since the last call.
    fn events(&mut self) -> Vec<Event>;
    /// Unmounts, and returns what is on the device.
    fn end(self: Box<Self>) -> Result<MemDevice>;
    /// Goes on until no deletion waits.
    fn drop_all(&mut self) -> Result<()>;
}

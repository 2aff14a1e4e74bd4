//! What measurements share: clocks, and the memory of this process.

pub mod allocations;
pub mod content;

use std::time::Instant;

/// One measurement: what was done, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub ops: u64,
    pub bytes: u64,
    pub wall_s: f64,
    /// Processor time of this whole process: a shared machine's wall clock says little.
    pub cpu_s: f64,
    /// By all threads; 0 in a program that does not count them.
    pub allocations: u64,
}

impl Measured {
    /// Runs something and takes its time. It says how many operations and bytes it did.
    pub fn of<E>(run: impl FnOnce() -> Result<(u64, u64), E>) -> Result<Self, E> {
        let (wall, cpu, allocations) = (Instant::now(), cpu_s(), allocations::calls());
        let (ops, bytes) = run()?;
        Ok(Self {
            ops,
            bytes,
            wall_s: wall.elapsed().as_secs_f64(),
            cpu_s: cpu_s() - cpu,
            allocations: allocations::calls() - allocations,
        })
    }

    /// For programs that compare.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "ops": self.ops,
            "bytes": self.bytes,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "allocations": self.allocations,
        })
    }
}

/// Processor seconds of this process so far, of all its threads; 0 where /proc does not tell.
pub fn cpu_s() -> f64 {
    /// `sysconf(_SC_CLK_TCK)` on every Linux there is.
    const TICKS_PER_S: f64 = 100.0;
    /// utime and stime, counted from the field behind the program's name.
    const UTIME: usize = 11;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(UTIME).take(2);
    ticks.filter_map(|t| t.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_S
}

/// The most memory that this process had in use since [`reset_peak_memory`], in bytes; 0 where
/// /proc does not tell.
pub fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Starts the peak afresh.
pub fn reset_peak_memory() {
    // "5" is the kernel's number for it (proc(5), clear_refs). Without the right to do so, the peak
    // is of the whole run.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use cowshed_device_sim::Rng;

    use super::*;

    #[test]
    fn processor_time_grows_with_work() {
        let before = cpu_s();
        let started = Instant::now();
        let mut dice = Rng::new(1);
        while started.elapsed().as_millis() < 200 {
            dice.next_u64();
        }
        assert!(cpu_s() > before && peak_memory_bytes() > 0);
    }
}

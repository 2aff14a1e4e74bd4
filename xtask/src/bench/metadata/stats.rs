//! Percentiles, means, and what one run of a line measured.

use super::super::table::median;

/// The percentiles of a call's duration that the tables show: p50, p99, p99.9, as shares.
pub const SHARES: [f64; 3] = [0.5, 0.99, 0.999];

/// What one run of a line measured on one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Calls per second, or milliseconds of a command; the line knows which.
    pub value: f64,
    /// Microseconds of a call at each of [`SHARES`], where calls were timed one by one.
    pub latency_us: Option<[f64; 3]>,
    /// Rate of the last loop over that of the fastest one, where there are loops.
    pub last_over_best: Option<f64>,
}

impl Sample {
    pub fn of_value(value: f64) -> Sample {
        Sample {
            value,
            latency_us: None,
            last_over_best: None,
        }
    }

    /// The medians of several runs, each number by itself. `None` without a run.
    pub fn median(samples: &[Sample]) -> Option<Sample> {
        let all = |take: &dyn Fn(&Sample) -> Option<f64>| {
            let values: Vec<f64> = samples.iter().filter_map(take).collect();
            median(&values)
        };
        let latency = |n: usize| all(&|sample: &Sample| sample.latency_us.map(|latency| latency[n]));
        Some(Sample {
            value: all(&|sample| Some(sample.value))?,
            latency_us: match (latency(0), latency(1), latency(2)) {
                (Some(p50), Some(p99), Some(p999)) => Some([p50, p99, p999]),
                _ => None,
            },
            last_over_best: all(&|sample| sample.last_over_best),
        })
    }
}

/// The smallest value that at least `share` of the sorted values do not exceed (nearest rank).
/// `None` of nothing.
pub fn percentile(sorted: &[u32], share: f64) -> Option<u32> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Microseconds at each of [`SHARES`]; `nanos` is sorted on the way.
pub fn latency_us(nanos: &mut [u32]) -> Option<[f64; 3]> {
    nanos.sort_unstable();
    let at = |share| percentile(nanos, share).map(|nanos| f64::from(nanos) / 1e3);
    Some([at(SHARES[0])?, at(SHARES[1])?, at(SHARES[2])?])
}

/// `None` of nothing.
pub fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp())
}

/// Mean rate of loops of the same size, and the last one's rate over the best one's. `None` of
/// nothing.
pub fn loops(per_second: &[f64]) -> Option<(f64, f64)> {
    let best = per_second.iter().copied().reduce(f64::max)?;
    let seconds: f64 = per_second.iter().map(|rate| 1.0 / rate).sum();
    Some((per_second.len() as f64 / seconds, per_second.last()? / best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_nearest_rank() {
        let values: Vec<u32> = (1..=1000).collect();
        assert_eq!(
            SHARES.map(|share| percentile(&values, share)),
            [500, 990, 999].map(Some)
        );
        assert_eq!(percentile(&[7], 0.999), Some(7));
        assert_eq!(percentile(&[7, 8], 0.5), Some(7));
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(latency_us(&mut [3000, 1000, 2000]), Some([2.0, 3.0, 3.0]));
        assert_eq!(latency_us(&mut []), None);
    }

    #[test]
    fn geometric_mean_of_ratios() {
        let close = |a: Option<f64>, b: f64| (a.unwrap() - b).abs() < 1e-9;
        assert!(close(geometric_mean(&[0.5, 2.0]), 1.0));
        assert!(close(geometric_mean(&[4.0]), 4.0));
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn loops_give_mean_rate_and_slowdown() {
        // 100 files a loop: 1 s and 0.5 s, so 200 files in 1.5 s.
        let (mean, last_over_best) = loops(&[200.0, 100.0]).unwrap();
        assert!((mean - 200.0 / 1.5).abs() < 1e-9);
        assert!((last_over_best - 0.5).abs() < 1e-9);
        assert_eq!(loops(&[]), None);
    }

    #[test]
    fn median_of_samples_takes_each_number_by_itself() {
        let sample = |value, p50| Sample {
            value,
            latency_us: Some([p50, 5.0, 9.0]),
            last_over_best: None,
        };
        let runs = [sample(1.0, 30.0), sample(3.0, 10.0), sample(2.0, 20.0)];
        assert_eq!(Sample::median(&runs), Some(sample(2.0, 20.0)));
        assert_eq!(Sample::median(&[Sample::of_value(4.0)]), Some(Sample::of_value(4.0)));
        assert_eq!(Sample::median(&[]), None);
    }
}

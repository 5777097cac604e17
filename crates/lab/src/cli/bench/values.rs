//! The parts that the benchmarks' command lines share.

use std::time::Duration;

use clap::ValueEnum;
use pmnet_cli::ConfigError;

/// Maximum number of rounds.
pub const ROUNDS_MAX: u16 = 101;
/// Duration of a warm-up, as a fraction of the measured time.
const WARMUP_PART: f64 = 0.2;
/// Minimum duration of a warm-up.
const WARMUP_MIN: Duration = Duration::from_millis(50);

/// Checks that the values are within these bounds. Returns the values in order, each once.
pub fn between(
    flag: &str,
    values: &[usize],
    least: usize,
    most: usize,
) -> Result<Vec<usize>, ConfigError> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.iter().all(|value| (least..=most).contains(value)) && !sorted.is_empty() {
        Ok(sorted)
    } else {
        Err(ConfigError(format!(
            "{flag}: numbers from {least} to {most} are needed"
        )))
    }
}

/// Returns the values in the order of their declaration, each once.
pub fn each_once<T: ValueEnum + PartialEq>(values: &[T]) -> Vec<T> {
    let mut all = T::value_variants().to_vec();
    all.retain(|value| values.contains(value));
    all
}

/// Returns the duration of a run of `seconds`, and the duration of its warm-up.
pub fn times(seconds: f64, most: f64) -> Result<(Duration, Duration), ConfigError> {
    if !(0.01..=most).contains(&seconds) {
        return Err(ConfigError(format!(
            "--seconds {seconds}: 0.01 to {most} are needed"
        )));
    }
    let duration = Duration::from_secs_f64(seconds);
    Ok((duration, duration.mul_f64(WARMUP_PART).max(WARMUP_MIN)))
}

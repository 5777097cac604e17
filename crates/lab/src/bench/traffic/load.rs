//! A client that sends updates during the measured traffic.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::plan::LOAD_RATE;
use crate::bench::micro::system::SERVER;
use crate::load::{Endpoint, Hooks, Options, Progress, run};
use crate::testbed::Network;

/// Longest wait for the first acknowledgement. Usually the acknowledgement takes far less time,
/// even on a busy machine.
const FIRST_MAX: Duration = Duration::from_secs(10);
/// Interval at which this process checks for the first acknowledgement.
const LOOK: Duration = Duration::from_millis(5);
/// Time after which the load ends by itself. This time is longer than any run.
const LOAD_MAX: Duration = Duration::from_secs(600);

/// Runs `work` while `client1` sends [`LOAD_RATE`] updates per second to the shard. `work` begins
/// after the first acknowledgement. Returns the number of updates that were acknowledged by the
/// end.
///
/// # Errors
/// Fails if `work` fails, if no update is acknowledged within `FIRST_MAX`, or if the run is
/// interrupted.
pub fn beside<T>(
    network: &Network,
    stop: &AtomicBool,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, u64)> {
    let (acknowledged, done) = (&AtomicU64::new(0), &AtomicBool::new(false));
    let options = Options {
        endpoint: Endpoint::Native,
        rate: Some(f64::from(LOAD_RATE)),
        duration: LOAD_MAX,
        ..Options::new(SocketAddr::V4(SERVER))
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(move || {
            network.enter("client1")?;
            let mut tell = |progress: &Progress| {
                acknowledged.store(progress.acknowledged, Ordering::Relaxed);
            };
            let hooks = Hooks {
                record: None,
                progress: Some(&mut tell),
            };
            run(&options, hooks, done)
        });
        let deadline = Instant::now() + FIRST_MAX;
        let goes_on = || Instant::now() < deadline && !client.is_finished();
        while acknowledged.load(Ordering::Relaxed) == 0
            && goes_on()
            && !stop.load(Ordering::Relaxed)
        {
            std::thread::sleep(LOOK);
        }
        let worked = if acknowledged.load(Ordering::Relaxed) > 0 {
            work().map(Some)
        } else {
            Ok(None)
        };
        done.store(true, Ordering::Relaxed);
        let summary = client
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        let summary = summary.context("the client that updates")?;
        let worked = worked?.context("the client that updates got no acknowledgement")?;
        Ok((worked, summary.acknowledged))
    })
}

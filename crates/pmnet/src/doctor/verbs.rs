//! Checks whether an RDMA NIC takes slots in order, even with several connections (`docs/spec/verbs.md` §3,
//! 9).

use std::net::IpAddr;
use std::path::PathBuf;

use pmnet_verbs::order;

use super::{Finding, Level};

/// Number of connections and of messages in the check.
const SIZE: (u32, u64) = (8, 2000);

/// Returns the finding about the RDMA device `NAME@ADDRESS`.
pub(super) fn finding(text: &str) -> Finding {
    let bad = |found: String, advice: &str| Finding::bad(Level::Fail, "verbs", found, advice);
    let parts = text.split_once('@');
    let Some((name, Ok(address))) = parts.map(|(name, at)| (name, at.parse::<IpAddr>())) else {
        return bad(
            format!("{text} is not NAME@ADDRESS"),
            "give the RDMA device (rdma link) and the IP address of its network interface",
        );
    };
    let memory = PathBuf::from(format!("/dev/shm/pmnet-doctor-{}", std::process::id()));
    match order::test(name, address, &memory, SIZE) {
        Ok(report) if report.is_good() => Finding::ok(
            "verbs",
            format!(
                "{name}: {} messages of {} connections are in their slots in real-time order; {} completions came before those of earlier slots",
                report.messages, SIZE.0, report.overtaken
            ),
        ),
        Ok(report) => bad(
            format!(
                "{name}: of {} messages {} are out of order, {} are lost and {} are there twice",
                report.messages, report.violations, report.lost, report.twice
            ),
            "this NIC cannot be used with --mode verbs: use another mode",
        ),
        Err(error) => bad(
            format!("{name}: {error}"),
            "--mode verbs needs an RDMA device with RoCE v2 and shared receive queues",
        ),
    }
}

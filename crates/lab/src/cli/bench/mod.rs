//! `pmnet-lab bench`.

mod micro;
mod packets;
mod pipeline;
mod redis;
mod traffic;
mod values;

use clap::{Args, Subcommand};

/// The command line of `pmnet-lab bench`.
#[derive(Debug, Args)]
pub struct BenchCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measure the round trip of an update with an ideal handler, and compare it with the minimum.
    Micro(micro::MicroArgs),
    /// Compare a log of packet buffers with a log that requests are copied into, and with storing nothing (PASTE).
    Packets(packets::PacketsArgs),
    /// Measure the time that the pipeline in the kernel takes for one packet, on one core.
    Pipeline(pipeline::PipelineArgs),
    /// Compare Redis with pmnet, Redis alone, and the upper bound for servers of its protocol on this machine.
    Redis(redis::RedisArgs),
    /// Measure other traffic through the switch, with and without a device, to find the cost of pmnet for this traffic.
    Traffic(traffic::TrafficArgs),
}

/// Runs the benchmark.
pub fn main(command: &BenchCommand) -> anyhow::Result<bool> {
    match &command.what {
        What::Micro(args) => micro::main(args),
        What::Packets(args) => packets::main(args),
        What::Redis(args) => redis::main(args),
        What::Traffic(args) => traffic::main(args),
        What::Pipeline(args) => pipeline::main(args),
    }
}

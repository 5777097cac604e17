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
    /// Round trip of an update, with an ideal handler: how far from the least possible?
    Micro(micro::MicroArgs),
    /// Packet buffers that are the log, against copying into one, and against storing nothing (PASTE).
    Packets(packets::PacketsArgs),
    /// What one packet costs the pipeline in the kernel: its program alone, on one core.
    Pipeline(pipeline::PipelineArgs),
    /// Redis behind pmnet, Redis alone, and the most that any server of its protocol can do here.
    Redis(redis::RedisArgs),
    /// Traffic of others through the switch, with and without a device: what does pmnet cost them?
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

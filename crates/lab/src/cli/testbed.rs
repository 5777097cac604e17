//! `pmnet-lab testbed`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::testbed::{CLIENTS_MAX, DEVICES_MAX, Layout, down, exec, up};

const EXAMPLES: &str = "\
Example: a device between a client and a server, by hand
  pmnet-lab testbed up --devices 1
  pmnet-lab testbed exec server  pmnet server --listen 10.51.0.200:51500 --store null: --insecure &
  pmnet-lab testbed exec device1 pmnet device --listen 10.51.0.101:51000 --next 10.51.0.200:51500 --insecure \\
    --log /dev/shm/d1.pmlog --media dram &
  pmnet-lab testbed exec client1 pmnet-lab load --via 10.51.0.101:51000 --seconds 5
  pmnet-lab testbed down

Needs root, iproute2 and ethtool. The network of the machine itself is not changed.";

/// The command line of `pmnet-lab testbed`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TestbedCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make the testbed: clients, devices in a row (switches with an address), and a server.
    Up {
        /// Number of clients, at 10.51.0.1 and so on.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(CLIENTS_MAX)))]
        clients: u8,
        /// Number of devices in a row, at 10.51.0.101 and so on; 0: clients and server without a device.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=i64::from(DEVICES_MAX)))]
        devices: u8,
        /// Leave all ports of the devices free, for a chain of devices in the kernel. Otherwise the ports towards the
        /// server have an XDP program that lets all packets pass.
        #[arg(long)]
        chain: bool,
        /// Print the names and addresses of the nodes as one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Run a command inside a node, and end with the command's exit code.
    Exec {
        /// Name of the node: client1, device1, server, …
        name: String,
        /// The command with its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// End the programs in the testbed and remove the testbed, also the rest of one that crashed.
    Down,
}

/// Runs the command.
pub fn main(command: &TestbedCommand) -> anyhow::Result<bool> {
    match &command.action {
        Action::Up {
            clients,
            devices,
            chain,
            json,
        } => {
            let layout = up(*clients, *devices, *chain)?;
            if *json {
                println!("{}", serde_json::to_string(&layout)?);
            } else {
                print!("{}", text(&layout));
            }
        }
        Action::Exec { name, command } => match exec(name, command)? {},
        Action::Down => {
            let removed = down()?;
            if removed.nodes.is_empty() {
                println!("there was no testbed");
            } else {
                println!(
                    "removed {}; programs that were still running inside and were ended: {}",
                    removed.nodes.join(", "),
                    removed.processes
                );
            }
        }
    }
    Ok(true)
}

fn text(layout: &Layout) -> String {
    let mut text = String::new();
    for node in &layout.nodes {
        let address = |address: Option<String>| address.unwrap_or_else(|| "-".into());
        text += &format!(
            "{:<10} {:<13} {:<10} {}{}\n",
            node.name,
            address(node.ipv4.map(|ip| ip.to_string())),
            address(node.ipv6.map(|ip| ip.to_string())),
            node.interface,
            if node.ports.is_empty() {
                String::new()
            } else {
                format!(", a bridge over {}", node.ports.join(", "))
            }
        );
    }
    text + "try: pmnet-lab testbed exec client1 ping -c 3 10.51.0.200\n\
            end: pmnet-lab testbed down\n"
}

//! Reads the metrics of processes once a second, as Prometheus does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::setup::Running;

const EVERY: Duration = Duration::from_secs(1);
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Part of a log line, as text or as JSON, that states the address of the status port. The system
/// has chosen the port.
const OPEN: &str = "the status port is open";
const BEFORE_ADDRESS: [&str; 2] = ["at=", "\"at\":\""];

/// Returns the status ports of a set-up.
pub fn ports(running: &Running) -> Vec<SocketAddr> {
    let logs = running.processes().into_iter();
    logs.filter_map(|(_, process)| port(&process.stderr()))
        .collect()
}

fn port(log: &str) -> Option<SocketAddr> {
    let line = log.lines().rfind(|line| line.contains(OPEN))?;
    let mut found = BEFORE_ADDRESS
        .iter()
        .filter_map(|before| line.split(before).nth(1));
    found.next()?.split([' ', '"']).next()?.parse().ok()
}

/// Runs `work`, and meanwhile reads the metrics of these ports: at the start, and then once a
/// second.
///
/// # Errors
/// `work` fails, or a port does not answer with metrics.
pub fn beside<T>(
    ports: &[SocketAddr],
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let (over, is_over) = channel::<()>();
        let asks = (!ports.is_empty()).then(|| scope.spawn(move || ask_all(ports, &is_over)));
        let done = work();
        drop(over);
        if let Some(asks) = asks {
            asks.join().expect("it does not panic")?;
        }
        done
    })
}

fn ask_all(ports: &[SocketAddr], is_over: &Receiver<()>) -> anyhow::Result<()> {
    loop {
        for port in ports {
            ask(*port).with_context(|| format!("the status port {port}"))?;
        }
        if is_over.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
    }
}

fn ask(port: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect_timeout(&port, ANSWER_MAX)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(
        text.starts_with("HTTP/1.1 200") && text.contains("pmnet_"),
        "no metrics: {text}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_in_both_kinds_of_logs() {
        let text = "INFO a\nINFO pmnet: the status port is open at=127.0.0.1:7 more\nINFO b";
        let json = r#"{"fields":{"message":"the status port is open","at":"127.0.0.1:7"}}"#;
        for log in [text, json] {
            assert_eq!(port(log), "127.0.0.1:7".parse().ok());
        }
        assert_eq!(port("INFO a"), None);
    }
}

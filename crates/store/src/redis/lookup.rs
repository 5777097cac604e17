//! Looks up the names of hosts without waiting long for a slow resolver.
//!
//! The system's resolver may need many seconds, so a thread asks it. The caller waits at most 300 ms, and then gets an
//! error that means "ask again". The thread's answer is kept until the next call.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time for which a caller waits for an answer.
const PATIENCE: Duration = Duration::from_millis(300);

type Answer = Receiver<Result<Vec<SocketAddr>>>;

/// Lookups that were started and whose answer was not taken yet, by name and port. There is at most one lookup for each
/// host name of a store.
static ASKED: Mutex<BTreeMap<(String, u16), Answer>> = Mutex::new(BTreeMap::new());

/// Returns the addresses of a host.
///
/// # Errors
/// The system's errors. [`ErrorKind::TimedOut`] means that there is no answer yet.
pub fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = (host.to_owned(), port);
    within(PATIENCE, &name, |name| {
        Ok(name.to_socket_addrs()?.collect())
    })
}

fn within(
    patience: Duration,
    name: &(String, u16),
    resolve: impl FnOnce((&str, u16)) -> Result<Vec<SocketAddr>> + Send + 'static,
) -> Result<Vec<SocketAddr>> {
    let asked = || ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let earlier = asked().remove(name);
    let answer = match earlier {
        Some(answer) => answer,
        None => {
            let (tell, answer) = channel();
            let place = name.clone();
            let ask = move || {
                // The caller may no longer be waiting.
                let _ = tell.send(resolve((&place.0, place.1)));
            };
            std::thread::Builder::new()
                .name("lookup".into())
                .spawn(ask)?;
            answer
        }
    };
    match answer.recv_timeout(patience) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => {
            asked().insert(name.clone(), answer);
            let text = format!("the system's resolver has not yet said where {} is", name.0);
            Err(Error::new(ErrorKind::TimedOut, text))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::other("the thread that looks up a name has ended"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_that_takes_its_time_is_not_waited_for_and_its_answer_is_kept() {
        let name = ("slow.pmnet.test".to_owned(), 7);
        let found = SocketAddr::from(([127, 0, 0, 1], 7));
        let (go, gone) = channel::<()>();
        let soon = Duration::from_millis(20);
        let first = within(soon, &name, move |_| {
            gone.recv().map_err(Error::other)?;
            Ok(vec![found])
        });
        assert_eq!(first.unwrap_err().kind(), ErrorKind::TimedOut);
        let again = within(soon, &name, |_| unreachable!("it is asked already"));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::TimedOut);
        go.send(()).unwrap();
        let then = within(Duration::from_secs(10), &name, |_| {
            unreachable!("it is asked already")
        });
        assert_eq!(then.unwrap(), [found]);
        let anew = within(Duration::from_secs(10), &name, |_| Ok(Vec::new()));
        assert_eq!(anew.unwrap(), [], "an answer counts once");
        assert_eq!(addresses("::1", 9).unwrap(), ["[::1]:9".parse().unwrap()]);
    }
}

//! Tests of ports that other processes use, and of hosts with several addresses.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::chain::{Client, Places, Running, eventually, product, serves};
use crate::namespaces::{Two, missing, run};
use crate::skip::skip;

#[test]
fn a_port_that_is_taken_for_a_while_is_waited_for_and_its_owner_named() {
    let places = Places::new();
    let (server_at, device_at) = (places.server_at(), places.device_at());
    let taken = [&server_at, &device_at].map(|at| UdpSocket::bind(at.as_str()).unwrap());
    let store = places.store();
    let [mut server, mut device, front] = places.start_all(&store);
    let owner = format!("process {} (", std::process::id());
    for running in [&mut server, &mut device] {
        running.says(&owner);
        running.says("It is waited for 10 s");
    }
    assert!(!places.path("device.pmlog").exists());
    drop(taken);
    serves(places.front_at());
    // A device that waits for its port can be asked to stop.
    device.stop();
    let _taken = UdpSocket::bind(&device_at).unwrap();
    let mut device = Running::logged(places.device(&server_at), &places.path("device.err"));
    device.says("It is waited for 10 s");
    device.stop();
    // The wait for the port must have an end.
    let began = Instant::now();
    let mut device = Running::logged(places.device(&server_at), &places.path("device.err"));
    assert_eq!(device.wait().code(), Some(1));
    assert!(began.elapsed() > Duration::from_secs(9));
    assert!(
        device.log().contains("listens there: choose another port"),
        "{}",
        device.log()
    );
    drop((server, front));
}

#[test]
fn a_host_answers_under_the_address_that_was_asked() {
    let places = Places::new();
    let port = |at: &str| at.rsplit_once(':').unwrap().1.to_owned();
    let (server_port, device_port) = (port(&places.server_at()), port(&places.device_at()));
    let store = places.store();
    let server = places.server_on(&format!("0.0.0.0:{server_port}"), &store);
    let next = format!("127.0.0.3:{server_port}");
    let device = places.device_on(&format!("0.0.0.0:{device_port}"), &next);
    let _server = Running::logged(server, &places.path("server.err"));
    let _device = Running::logged(device, &places.path("device.err"));
    // The other front uses the other address of the device at the same time.
    let _other = Running::logged(places.front(&places.device_at()), &places.path("other.err"));
    serves(places.front_at());
    let more = Places::new();
    let front = more.front(&format!("127.0.0.2:{device_port}"));
    let front = Running::logged(front, &more.path("front.err"));
    serves(more.front_at());
    let mut client = Client::connect(more.front_at()).unwrap();
    assert_eq!(client.call("INCR n").unwrap(), ":1");
    let mut client = Client::connect(places.front_at()).unwrap();
    assert_eq!(client.call("INCR n").unwrap(), ":2");
    front.signal(Signal::TERM);
}

/// The machine has several IPv6 addresses, some of which are valid at one interface only.
#[test]
fn over_ipv6_too_and_at_one_interface() {
    if let Some(what) = missing(&["ip", "ethtool"]) {
        return skip(&what);
    }
    let (two, places) = (Two::new(), Places::new());
    for (place, interface, addresses) in [
        (0, "va", &["fd09::2/64", "fd09::3/64", "fe80::2/64"][..]),
        (1, "vb", &["fd09::1/64", "fe80::1/64"]),
    ] {
        for address in addresses {
            let namespace = &two.0[place];
            run(&format!(
                "ip -n {namespace} -6 addr add {address} dev {interface} nodad"
            ));
        }
    }
    let mut all = Vec::new();
    let mut chain = |listen: &str, next: &str, via: &[&str], port: u16| {
        let at = |host: &str, more: u16| format!("[{host}]:{}", port + more);
        let path = |name: &str| places.path(&format!("{name}{port}"));
        let store = format!("packet:{}?size=16M", path("store").display());
        let server = places.server_on(&at(listen, 500), &store);
        let mut device = product();
        device
            .args([
                "device",
                "--listen",
                &at(listen, 0),
                "--next",
                &at(next, 500),
            ])
            .args(["--media", "dram", "--log-size", "1M", "--log"])
            .arg(path("log"));
        all.push(Running::logged(two.inside(0, &server), &path("server.err")));
        all.push(Running::logged(two.inside(0, &device), &path("device.err")));
        for (number, via) in via.iter().enumerate() {
            let own = format!("127.0.0.1:{}", usize::from(port) - 40_000 + number);
            let mut front = product();
            front.args(["redis", "--listen", &own, "--via", &at(via, 0)]);
            let log = path(&format!("front{number}.err"));
            all.push(Running::logged(two.inside(1, &front), &log));
            let mut client = two.client(&own);
            eventually("an INCR is answered", || {
                client
                    .call("INCR n")
                    .is_ok_and(|reply| reply.starts_with(':'))
            });
        }
    };
    chain(
        "::",
        "fd09::3",
        &["fd09::2", "fd09::3", "fe80::2%vb"],
        51_000,
    );
    chain("fe80::2%va", "fe80::2%va", &["fe80::2%vb"], 51_100);
    // IPv4 clients connect to the same socket.
    chain("::", "::1", &["::ffff:10.9.0.2"], 51_200);
}

/// Regression test: the client was told that Redis could not be asked. The reason was missing, and nothing was logged.
#[test]
fn a_front_that_asks_for_users_says_that_the_server_does_not_run() {
    let places = Places::new();
    let store = places.store();
    let server = Running::logged(places.server(&store), &places.path("server.err"));
    let _device = Running::logged(
        places.device(&places.server_at()),
        &places.path("device.err"),
    );
    let first = Running::logged(places.front(&places.device_at()), &places.path("front.err"));
    serves(places.front_at());
    first.stop();
    server.stop();
    let mut front = places.front(&places.device_at());
    front.args(["--users-of-redis", "--deadline-ms", "1500"]);
    let mut front = Running::logged(front, &places.path("front.err"));
    let mut client = None;
    eventually("the front listens", || {
        client = Client::connect(places.front_at()).ok();
        client.is_some()
    });
    let reply = client.unwrap().call("GET x").unwrap();
    let why = "the pmnet server has not said yet where its store is";
    assert!(
        reply.contains("it is not known what this client may do") && reply.contains(why),
        "{reply}"
    );
    front.says(why);
}

/// A load balancer like the one of a Kubernetes node: each flow stays with the device that got its first packet.
fn balance(listen: UdpSocket, to: std::sync::Arc<std::sync::Mutex<std::net::SocketAddr>>) {
    listen
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    std::thread::spawn(move || {
        let mut flows = std::collections::HashMap::new();
        let mut bytes = [0; 2048];
        // The balancer's thread ends when the test drops its handle.
        while std::sync::Arc::strong_count(&to) > 1 {
            let Ok((length, from)) = listen.recv_from(&mut bytes) else {
                continue;
            };
            let flow: &UdpSocket = flows.entry(from).or_insert_with(|| {
                let flow = UdpSocket::bind("127.0.0.1:0").unwrap();
                flow.connect(*to.lock().unwrap()).unwrap();
                let (back, listen) = (flow.try_clone().unwrap(), listen.try_clone().unwrap());
                back.set_read_timeout(Some(Duration::from_secs(30)))
                    .unwrap();
                std::thread::spawn(move || {
                    let mut bytes = [0; 2048];
                    let is_fatal =
                        |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
                    loop {
                        match back.recv(&mut bytes) {
                            Ok(length) => drop(listen.send_to(&bytes[..length], from)),
                            Err(error) if is_fatal(&error) => return,
                            // At the moment no process listens at the device's address.
                            Err(_) => {}
                        }
                    }
                });
                flow
            });
            let _ = flow.send(&bytes[..length]);
        }
    });
}

/// Regression test: the front kept its port, and the node kept the flow. So the front asked the device's old address
/// for ever.
#[test]
fn a_front_finds_a_device_that_has_moved_behind_one_address() {
    let places = Places::new();
    let store = places.store();
    let _server = Running::logged(places.server(&store), &places.path("server.err"));
    let device_on = |at: &str| {
        let device = places.device_on(at, &places.server_at());
        Running::logged(device, &places.path("device.err"))
    };
    let port = places.device_at().rsplit_once(':').unwrap().1.to_owned();
    let device = device_on(&places.device_at());
    let service = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = service.local_addr().unwrap().to_string();
    let to = std::sync::Arc::new(std::sync::Mutex::new(places.device_at().parse().unwrap()));
    balance(service, to.clone());
    let _front = Running::logged(places.front(&at), &places.path("front.err"));
    serves(places.front_at());
    let mut client = Client::connect(places.front_at()).unwrap();
    assert_eq!(client.call("INCR n").unwrap(), ":1");
    device.stop();
    let elsewhere = format!("127.0.0.5:{port}");
    let _device = device_on(&elsewhere);
    *to.lock().unwrap() = elsewhere.parse().unwrap();
    let begun = Instant::now();
    serves(places.front_at());
    println!("served again after {:?}", begun.elapsed());
    // The session continues from the front's new port.
    assert_eq!(client.call("INCR n").unwrap(), ":2");
}

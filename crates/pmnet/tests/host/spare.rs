//! A spare that waits for a place in a chain.

use crate::chain::{Places, Running};

#[test]
fn a_spare_that_waits_does_not_say_that_the_server_is_silent() {
    let places = Places::new();
    let store = places.store();
    let server = places.server(&store);
    let _server = Running::logged(server, &places.path("server.err"));
    let first = places.device(&places.server_at());
    let mut first = Running::logged(first, &places.path("first.err"));
    first.says("serving");
    let mut spare =
        places.device_without_log(&places.front_at().to_string(), &places.server_at(), "dram");
    spare
        .args(["--join", "--log"])
        .arg(places.path("spare.pmlog"));
    let mut spare = Running::logged(spare, &places.path("spare.err"));
    spare.says("is ready to join the chain");
    spare.says("still waiting");
    let log = spare.log();
    assert!(!log.contains("no answer from the server"), "{log}");
    spare.stop();
}

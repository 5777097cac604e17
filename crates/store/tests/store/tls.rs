//! Redis over TLS.

#[path = "../../../../tests/shared/certificates.rs"]
mod certificates;

use crate::support::{Redis, batch, claims::Port, read, single};
use pmnet_server::StoreError;

#[test]
fn a_store_over_tls_is_a_store() {
    let files = certificates::files();
    let port = Port::claim().expect("a port");
    let tls_port = port.number().to_string();
    let (certificate, key) = files.pair("server");
    let [certificate, key, ca] =
        [certificate, key, files.path("ca.pem")].map(|path| path.to_str().unwrap().to_owned());
    // Clients need a certificate: that is what Redis asks for if nothing is said.
    let options = [
        ["--tls-port", &tls_port],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &ca],
        ["--requirepass", "s3cret"],
    ]
    .concat();
    let Some(redis) = Redis::start(&options) else {
        return;
    };
    let (client, client_key) = files.pair("client");
    let identity = format!("cert={}&key={}", client.display(), client_key.display());
    let open = |query: &str, password: Option<&str>| {
        let url = format!("rediss://localhost:{tls_port}?{query}");
        pmnet_store::open_with(&url, password, None, 0).unwrap()
    };
    let good = format!("ca={ca}&{identity}");
    let mut store = open(&good, Some("s3cret"));
    assert_eq!(store.load(), Ok(vec![]));
    let large = "x".repeat(5_000_000);
    let updates = [single(&format!("SET large {large}")), single("SET k v")];
    assert_eq!(store.apply(&batch(&updates, 1)), Ok(0));
    let reply = read(&mut *store, single("GET large"));
    assert!(
        reply == format!("$5000000\r\n{large}\r\n"),
        "{}",
        reply.len()
    );
    assert_eq!(redis.call_as("s3cret", &["GET", "k"]), "+OK\r\n$1\r\nv\r\n");
    let refused = |query: &str, said: &str| {
        let error = open(query, Some("s3cret")).load().unwrap_err();
        let StoreError::Retry(text) = error else {
            panic!("{error:?}");
        };
        assert!(text.contains(said) && !text.contains("s3cret"), "{text}");
    };
    let other = files.path("other.pem");
    refused(
        &format!("ca={}&{identity}", other.display()),
        "TLS: invalid peer certificate",
    );
    refused(&format!("ca={ca}"), "Redis at localhost");
    let error = open(&good, Some("wr0ng")).load().unwrap_err();
    assert!(
        matches!(&error, StoreError::Fatal(text) if text.contains("password")),
        "{error:?}"
    );
}

//! Tests a NIC as `pmnet doctor --verbs` does.
use std::path::Path;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let begun = std::time::Instant::now();
    let report = pmnet_verbs::order::test(
        &args[1],
        args[2].parse().unwrap(),
        Path::new("/dev/shm/x"),
        (8, 2000),
    );
    println!("{report:?} in {:?}", begun.elapsed());
}

//! The ordered log: hostile images, and histories of operations against a model.

pub mod forge;
pub mod image;
pub mod model;
pub mod operations;
pub mod slots;

use pmnet_log::{Decision, Expected, Identity, Log, Parameters, Scan, format};

use crate::input::Input;
use crate::medium::Forgetful;

/// The identity of these logs.
pub const IDENTITY: Identity = Identity {
    log_uuid: 0x1234_5678_9abc_def0_0fed_cba9_8765_4321,
    device: 7,
    shard: 3,
};

/// The owner's expectation.
pub const EXPECTED: Expected = Expected {
    device: 7,
    shard: 3,
    parameters: None,
};

/// The logs are small, so that entries and frames wrap soon; some consist of packet buffers.
fn parameters(input: &mut Input<'_>) -> Parameters {
    let (entries, buffers) = input.pick(&[(64, false), (64, true), (128, false)]);
    match input.pick(&[4096, 8192, 32_768]) {
        bytes @ 32_768 if buffers => Parameters::buffers(entries, bytes, 2048),
        bytes => Parameters::ring(entries, bytes),
    }
}

/// Returns a new log.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn formatted(parameters: &Parameters) -> Forgetful {
    let mut medium = Forgetful::new(parameters.image_bytes());
    format(&mut medium, &IDENTITY, parameters).expect("a blank medium takes a log");
    medium
}

/// Opens and repairs a medium that must have a valid log.
///
/// # Panics
/// If the log is invalid.
#[must_use]
pub fn recover(medium: Forgetful) -> Log<Forgetful> {
    let scan = Scan::open(medium, Some(EXPECTED)).expect("a log of ours opens");
    let decision = scan.decide();
    assert!(matches!(decision, Decision::Keep { .. }), "{decision:?}");
    scan.repair(decision).expect("it can be repaired")
}

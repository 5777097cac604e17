//! The message of a test that cannot run here. Tests include this file by its path.

/// Prints that a test, or a part of one, is left out; its caller returns. `tests/run.sh` counts
/// this line and no other, so no test may leave a part out in another way.
///
/// # Panics
/// If `CI` is set: in CI, a test that did not run must not look like a success.
pub fn skip(reason: &str) {
    assert!(
        std::env::var_os("CI").is_none(),
        "CI must run this: {reason}"
    );
    println!("SKIPPED: {reason}");
}

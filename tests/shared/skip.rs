//! The message of a test that cannot run on this machine. Tests include this source file by its
//! path.

/// Prints that a test, or a part of a test, is left out. The caller must then return.
/// `tests/run.sh` counts only this line, so no test may leave out a part in another way.
///
/// # Panics
/// Panics if `CI` is set, because in CI a test that did not run must not look like a success.
pub fn skip(reason: &str) {
    assert!(
        std::env::var_os("CI").is_none(),
        "CI must run this: {reason}"
    );
    println!("SKIPPED: {reason}");
}

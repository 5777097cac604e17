//! What a test says that cannot run here. Included by its path.

/// Says that a test, or a part of one, is left out; its caller returns. `tests/run.sh` counts this line, and only
/// this: no test may leave something out in another way.
///
/// # Panics
/// Where `CI` is set: there, what is not tested must not look like a success.
pub fn skip(reason: &str) {
    assert!(
        std::env::var_os("CI").is_none(),
        "CI must run this: {reason}"
    );
    println!("SKIPPED: {reason}");
}

//! libFuzzer around the targets; `PMNET_FUZZ_TARGET` names the one to run. Built by `fuzz/run.sh`.

#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("PMNET_FUZZ_TARGET").unwrap_or_default();
        let Some(target) = pmnet_fuzz::target(&name) else {
            let known: Vec<&str> = pmnet_fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
            panic!("PMNET_FUZZ_TARGET={name}: not one of {}", known.join(", "));
        };
        TARGET.set(target).expect("set once");
    },
    |data: &[u8]| {
        if let Some(run) = TARGET.get() {
            run(data);
        }
    }
);

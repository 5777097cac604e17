//! The flush instructions of this processor. The best one is determined once.

#![allow(unsafe_code)]

/// An instruction that writes a cache line back to memory; the best instruction comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// `CLWB`: the line may stay in the cache; several flushes run at the same time.
    Clwb,
    /// `CLFLUSHOPT`: the line leaves the cache; several flushes run at the same time.
    ClflushOpt,
    /// `CLFLUSH`: the line leaves the cache; flushes run one after the other.
    Clflush,
}

impl Instruction {
    /// Returns the name of the instruction, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Instruction::Clwb => "clwb",
            Instruction::ClflushOpt => "clflushopt",
            Instruction::Clflush => "clflush",
        }
    }

    /// Returns the best instruction that this processor has; `None` if pmnet knows none for it (known gap G74).
    #[must_use]
    pub fn of_this_processor() -> Option<Instruction> {
        #[cfg(target_arch = "x86_64")]
        let found = Some(Instruction::best(extended_features()));
        #[cfg(not(target_arch = "x86_64"))]
        let found = None;
        found
    }

    /// Returns the best instruction for these bits of CPUID leaf 7, register EBX. Every x86-64 has `CLFLUSH`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fn best(features: u32) -> Instruction {
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        if features & CLWB != 0 {
            Instruction::Clwb
        } else if features & CLFLUSHOPT != 0 {
            Instruction::ClflushOpt
        } else {
            Instruction::Clflush
        }
    }
}

/// Returns CPUID leaf 7, subleaf 0, register EBX; 0 if there is no such leaf.
#[cfg(target_arch = "x86_64")]
fn extended_features() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const EXTENDED: u32 = 7;
    if __cpuid(0).eax < EXTENDED {
        return 0;
    }
    __cpuid_count(EXTENDED, 0).ebx
}

/// Begins to write back the cache line of `address`.
///
/// # Safety
/// `address` must be inside a mapping, and the processor must have `instruction`.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn flush_line(instruction: Instruction, address: *const u8) {
    use std::arch::asm;
    // SAFETY: none of these instructions changes memory or registers; the caller guarantees the address and the
    // instruction. Because `nomem` is not given, the compiler assumes that they read all memory. So every earlier store
    // comes before them.
    unsafe {
        match instruction {
            Instruction::Clwb => asm!("clwb [{}]", in(reg) address, options(nostack)),
            Instruction::ClflushOpt => asm!("clflushopt [{}]", in(reg) address, options(nostack)),
            Instruction::Clflush => asm!("clflush [{}]", in(reg) address, options(nostack)),
        }
    }
}

/// Waits for all earlier flushes and stores.
#[cfg(target_arch = "x86_64")]
pub(crate) fn store_fence() {
    // SAFETY: the instruction changes nothing. It is a fence for the compiler too, because the compiler must assume
    // that it accesses memory.
    unsafe { std::arch::asm!("sfence", options(nostack, preserves_flags)) }
}

/// Never called: no medium that flushes is created on a processor without a known instruction.
///
/// # Safety
/// No condition.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn flush_line(_instruction: Instruction, _address: *const u8) {}

/// Keeps the order of stores.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn store_fence() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::Instruction;

    #[test]
    fn the_best_instruction_of_those_that_are_there() {
        let (opt, clwb) = (1 << 23, 1 << 24);
        for (features, best) in [
            (0, Instruction::Clflush),
            (opt, Instruction::ClflushOpt),
            (clwb, Instruction::Clwb),
            (opt | clwb, Instruction::Clwb),
            (!(opt | clwb), Instruction::Clflush),
        ] {
            assert_eq!(Instruction::best(features), best, "{features:#x}");
        }
    }

    /// The kernel lists features that CPUID reports. It may leave one out, but it never adds one.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn this_processor_as_the_kernel_sees_it() {
        let found = Instruction::of_this_processor().unwrap();
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = info.lines().find(|line| line.starts_with("flags"));
        let flags: Vec<&str> = flags.unwrap().split_whitespace().collect();
        assert!(flags.contains(&found.name()), "{found:?}: {flags:?}");
        if flags.contains(&"clwb") {
            assert_eq!(found, Instruction::Clwb);
        }
    }
}

//! The CPU's own counter of ticks, used as a clock. A read takes one instruction and no system call. If the counter is invariant, all cores
//! read the same value.

/// Returns the counter in ticks. The counter is TSC on x86-64, CNTVCT on aarch64, and CLOCK_MONOTONIC in nanoseconds on other processors.
/// Takes about 10 ns. The call is no barrier, so the processor can read the counter a few instructions early or late.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: every x86-64 has RDTSC, and Linux leaves it enabled for user space unless a process asks otherwise.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let ticks: u64;
        // SAFETY: Linux enables user-space reads of the virtual counter; the instruction touches no memory.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    monotonic_ns()
}

/// Returns [`ticks`], but reads the counter only after every earlier load has its value. Use this function at the end of a measurement:
/// [`ticks`] could read the counter before the last cache lines of a message have arrived. Takes about 15 ns.
#[inline]
pub fn ticks_after_loads() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: LFENCE is part of SSE2, which every x86-64 has; it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_lfence()
    };
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a load barrier and an instruction barrier, both allowed in user space.
    unsafe {
        std::arch::asm!("dsb ishld", "isb", options(nostack, preserves_flags))
    };
    ticks()
}

/// CLOCK_MONOTONIC in nanoseconds. Takes about 25 ns.
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .expect("CLOCK_MONOTONIC exists on every Linux");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Ticks per second, if the hardware states the rate. `None` if the rate must be measured.
pub fn declared_hz() -> Option<u64> {
    #[cfg(target_arch = "aarch64")]
    {
        let hz: u64;
        // SAFETY: Linux enables user-space reads of the counter's frequency; the instruction touches no memory.
        unsafe { std::arch::asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack)) };
        return Some(hz);
    }
    #[cfg(not(target_arch = "aarch64"))]
    None
}

/// Whether [`ticks`] runs at a constant rate, never stops, and agrees on all cores. On x86-64 there are two conditions: CPUID has the
/// invariant-TSC bit, and the kernel offers the TSC as a clock source. If the kernel notices that the TSC drifts, it withdraws this clock
/// source.
pub fn is_invariant() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let bit = |leaf: u32, bit: u32| std::arch::x86_64::__cpuid(leaf).edx & (1 << bit) != 0;
        let has_leaf = std::arch::x86_64::__cpuid(0x8000_0000).eax >= 0x8000_0007;
        let offered =
            std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/available_clocksource");
        has_leaf
            && bit(0x8000_0007, 8)
            && offered.is_ok_and(|names| names.split_whitespace().any(|n| n == "tsc"))
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    cfg!(all(target_arch = "aarch64", not(miri)))
}

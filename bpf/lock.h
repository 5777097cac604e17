/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * The shard's lock, and waking user space.
 *
 * The lock is one word that a CPU exchanges for 1. The lock is not a bpf_spin_lock, for two
 * reasons: bpf_spin_lock disables interrupts, which costs as much as the append, and a CPU waits
 * for it without bound. With this lock a CPU gives up after PM_LOCK_TRIES and passes its packet to
 * user space.
 *
 * Invariants: a holder of the lock makes at most one append, or the decision about one READ. The
 * holder calls no helpers except look-ups in arrays (which the kernel inlines), and its only loop
 * is the copy of the payload. A program runs to its end, so the owner always releases the lock.
 * `sleeps` is set and cleared only under the lock.
 *
 * Spec: docs/spec/pipeline.md §3, "The lock" and "Wake-ups". This file must not know what is in a
 * packet or in the log.
 */
#pragma once

#include "maps.h"

/* Number of tries before a CPU gives up: they take some tens of microseconds. */
#define PM_LOCK_TRIES 2048

/* Takes a contended lock. The function is global, so that the verifier checks its loop once. */
__attribute__((noinline)) bool try_lock_contended(struct pm_shard *shard)
{
	if (!shard)
		return false;
#pragma clang loop unroll(disable)
	for (int i = 0; i < PM_LOCK_TRIES; i++)
		if (!__sync_lock_test_and_set(&shard->taken, 1))
			return true;
	return false;
}

static __always_inline bool try_lock(struct pm_shard *shard)
{
	return !__sync_lock_test_and_set(&shard->taken, 1) || try_lock_contended(shard);
}

static __always_inline void unlock(struct pm_shard *shard)
{
	asm volatile("" ::: "memory");
	*(volatile __u32 *)&shard->taken = 0;
}

/*
 * Has user space asked to be woken? A caller that gets true must call wake_user_space(), once,
 * after unlock().
 *
 * The lock is held, both in this function and when user space asks (the program wake_me). So the
 * request that this function takes was made before this packet was appended. It cannot be a later
 * request: user space makes a later request only after it has seen this append and emptied the
 * ring.
 */
static __always_inline bool take_wakeup_request(struct pm_shard *shard)
{
	if (!shard->sleeps)
		return false;
	shard->sleeps = 0;
	return true;
}

/* Wakes user space, if @wanted. The lock is not held. */
static __always_inline void wake_user_space(bool wanted)
{
	__u32 word = 1;

	if (wanted)
		bpf_ringbuf_output(&pm_wakeups, &word, sizeof(word), BPF_RB_FORCE_WAKEUP);
}

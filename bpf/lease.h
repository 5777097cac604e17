/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Leases: may this device answer clients now?
 *
 * Invariants: every answer that needs a lease (acknowledgements and answers to READs) passes
 * gate(), after the decision and before anything of the packet is sent. Without a lease only the
 * answer is dropped; what was appended or committed stays so. The lock is not held. User space sets
 * the deadline; the pipeline only compares the time with it. So if the process has ended, the
 * pipeline stops answering by itself.
 *
 * Spec: docs/spec/pipeline.md §3, "Leases", and docs/spec/protocol.md §14. This file must not set
 * the deadline; use another list of what needs a lease than `ANSWERS` in
 * crates/proto/src/device/lease.rs.
 */
#pragma once

#include "maps.h"

static __always_inline bool may_answer(const struct pm_shard *shard)
{
	__u64 until = *(volatile __u64 *)&shard->answers_until;

	return until == PM_FOR_EVER || bpf_ktime_get_boot_ns() < until;
}

/* Returns @verdict if it needs no lease or there is a lease, else PM_SILENCED. */
static __always_inline enum pm_verdict gate(const struct pm_maps *m, enum pm_verdict verdict)
{
	switch (verdict) {
	case PM_ACK:
	case PM_ACK_COMMITTED:
	case PM_HIT:
	case PM_MISS:
		if (may_answer(m->shard))
			return verdict;
		COUNT(m->counts, silenced);
		return PM_SILENCED;
	default:
		return verdict;
	}
}

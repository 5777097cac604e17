/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * The maps, the constants that the loader sets, and the look-ups: what the pipeline and user space
 * share.
 *
 * Invariants: the maps are pinned and outlive every process. The loader
 * (crates/dataplane/src/xdp/load.rs) gives pm_image, pm_sessions, pm_session_rows, pm_buckets and
 * pm_closed their sizes. Every field has one writer at a time, which
 * crates/dataplane/src/xdp/shared.rs names, and is read and written as a whole word.
 *
 * Spec: docs/spec/pipeline.md §3. This file must not decide anything about a packet, or write to
 * the log.
 */
#pragma once

#include "types.h"

/* The loader sets these before the verifier runs, so to the verifier they are constants. */
const volatile __u64 pm_entries;	/* of the log; a power of two */
const volatile __u64 pm_frame_bytes;	/* size of the frame ring; a power of two */
const volatile __u64 pm_address_high;	/* the shard's address: IPv6, or ::ffff:0:0/96 and IPv4, */
const volatile __u64 pm_address_low;	/* in two words, as in packets; the first is 0 for IPv4 */
const volatile __u32 pm_port;		/* the shard's UDP port, in network byte order */
const volatile __u32 pm_session_mask;	/* a session's preferred row: these bits of its id */
const volatile __u32 pm_bucket_mask;	/* a key's bucket: these bits of its mixed hash */

/*
 * In switch mode, the address of the device's own socket, to which the pipeline passes packets for
 * user space. The neighbouring hops send to this address.
 */
const volatile __u32 pm_own_address;	/* IPv4, as in packets; 0: not in switch mode */
const volatile __u8 pm_own_mac[8];

/* The image of the log (ordered-log.md §3), and after it padding that only the verifier needs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4096);
} pm_image SEC(".maps");

/* State of the shard. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_shard);
} pm_shards SEC(".maps");

/* The neighbours of this device in a chain. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_hops);
} pm_chain SEC(".maps");

/* Sessions, by row. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_session);
} pm_sessions SEC(".maps");

/* Session id to row, for sessions that are not in their preferred row. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} pm_session_rows SEC(".maps");

/*
 * One element for each bucket of the index of READs: what user space says about requests without an
 * order that may change its keys.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_closed);
} pm_closed SEC(".maps");

/* The index of READs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_bucket);
} pm_buckets SEC(".maps");

/* Counters, per CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_counters);
} pm_counts SEC(".maps");

/* Wakes user space. The records are empty. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} pm_wakeups SEC(".maps");

#if PM_KEYED
/* Keys between hops in the current epoch. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_hop_keys);
} pm_hop_keys SEC(".maps");

/* Keys of sessions, by row. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_session_keys);
} pm_session_keys SEC(".maps");
#endif

/*
 * Is the shard's address an IPv6 address? The addresses of its clients and hops are of the same
 * kind.
 */
static __always_inline bool is_ipv6_shard(void)
{
	return pm_address_high || (__u32)pm_address_low != 0xffff0000;
}

/* The maps that every packet needs. */
struct pm_maps {
	struct pm_shard *shard;
	struct pm_counters *counts;
	struct pm_hops *hops;
	void *image;
	const struct pm_hop_keys *keys;	/* NULL without keys */
};

/*
 * Looks up all maps. None of the look-ups can fail, but the verifier wants every pointer checked.
 */
static __always_inline bool look_up_maps(struct pm_maps *m)
{
	__u32 zero = 0;

	m->shard = bpf_map_lookup_elem(&pm_shards, &zero);
	m->counts = bpf_map_lookup_elem(&pm_counts, &zero);
	m->image = bpf_map_lookup_elem(&pm_image, &zero);
	m->hops = bpf_map_lookup_elem(&pm_chain, &zero);
	m->keys = NULL;
#if PM_KEYED
	m->keys = bpf_map_lookup_elem(&pm_hop_keys, &zero);
	if (!m->keys)
		return false;
#endif
	return m->shard && m->counts && m->image && m->hops;
}

/*
 * A session that is served in the kernel. Both pointers are NULL if the session is not served in
 * the kernel.
 */
struct pm_known {
	struct pm_session *session;
	const struct pm_session_keys *keys;	/* NULL without keys */
};

/*
 * Returns the session in this row, and fills in @known. With keys, a session without a key is not
 * served in the kernel: the function then returns NULL.
 */
static __always_inline struct pm_session *session_in(const __u32 *row, struct pm_known *known)
{
	known->session = bpf_map_lookup_elem(&pm_sessions, row);
	known->keys = NULL;
#if PM_KEYED
	known->keys = bpf_map_lookup_elem(&pm_session_keys, row);
	if (!known->keys || !(known->keys->to_head[0] | known->keys->to_head[1]))
		known->session = NULL;
#endif
	return known->session;
}

/*
 * Returns the session with this id, or NULL if it is not served in the kernel. The function looks
 * in the session's preferred row, then in the index. A free row has the id 0, which no session has.
 */
static __always_inline struct pm_session *find_session(__be64 id, struct pm_known *known)
{
	__u32 low = bpf_be64_to_cpu(id) & pm_session_mask, *row;
	struct pm_session *session = session_in(&low, known);

	if (!id)
		return NULL;
	if (session && session->id == bpf_be64_to_cpu(id))
		return session;
	row = bpf_map_lookup_elem(&pm_session_rows, &id);
	return row ? session_in(row, known) : NULL;
}

/*
 * Returns 0, but in a way that hides the value from the verifier. Added to a packet pointer, the 0
 * gives a pointer with an identity of its own: the bounds that the verifier learns for this pointer
 * inside a loop do not spread to the other packet pointers. So the verifier follows one state after
 * the loop, not one for each number of rounds.
 */
static __always_inline __u32 unknown_zero(const struct pm_shard *shard)
{
	return shard->padding;
}

#define COUNT(counts, what) ((counts)->what++)

/*
 * Counts a packet. One packet in 64 is timed: the function then returns the time. For all other
 * packets it returns 0.
 */
static __always_inline __u64 count_packet(struct pm_counters *counts)
{
	return counts->packets++ % 64 ? 0 : bpf_ktime_get_ns();
}

/* Records the duration of a timed packet, and returns @verdict. */
static __always_inline int record_time(struct pm_counters *counts, __u64 begun, int verdict)
{
	if (begun) {
		__u64 slot = (bpf_ktime_get_ns() - begun) / PM_TOOK_NS;

		if (slot >= PM_TOOK_SLOTS)
			slot = PM_TOOK_SLOTS - 1;
		OPAQUE(slot);
		counts->took[slot & (PM_TOOK_SLOTS - 1)]++;
	}
	return verdict;
}

/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Reads: the head's knowledge of the newest update of each key. An update is noted when it is
 * appended. A READ is answered with that update (HIT), or with the order that the store must have
 * reached (MISS).
 *
 * Invariants: buckets are written and read under the lock. User space alone knows which requests
 * are outstanding. User space closes the buckets of such a request, or all buckets, before it lets
 * the request pass. A READ of a closed bucket goes to user space, so user space alone decides about
 * this READ.
 *
 * Spec: docs/spec/reads.md §1, §2 and §9. This file must not know which requests are outstanding,
 * or look into an update.
 */
#pragma once

#include "hops.h"
#include "packet.h"

/*
 * Returns the hash under which the index has a key; never 0. The function is the same as mix() of
 * crates/proto.
 */
static __always_inline __u64 mix_hash(const struct pm_shard *shard, __be64 hash)
{
	__u64 mixed = bpf_be64_to_cpu(hash) ^ shard->read_secret;

	mixed = (mixed ^ mixed >> 33) * 0xff51afd7ed558ccdull;
	mixed = (mixed ^ mixed >> 33) * 0xc4ceb9fe1a85ec53ull;
	mixed ^= mixed >> 33;
	return mixed ? mixed : 1;
}

/*
 * Finds the bucket of an update that may be appended, and begins to load it. The bucket is seldom
 * in a cache. Its load can finish while the CPU works on the packet, because only note_update()
 * needs it. (A new secret comes with a new generation.)
 */
static __always_inline void expect_update(struct pm_packet *pkt, const struct pm_shard *shard)
{
	__u64 unused;
	__u32 at;

	if (!shard->reads || !pkt->header->update.key_hash)
		return;
	at = mix_hash(shard, pkt->header->update.key_hash) & pm_bucket_mask;
	pkt->bucket = bpf_map_lookup_elem(&pm_buckets, &at);
	if (pkt->bucket) {
		unused = *(volatile __u64 *)&pkt->bucket->newest;
		OPAQUE(unused);
	}
}

/* Notes an update that has just been appended. */
static __always_inline void note_update(const struct pm_packet *pkt, struct pm_shard *shard)
{
	if (!shard->reads)
		return;
	if (!pkt->bucket)
		shard->read_floor = shard->last;
	else if (pkt->header->fragment_count == bpf_htons(1))
		pkt->bucket->newest = shard->last;
	else
		pkt->bucket->newest = shard->last | PM_HIDDEN;
}

/* A READ and its answer. */
struct pm_read {
	__u32 at[PM_READ_KEYS_MAX];	/* buckets of its keys */
	__u32 count;			/* number of keys */
	__u32 frame_len;
	__u64 frame;		/* offset in the ring of the frame of the update that is shown */
	__be64 order;		/* of that update; in a MISS: the order to wait for */
	__be64 version;		/* of the index; of a HIT: 0 */
	__be64 hash;		/* of the first key, as it came */
	__u64 device_incarnation;
	bool kept;		/* an applied update may be shown too */
};

/*
 * Finds the buckets of all keys. Returns false if the payload is not the payload of a client's
 * READ.
 */
static __always_inline bool find_buckets(struct pm_packet *pkt, const struct pm_shard *shard,
					 struct pm_read *read, __u32 zero)
{
	void *hashes = pkt->payload + (zero & PACKET_MASK);

	read->count = pkt->payload_len / sizeof(__be64);
	if (pkt->payload_len > PM_READ_KEYS_MAX * sizeof(__be64) ||
	    pkt->payload_len % sizeof(__be64))
		return false;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PM_READ_KEYS_MAX; i++) {
		__be64 *hash = hashes + i * sizeof(*hash);

		if (i >= read->count)
			continue;
		if ((void *)(hash + 1) > pkt->end || !*hash)
			return false;
		read->at[i] = mix_hash(shard, *hash) & pm_bucket_mask;
		if (!i)
			read->hash = *hash;
	}
	return true;
}

static __always_inline __u64 greater(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/* Must this READ go to user space? */
static __always_inline bool must_go_up(const struct pm_packet *pkt, const struct pm_shard *shard,
				       const struct pm_hops *hops)
{
	return !shard->admits || shard->generation != pkt->generation || !shard->reads ||
	       hops->follows || *(volatile __u32 *)&shard->reads_up ||
	       *(volatile __u32 *)&shard->reads_closed || !(shard->alone || hops->next_port);
}

static __always_inline struct pm_header *frame_in(void *image, __u64 at)
{
	at &= (pm_frame_bytes - 1) & ~(PM_FRAME_ALIGN - 1ull);
	return image + 2 * PM_BLOCK_BYTES + pm_entries * PM_ENTRY_BYTES + at;
}

/*
 * Does the log have an update with this order, and does the update change the key of the READ?
 * If so, @read gets its description.
 */
static __always_inline bool show(void *image, const struct pm_shard *shard, __u64 order,
				 struct pm_read *read)
{
	const struct pm_entry *entry = entry_at(image, order);

	if (!is_whole(shard, entry, order))
		return false;
	read->frame = (__u64)entry->frame_line * PM_FRAME_ALIGN;
	read->frame_len = entry->frame_len;
	return frame_in(image, read->frame)->append.key_hash == read->hash;
}

/*
 * Answers a READ if none of its buckets is closed. The decision is the same as that of
 * Reads::answer in crates/proto.
 */
static __always_inline enum pm_verdict answer_read(const struct pm_packet *pkt,
						   const struct pm_maps *m, struct pm_read *read)
{
	enum pm_verdict verdict = PM_HAND_UP;
	struct pm_shard *shard = m->shard;
	__u64 committed, floor, need, order, above, newest = 0;

	if (!try_lock(shard)) {
		COUNT(m->counts, busy);
		return PM_HAND_UP;
	}
	if (must_go_up(pkt, shard, m->hops))
		goto out;
	order = 0;
	above = shard->shown_above;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PM_READ_KEYS_MAX; i++) {
		struct pm_bucket *bucket;
		struct pm_closed *closed;

		if (i >= read->count)
			continue;
		bucket = bpf_map_lookup_elem(&pm_buckets, &read->at[i]);
		closed = bpf_map_lookup_elem(&pm_closed, &read->at[i]);
		if (!bucket || !closed || *(volatile __u32 *)&closed->closed)
			goto out;
		/* shown_above is read after closed, so that it belongs to the open bucket. */
		asm volatile("" ::: "memory");
		above = greater(above, closed->shown_above);
		order = bucket->newest & ~PM_HIDDEN;
		newest = greater(newest, greater(order, closed->passed));
		if (bucket->newest & PM_HIDDEN)
			order = 0;
	}
	asm volatile("" ::: "memory");
	read->version = bpf_cpu_to_be64(*(volatile __u64 *)&shard->read_version);
	committed = shard->alone ? shard->last : m->hops->committed;
	floor = greater(shard->read_floor, shard->told_floor);
	need = read->count ? floor : greater(floor, committed);
	if (newest > floor)
		need = greater(need, newest < committed ? newest : committed);
	verdict = PM_MISS;
	if (!read->kept)
		above = greater(above, shard->applied);
	if (read->count == 1 && order == newest && order <= committed &&
	    order > greater(floor, above) && show(m->image, shard, order, read)) {
		need = order;
		read->version = 0;
		verdict = PM_HIT;
	}
	read->order = bpf_cpu_to_be64(need);
	read->device_incarnation = shard->device_incarnation;
out:
	unlock(shard);
	return verdict;
}

/* Writes the header of the answer. The packet has the answer's payload already. */
static __always_inline void make_answer(struct xdp_md *ctx, const struct pm_packet *pkt,
					const struct pm_known *known, const struct pm_read *read,
					__u64 kind_word, __u32 length, __be32 crc)
{
	struct pm_header *h = pkt->header;

	h->kind_word = kind_word;
	h->device_incarnation = read->device_incarnation;
	h->miss.version = read->version;
	h->hit.order = read->order;
	h->payload_len = bpf_htonl(length);
	h->payload_crc = crc;
#if PM_KEYED
	/* In a MISS the payload of the READ may still follow the header. */
	if (kind_word == PM_HIT_WORD)
		h->tag = make_tag(ctx, payload_offset(pkt), length, known->keys->to_client[0],
				  known->keys->to_client[1]);
	else
		h->tag = make_header_tag(ctx, payload_offset(pkt), known->keys->to_client[0],
					 known->keys->to_client[1]);
#else
	(void)ctx;
	(void)known;
#endif
	h->header_crc = bpf_htonl(header_crc(h));
}

/* Length of the headers before the payload, over IPv4: a READ without its hashes. */
#define PM_HEADERS                                                                                 \
	(sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr) + PM_HEADER_LEN)

/* Bytes before a packet that every driver leaves free: XDP_PACKET_HEADROOM less its own frame. */
#define PM_HEADROOM 192

/*
 * Makes the packet @more bytes longer, or shorter. If a driver leaves too little space after the
 * packet (a veth does), the headers move to the space before it: @moved is then true, and @headers
 * has the headers.
 */
static __always_inline bool resize(struct xdp_md *ctx, int more, __u8 *headers, bool *moved)
{
	if (!bpf_xdp_adjust_tail(ctx, more))
		return true;
	*moved = true;
	return more > 0 && more <= PM_HEADROOM &&
	       !bpf_xdp_load_bytes(ctx, 0, headers, PM_HEADERS) &&
	       !bpf_xdp_adjust_head(ctx, -more) &&
	       !bpf_xdp_store_bytes(ctx, 0, headers, PM_HEADERS);
}

/*
 * Is the copy of the update whole, although it was made without the lock? If the update is not
 * released yet, the copy is whole. The frame of a released update may have been overwritten during
 * the copy, so in this case the check takes the lock.
 */
static __always_inline bool is_still_whole(const struct pm_packet *pkt, const struct pm_maps *m,
					   const struct pm_read *read)
{
	__u64 order = bpf_be64_to_cpu(read->order);
	struct pm_shard *shard = m->shard;
	bool whole;

	asm volatile("" ::: "memory");
	if (*(volatile __u32 *)&shard->generation != pkt->generation)
		return false;
	if (*(volatile __u64 *)&shard->released < order)
		return true;
	if (!read->kept || !try_lock(shard))
		return false;
	whole = shard->generation == pkt->generation &&
		is_whole(shard, entry_at(m->image, order), order);
	unlock(shard);
	return whole;
}

/*
 * Puts the update that is shown into the packet, in place of the READ's payload. Returns false if
 * that cannot be done; the packet is then unchanged. In both cases, all pointers into the packet
 * are invalid afterwards.
 *
 * The lock is not held. User space writes over a frame only after it has held the shard, which
 * begins another generation.
 */
static __always_inline bool put_update(struct xdp_md *ctx, const struct pm_packet *pkt,
				       const struct pm_maps *m, struct pm_read *read,
				       __be32 *crc)
{
	const struct pm_header *frame = frame_in(m->image, read->frame);
	__u64 length = read->frame_len - PM_HEADER_LEN, bytes = length - 1;
	int more = (int)length - (int)sizeof(read->hash);
	__u8 headers[PM_HEADERS] = {};
	bool moved = false;

	/* An update longer than `longest` was cut before the path MTU shrank. */
	if (length > PM_FRAGMENT_BYTES || length > *(volatile __u32 *)&m->shard->longest ||
	    pkt->ipv6 || !resize(ctx, more, headers, &moved))
		return false;
	*crc = frame->payload_crc;
	/*
	 * `bytes` equals `length` unless `length` is 0. Older verifiers (6.1) accept the bound only
	 * in this form.
	 */
	OPAQUE(bytes);
	bytes = (bytes & PACKET_MASK) + 1;
	if (length && bpf_xdp_store_bytes(ctx, PM_HEADERS, (void *)(frame + 1), bytes))
		goto undo;
	if (is_still_whole(pkt, m, read))
		return true;
undo:
	if (moved) {
		bpf_xdp_adjust_head(ctx, more);
		bpf_xdp_store_bytes(ctx, 0, headers, PM_HEADERS);
	} else {
		bpf_xdp_adjust_tail(ctx, -more);
	}
	bpf_xdp_store_bytes(ctx, PM_HEADERS, &read->hash, sizeof(read->hash));
	return false;
}

/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Log access: finds space for a frame, copies the frame, writes its entry, and publishes both.
 *
 * Invariants: the lock is held. The bytes are those that Log::append in crates/log writes, except
 * for the entry's checksum. Frame and entry are complete before `last` is stored. User space reads
 * `last` first, without the lock, and then the entries up to `last`. (x86-64 keeps stores in order,
 * so a compiler barrier is enough.)
 *
 * Spec: docs/spec/ordered-log.md §3 to §8. This file must not decide whether a packet is to be
 * appended, or send anything.
 */
#pragma once

#include "lock.h"
#include "packet.h"

/* Returns the number of free entries of the log. */
static __always_inline __u64 free_entries(const struct pm_shard *shard)
{
	return pm_entries - (shard->last - shard->released);
}

/* Returns the entry of this order, or the place where that entry will be. */
static __always_inline struct pm_entry *entry_at(void *image, __u64 order)
{
	return image + 2 * PM_BLOCK_BYTES + (order & (pm_entries - 1)) * PM_ENTRY_BYTES;
}

/*
 * Returns the offset in the frame ring for a frame of @bytes bytes, or -1 if the log is full.
 * Frames are contiguous: a frame that does not fit before the end of the ring goes to its start.
 */
static __always_inline __s64 find_frame_room(void *image, const struct pm_shard *shard, __u64 bytes)
{
	__u64 head = shard->head, oldest;
	const struct pm_entry *entry;

	if (shard->last - shard->released >= pm_entries)
		return -1;
	if (shard->last == shard->released)
		return 0;
	entry = entry_at(image, shard->released + 1);
	oldest = (__u64)entry->frame_line * PM_FRAME_ALIGN;
	if (head <= oldest)
		return bytes <= oldest - head ? (__s64)head : -1;
	if (pm_frame_bytes - head >= bytes)
		return head;
	return bytes <= oldest ? 0 : -1;
}

/*
 * Are the frame and the entry of this order whole? They are whole while the order is not released.
 * After that they are whole until another frame or entry is written over them.
 */
static __always_inline bool is_whole(const struct pm_shard *shard, const struct pm_entry *entry,
				     __u64 order)
{
	__u64 frame = (__u64)entry->frame_line * PM_FRAME_ALIGN;

	if (order > shard->released)
		return true;
	return entry->order == order &&
	       (order >= shard->lap || (order >= shard->lap_before && frame >= shard->head));
}

/*
 * Publishes the entry that was just written to user space. The `applied` of the entry is a witness
 * (ordered-log.md §8): an order that two witnesses report as applied is released.
 */
static __always_inline void publish_entry(struct pm_shard *shard, __u64 at, __u64 head,
					  __u64 applied)
{
	__u64 second = applied < shard->stated ? applied : shard->stated;

	if (second > shard->released)
		shard->released = second;
	if (applied > shard->stated)
		shard->stated = applied;
	if (at < shard->head) {
		shard->lap_before = shard->lap;
		shard->lap = shard->last + 1;
	}
	shard->head = head;
	asm volatile("" ::: "memory");
	*(volatile __u64 *)&shard->last = shard->last + 1;
}

static __always_inline void copy32(void *to, const void *from)
{
	for (int i = 0; i < 4; i++)
		((__u64 *)to)[i] = ((const __u64 *)from)[i];
}

/*
 * Stores both checksums at once: they are loaded as one word, and two stores would stall the load.
 */
static __always_inline void set_crc_and_tag(struct pm_header *h, __u32 crc, __be64 tag)
{
	*(__u64 *)&h->payload_crc = (__u64)bpf_htonl(crc) << 32 | h->payload_crc;
	h->tag = tag;
}

#if PM_KEYED
/*
 * Returns the tag of the entry whose header the packet has. The tag was made before the lock was
 * taken, for the order that was next; if another CPU has taken this order, the tag is made again.
 */
static __always_inline __be64 tag_of_entry(struct xdp_md *ctx, const struct pm_packet *pkt,
					   const struct pm_maps *m)
{
	if (pkt->header->append.order == pkt->entry_order)
		return pkt->entry_tag;
	return make_tag(ctx, payload_offset(pkt), pkt->payload_len, m->keys->own[0],
			m->keys->own[1]);
}

/*
 * Replaces the tag of the previous hop's entry by this device's tag. On the last device the tag is
 * 0: the process seals the entry when it sends it to the server.
 */
static __always_inline void reseal(struct pm_packet *pkt)
{
	struct pm_header *h = pkt->header;
	__u32 crc = bpf_ntohl(h->header_crc) ^ tag_crc(h->tag ^ pkt->entry_tag);

	set_crc_and_tag(h, crc, pkt->entry_tag);
}
#endif

/*
 * Turns the header of an update into the header of its entry. The log keeps the packet in this
 * form, and the next hop gets it in this form. Seq and key hash stay as they are, and so do their
 * contributions to the checksum.
 */
static __always_inline void make_append(struct xdp_md *ctx, struct pm_packet *pkt,
					const struct pm_maps *m, const struct pm_session *session,
					__u64 order)
{
	struct pm_header *h = pkt->header;
	struct pm_shard *shard = m->shard;
	__be64 order_be = bpf_cpu_to_be64(order), tag = shard->token;
	__u32 crc;

	_Static_assert(FIELD(append.seq) == FIELD(update.seq), "seq");
	_Static_assert(FIELD(append.key_hash) == FIELD(update.key_hash), "key_hash");
	shard->order_places = field_crc_from(FIELD(append.order), order_be, shard->order_known,
					     shard->order_places);
	shard->order_known = order_be;
	h->kind_word = PM_APPEND_WORD;
	h->device_incarnation = shard->device_incarnation;
	h->append.order = order_be;
	crc = session->append_crc ^ pkt->fields_crc ^ shard->order_places;
#if PM_KEYED
	tag = shard->alone ? 0 : tag_of_entry(ctx, pkt, m);
	crc ^= tag_crc(tag);
#else
	(void)ctx;
#endif
	set_crc_and_tag(h, crc, tag);
}

/*
 * Appends the packet. Returns false if the log is full. With a @session, the packet is an update of
 * that session, and becomes an APPEND. Without a @session, the packet is an APPEND already.
 */
static __always_inline bool append(struct xdp_md *ctx, struct pm_packet *pkt,
				   const struct pm_maps *m, const struct pm_session *session,
				   __u32 zero)
{
	struct pm_shard *shard = m->shard;
	void *image = m->image;
	struct pm_header *h = pkt->header, *frame;
	__u32 length = PM_HEADER_LEN + pkt->payload_len, offset;
	__u64 taken = (length + PM_FRAME_ALIGN - 1) & ~(PM_FRAME_ALIGN - 1ull), at, order;
	__u64 applied = shard->applied;
	__s64 room = find_frame_room(image, shard, taken);
	void *end = pkt->end, *from, *to;
	struct pm_entry *entry;

	if (room < 0)
		return false;
	at = (__u64)room & (pm_frame_bytes - 1) & ~(PM_FRAME_ALIGN - 1ull);
	order = shard->last + 1;

	frame = image + 2 * PM_BLOCK_BYTES + pm_entries * PM_ENTRY_BYTES + at;
	/*
	 * Copies the payload in blocks of 32 bytes. The last block, which ends with the packet, is
	 * copied first. If the payload is shorter than a block, this block reaches back into the
	 * header; the header is copied over it at the end.
	 */
	offset = PM_HEADER_LEN - 32 + ((zero + pkt->payload_len) & PACKET_MASK);
	from = (void *)h + offset;
	if (from + 32 > end)
		return false;
	copy32((void *)frame + offset, from);
	from = pkt->payload + (zero & PACKET_MASK);
	to = frame + 1;
#pragma clang loop unroll(disable)
	for (int i = 0; i < PM_FRAGMENT_BYTES / 32; i++) {
		if (from + 32 > end)
			break;
		copy32(to, from);
		from += 32;
		to += 32;
	}
	asm volatile("" ::: "memory");
	if (session)
		make_append(ctx, pkt, m, session, order);
#if PM_KEYED
	else
		reseal(pkt);
#endif
	*frame = *h;

	entry = entry_at(image, order);
	entry->order = order;
	entry->session = bpf_be64_to_cpu(h->session);
	entry->seq = bpf_be64_to_cpu(h->append.seq);
	entry->durable_lag = 1;
	entry->applied_lag = order - applied;
	entry->frame_line = at / PM_FRAME_ALIGN;
	entry->frame_len = length;
	entry->payload_crc = bpf_ntohl(h->payload_crc);
	entry->epoch = shard->epoch;
	entry->incarnation = shard->incarnation;
	entry->fragment_index = bpf_ntohs(h->fragment_index);
	entry->fragment_count = bpf_ntohs(h->fragment_count);
	entry->header_len = PM_HEADER_LEN;
	entry->kind = PM_KIND_UPDATE;
	entry->zero = 0;
	entry->checksum = 0;
	publish_entry(shard, at, at + taken, applied);
	pkt->wake = take_wakeup_request(shard);
	return true;
}

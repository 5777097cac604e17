/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Sessions: the session of an order, and the acknowledgement to a session's client.
 *
 * Invariants: make_ack() runs under the lock, since it reads the log's state and writes to the shard
 * and the session. There it keeps the last value of each field (`*_known`), and the contribution of
 * this value to the checksum (`*_places`). The acknowledgement equals that of
 * Device::acknowledge in crates/proto byte for byte.
 *
 * Spec: docs/spec/pipeline.md §3, "Checksums" and "Sessions". This file must not decide what to
 * acknowledge.
 */
#pragma once

#include "log.h"

/*
 * Returns the session of the update with this order, or NULL if that session is not served in the
 * kernel.
 */
static __always_inline struct pm_session *find_session_of(void *image, __u64 order,
							  struct pm_known *known)
{
	return find_session(bpf_cpu_to_be64(entry_at(image, order)->session), known);
}

/*
 * Turns the packet's header into the header of the session's acknowledgement, up to @seq of the
 * session and @order of the shard. The checksum contributions of seq and order, which are known
 * from updates and entries, serve for the acknowledgement too, because it has both fields at the
 * same offsets. With keys the tag is made later (seal_ack()).
 */
static __always_inline void make_ack(struct pm_packet *pkt, struct pm_shard *shard,
				     const struct pm_known *known, __u64 seq, __u64 committed)
{
	struct pm_session *session = known->session;
	__u64 applied = session->applied < seq ? session->applied : seq;
	__be64 seq_be = bpf_cpu_to_be64(seq), committed_be = bpf_cpu_to_be64(committed);
	__be64 room_be = bpf_cpu_to_be64(free_entries(shard));
	__be64 applied_be = bpf_cpu_to_be64(applied);
	struct pm_header *h = pkt->header;

	_Static_assert(FIELD(ack.seq) == FIELD(update.seq), "seq");
	_Static_assert(FIELD(ack.committed) == FIELD(append.order), "order");
	shard->order_places = field_crc_from(FIELD(ack.committed), committed_be, shard->order_known,
					     shard->order_places);
	shard->order_known = committed_be;
	shard->room_places =
		field_crc_from(FIELD(ack.room), room_be, shard->room_known, shard->room_places);
	shard->room_known = room_be;
	session->seq_places =
		field_crc_from(FIELD(ack.seq), seq_be, session->seq_known, session->seq_places);
	session->seq_known = seq_be;
	session->applied_places = field_crc_from(FIELD(ack.applied), applied_be,
						 session->applied_known, session->applied_places);
	session->applied_known = applied_be;
	h->kind_word = PM_ACK_WORD | (__u64)shard->copies << PM_ACK_COPIES_SHIFT;
	h->shard_epoch = shard->shard_epoch;
	h->device_incarnation = shard->device_incarnation;
	h->session = bpf_cpu_to_be64(session->id);
	h->ack.seq = seq_be;
	h->ack.committed = committed_be;
	h->ack.room = room_be;
	h->ack.applied = applied_be;
	h->fragment_index = 0;
	h->fragment_count = bpf_htons(1);
	h->payload_len = 0;
	h->payload_crc = 0;
	h->header_crc = bpf_htonl(session->ack_crc ^ session->seq_places ^ shard->order_places ^
				  shard->room_places ^ session->applied_places);
	h->tag = PM_KEYED ? 0 : session->token;
#if PM_KEYED
	pkt->answer_key[0] = known->keys->to_client[0];
	pkt->answer_key[1] = known->keys->to_client[1];
#endif
}

/* Seals the acknowledgement that the packet has become. The lock is not held. */
static __always_inline void seal_ack(struct xdp_md *ctx, struct pm_packet *pkt)
{
#if PM_KEYED
	__be64 tag = make_header_tag(ctx, payload_offset(pkt), pkt->answer_key[0],
				     pkt->answer_key[1]);
	struct pm_header *h = pkt->header;

	if ((void *)(h + 1) > pkt->end)
		return;
	set_crc_and_tag(h, bpf_ntohl(h->header_crc) ^ tag_crc(tag), tag);
#else
	(void)ctx;
	(void)pkt;
#endif
}

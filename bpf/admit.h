/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Admission: may this packet be appended to the log? The update of a client is admitted by the
 * order of its session (rule 2 of docs/spec/protocol.md), the entry of the previous hop by the
 * order of the log (rule 4).
 *
 * Invariants: all state that can change between two packets is read under the lock: who admits, the
 * generation, the session's last seq, the log's last order. If the generation has changed since the
 * session was looked up, user space may have changed the session: the packet then goes to user
 * space.
 *
 * Spec: docs/spec/pipeline.md §1, point 5, and §2. This file must not refuse a packet. A packet
 * that is not admitted goes to user space, where the machine decides.
 */
#pragma once

#include "reads.h"

/*
 * Does the session's front hold as much of the log as its share allows, while other fronts need
 * space? Without keys the device does not know fronts, and the answer is always no.
 */
static __always_inline bool is_over_share(const struct pm_shard *shard,
					  const struct pm_session *session)
{
	return PM_KEYED && (shard->over >> (session->share & 63) & 1);
}

/*
 * Decides about an update that passed ingress, and appends it if it is the session's next one. A
 * duplicate of a committed update is acknowledged again.
 */
static __always_inline enum pm_verdict admit_update(struct xdp_md *ctx, struct pm_packet *pkt,
						    const struct pm_maps *m,
						    const struct pm_known *known, __u32 zero)
{
	struct pm_session *session = known->session;
	enum pm_verdict verdict = PM_HAND_UP;
	struct pm_shard *shard = m->shard;
	struct pm_hops *hops = m->hops;

	pkt->seq = bpf_be64_to_cpu(pkt->header->update.seq);
	if (!try_lock(shard)) {
		COUNT(m->counts, busy);
		return PM_HAND_UP;
	}
	if (!shard->admits || shard->generation != pkt->generation || hops->follows) {
		COUNT(m->counts, held);
	} else if (pkt->seq > session->last + 1 || pkt->seq > session->until || !pkt->seq) {
		COUNT(m->counts, gaps);
	} else if (pkt->seq <= session->last) {
		COUNT(m->counts, duplicates);
		if (shard->alone) {
			make_ack(pkt, shard, known, session->last, shard->last);
			verdict = PM_ACK;
		} else if (pkt->seq <= session->committed && hops->next_port) {
			make_ack(pkt, shard, known, session->committed, hops->committed);
			verdict = PM_ACK;
		}
		session->heard |= verdict == PM_ACK;
	} else if (is_over_share(shard, session)) {
		COUNT(m->counts, over_share);
	} else if (!append(ctx, pkt, m, session, zero)) {
		COUNT(m->counts, full);
	} else {
		COUNT(m->counts, appended);
		note_update(pkt, shard);
		session->last = pkt->seq;
		session->seq_known = pkt->header->append.seq;
		session->seq_places = pkt->seq_crc;
		if (shard->alone) {
			make_ack(pkt, shard, known, session->last, shard->last);
			verdict = PM_ACK;
		} else {
			/*
			 * The DURABLE that commits this entry becomes the acknowledgement to this
			 * client.
			 */
			learn_way(session->client, pkt->eth, ctx->ingress_ifindex);
			verdict = forward_in_order(pkt, shard, hops);
		}
	}
	unlock(shard);
	return verdict;
}

/*
 * Decides about an APPEND of the previous hop, and appends its entry if its order is the next one.
 * The last device of the chain answers the APPEND with a DURABLE; the other devices forward it.
 */
static __always_inline enum pm_verdict admit_entry(struct xdp_md *ctx, struct pm_packet *pkt,
						   const struct pm_maps *m, __u32 zero)
{
	enum pm_verdict verdict = PM_HAND_UP;
	struct pm_shard *shard = m->shard;
	struct pm_hops *hops = m->hops;

	if (!try_lock(shard)) {
		COUNT(m->counts, busy);
		return PM_HAND_UP;
	}
	if (!shard->admits || shard->generation != pkt->generation) {
		COUNT(m->counts, held);
	} else if (bpf_be64_to_cpu(pkt->header->append.order) != shard->last + 1) {
		COUNT(m->counts, gaps);
	} else if (!append(ctx, pkt, m, NULL, zero)) {
		COUNT(m->counts, full);
	} else {
		COUNT(m->counts, appended);
		learn_way(hops->before, pkt->eth, ctx->ingress_ifindex);
		if (hops->behind) {
			verdict = forward_in_order(pkt, shard, hops);
		} else {
			prepare_durable(pkt, shard, hops);
			verdict = PM_SEND_DURABLE;
		}
	}
	unlock(shard);
	return verdict;
}

/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Chains: which orders go to the next hop, which orders its DURABLE reports, and what is then
 * committed.
 *
 * Invariants: the lock is held, except in read_rows(). An order goes to the next hop only if all
 * orders before it have gone (rule 4 of docs/spec/protocol.md), and within the credit of that hop.
 * An order is committed when this device and every device downstream hold it (rule 5). In this code
 * `committed` and the rows only grow. Only user space lowers them, while it holds the shard.
 *
 * Spec: docs/spec/pipeline.md §4. This file must not resend packets, or resolve a neighbour's
 * address. User space resends packets and resolves addresses.
 */
#pragma once

#include "log.h"
#include "session.h"

/*
 * Learns the path to the sender of this packet: the first 12 bytes of an Ethernet header to it (the
 * source and the destination of this packet, swapped), and the interface by which the packet came.
 */
static __always_inline void learn_way(__u32 *way, const struct ethhdr *eth, __u32 interface)
{
	const __u16 *mac = (const void *)eth;

	way[0] = mac[3] | (__u32)mac[4] << 16;
	way[1] = mac[5] | (__u32)mac[0] << 16;
	way[2] = mac[1] | (__u32)mac[2] << 16;
	way[PM_WAY_INTERFACE] = interface;
}

static __always_inline void set_destination(struct pm_packet *pkt, __u64 high, __u64 low,
					    __u32 port, const __u32 *way)
{
	pkt->to_high = high;
	pkt->to_low = low;
	pkt->to_port = port;
	for (int i = 0; i < 4; i++)
		pkt->way[i] = way[i];
}

/*
 * Decides whether this program forwards the order that was just appended. If an earlier order has
 * not been forwarded, or the next hop has no room, user space forwards this order and all that
 * follow until it has caught up. User space also forwards an IPv6 packet without a UDP checksum,
 * because a new checksum is derived from the old checksum.
 */
static __always_inline enum pm_verdict
forward_in_order(struct pm_packet *pkt, const struct pm_shard *shard, struct pm_hops *hops)
{
	__u64 credit = hops->credit < hops->window ? hops->credit : hops->window;

	if ((pkt->ipv6 && !pkt->udp->check) || !hops->next[PM_WAY_INTERFACE] ||
	    hops->sent + 1 != shard->last || shard->last > hops->orders[0] + credit)
		return PM_APPENDED;
	hops->sent = shard->last;
	set_destination(pkt, hops->next_high, hops->next_low, hops->next_port, hops->next);
	return PM_FORWARD;
}

/*
 * Prepares a DURABLE to the previous hop. This function copies the numbers of the DURABLE, because
 * the lock is held now. send_durable() writes the packet later.
 */
static __always_inline void prepare_durable(struct pm_packet *pkt, const struct pm_shard *shard,
					    struct pm_hops *hops)
{
	__u64 room = free_entries(shard);

	if (room > hops->receive_window)
		room = hops->receive_window;
	pkt->room_be = bpf_cpu_to_be64(room);
	pkt->persisted_be = bpf_cpu_to_be64(shard->last);
	hops->told = shard->last;
	set_destination(pkt, hops->before_high, hops->before_low, hops->before_port, hops->before);
}

/*
 * Reads the orders in a DURABLE. Returns false unless the DURABLE has one row for each device
 * downstream, with the name of that device.
 */
static __always_inline bool read_rows(struct pm_packet *pkt, const struct pm_hops *hops,
				      __u64 *orders, __u32 zero)
{
	void *rows = pkt->payload + (zero & PACKET_MASK);
	__u32 behind = hops->behind;

	if (pkt->payload_len != behind * PM_ROW_BYTES)
		return false;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PM_BEHIND_MAX; i++) {
		struct pm_row *row = rows + i * PM_ROW_BYTES;

		orders[i] = 0;
		if (i >= behind)
			continue;
		if ((void *)(row + 1) > pkt->end || row->name != hops->names[i])
			return false;
		orders[i] = bpf_be64_to_cpu(row->order);
	}
	return true;
}

/*
 * Processes a DURABLE with @orders. Takes the lock. A follower stores the orders and sends a
 * DURABLE to the previous hop. The head moves `committed`; if `committed` grows by one order, and
 * this order is an update of @known, the packet becomes the update's acknowledgement. In all other
 * cases user space acknowledges.
 *
 * @expected: the order after the committed one, read before the lock was taken. @known: its
 * session, if that session is served in the kernel.
 */
static __always_inline enum pm_verdict commit(struct pm_packet *pkt, const struct pm_maps *m,
					      const struct pm_known *known, __u64 expected,
					      __u64 *orders, __u32 interface)
{
	enum pm_verdict verdict = PM_HAND_UP;
	struct pm_shard *shard = m->shard;
	struct pm_session *session = known->session;
	struct pm_hops *hops = m->hops;
	const struct pm_entry *entry;
	__u64 committed;
	bool news = false;

	if (!try_lock(shard)) {
		COUNT(m->counts, busy);
		return PM_HAND_UP;
	}
	committed = shard->last;
	if (!shard->admits || shard->generation != pkt->generation || orders[0] > committed ||
	    (hops->follows && !hops->before[PM_WAY_INTERFACE])) {
		COUNT(m->counts, held);
		goto out;
	}
	COUNT(m->counts, confirmed);
	hops->credit = bpf_be64_to_cpu(pkt->header->durable.room);
	if (!hops->credit)
		hops->credit = 1;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PM_BEHIND_MAX; i++) {
		if (i >= hops->behind)
			continue;
		if (orders[i] < hops->orders[i])
			orders[i] = hops->orders[i];
		news |= orders[i] > hops->orders[i];
		if (orders[i] < committed)
			committed = orders[i];
	}
	/*
	 * A host that has seen a DURABLE can repeat it from another Ethernet address. A repetition
	 * reports no new order, so it does not change a known path.
	 */
	if (news || !hops->next[PM_WAY_INTERFACE])
		learn_way(hops->next, pkt->eth, interface);
	if (hops->follows) {
		prepare_durable(pkt, shard, hops);
		pkt->wake = take_wakeup_request(shard);
		verdict = PM_SEND_DURABLE;
	} else if (committed <= hops->committed) {
		verdict = PM_NO_NEWS;
	} else {
		entry = entry_at(m->image, expected);
		if (session && committed == expected && expected == hops->committed + 1 &&
		    entry->order == expected && entry->kind == PM_KIND_UPDATE &&
		    entry->session == session->id && session->client[PM_WAY_INTERFACE]) {
			if (entry->seq > session->committed)
				session->committed = entry->seq;
			make_ack(pkt, shard, known, session->committed, committed);
			set_destination(pkt, session->address_high, session->address_low,
					session->port, session->client);
			verdict = PM_ACK_COMMITTED;
		} else {
			/*
			 * `skipped` is stored before the rows, and user space reads it after the
			 * rows: a reader that sees these rows also sees that the pipeline
			 * acknowledged none of these updates.
			 */
			*(volatile __u64 *)&hops->skipped = committed;
			verdict = PM_USER_ACKS;
		}
		hops->committed = committed;
	}
	asm volatile("" ::: "memory");
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PM_BEHIND_MAX; i++)
		if (i < hops->behind)
			*(volatile __u64 *)&hops->orders[i] = orders[i];
out:
	unlock(shard);
	return verdict;
}

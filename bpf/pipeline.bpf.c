// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * The device's fast path in the kernel: an update of a known session, in order, with room in the
 * log, is appended and acknowledged before the network stack sees it.
 *
 *   ingress     packet.h   is this such an update, undamaged, of this shard, of a known session?
 *   log access  admit.h    under the lock: is it the session's next one? append it (log.h)
 *   egress      egress.h   the packet becomes its own acknowledgement and goes back to its sender
 *   reads       reads.h    notes what was appended; answers READs (HIT, MISS)
 *   keys        mac.h      with keys: has the right sender sealed it? seals what is sent
 *   leases      lease.h    may clients be answered now? else the answer is dropped
 *
 * In a chain the head sends the packet to the next hop as an entry (APPEND) instead. The last
 * device turns the packet into a DURABLE, and the head turns the DURABLE into the acknowledgement
 * (hops.h): one packet passes down the chain and back.
 *
 * This file has the programs: `pipeline` is attached to the interfaces; `hold`, `release` and
 * `wake_me` are run by user space with BPF_PROG_TEST_RUN. Headers by stage: types.h, maps.h, crc.h,
 * mac.h, packet.h, lock.h, log.h, session.h, hops.h, reads.h, admit.h, lease.h, egress.h; together
 * they are one compilation unit.
 *
 * Invariants: a packet that the pipeline does not process goes to user space unchanged. The
 * pipeline appends only while user space does not hold the shard.
 *
 * Spec: docs/spec/pipeline.md. This program must not decide anything differently from the machine
 * in user space.
 */
#include "admit.h"
#include "egress.h"
#include "lease.h"
#include "packet.h"

#if PM_KEYED
/* Continues if the packet is sealed; drops the packet if it is forged. */
#define VERIFY(what)                                                                               \
	switch (what) {                                                                            \
	case PM_SEALED:                                                                            \
		break;                                                                             \
	case PM_FORGED:                                                                            \
		return XDP_DROP;                                                                   \
	default:                                                                                   \
		goto up;                                                                           \
	}
#endif

/*
 * Processes packets between hops, and all packets that a client sends rarely. This function,
 * process_read() and process_update() are global functions, so that the verifier checks each by
 * itself.
 */
__attribute__((noinline)) int process_hop_packet(struct xdp_md *ctx)
{
	struct pm_packet pkt = {};
	enum pm_verdict verdict;
	struct pm_known known;
	struct pm_hops *hops;
	struct pm_maps m;
	__u32 zero;
	__u64 orders[PM_BEHIND_MAX] = {}, expected, begun;

	if (!is_for_shard(ctx, &pkt) || !look_up_maps(&m))
		return XDP_PASS;
	begun = count_packet(m.counts);
	hops = m.hops;
	pkt.generation = *(volatile __u32 *)&m.shard->generation;
	zero = unknown_zero(m.shard);
	if (hops->follows &&
	    is_from_hop(&pkt, m.shard, PM_APPEND_WORD, hops->before_high, hops->before_low,
			hops->before_port)) {
		if (!is_packet_intact(ctx, &pkt)) {
			COUNT(m.counts, odd);
			goto up;
		}
#if PM_KEYED
		VERIFY(verify_entry(ctx, &pkt, &m));
		if (!is_from(&pkt, hops->before_high, hops->before_low, hops->before_port)) {
			COUNT(m.counts, odd);
			goto up;
		}
#endif
		leave_out_of_checksum(&pkt);
		verdict = admit_entry(ctx, &pkt, &m, zero);
	} else if (hops->behind &&
		   is_from_hop(&pkt, m.shard,
			       PM_DURABLE_WORD | (__u64)hops->behind << PM_DURABLE_ROWS_SHIFT,
			       hops->next_high, hops->next_low, hops->next_port)) {
		if (!is_packet_intact(ctx, &pkt)) {
			COUNT(m.counts, odd);
			goto up;
		}
#if PM_KEYED
		VERIFY(verify_hop(ctx, &pkt, &m, m.keys->next));
		if (!is_from(&pkt, hops->next_high, hops->next_low, hops->next_port)) {
			COUNT(m.counts, odd);
			goto up;
		}
#endif
		if (!read_rows(&pkt, hops, orders, zero)) {
			COUNT(m.counts, odd);
			goto up;
		}
		expected = *(volatile __u64 *)&hops->committed + 1;
		find_session_of(m.image, expected, &known);
		verdict = commit(&pkt, &m, &known, expected, orders, ctx->ingress_ifindex);
	} else {
		COUNT(m.counts, odd);
		goto up;
	}
	switch (gate(&m, verdict)) {
	case PM_FORWARD:
		wake_user_space(pkt.wake);
		return record_time(m.counts, begun, send_append(ctx, &pkt));
	case PM_SEND_DURABLE:
		wake_user_space(pkt.wake);
		return record_time(m.counts, begun,
				   send_durable(ctx, &pkt, &m, orders, zero));
	case PM_ACK_COMMITTED:
		seal_ack(ctx, &pkt);
		return record_time(m.counts, begun, send_ack(ctx, &pkt));
	case PM_NO_NEWS:
	case PM_SILENCED:
		return XDP_DROP;
	case PM_APPENDED:
	case PM_USER_ACKS:
		wake_user_space(true);
		return XDP_DROP;
	default:
		break;
	}
up:
	COUNT(m.counts, handed_up);
	return hand_up(&pkt);
}

/* Processes READs of clients. */
__attribute__((noinline)) int process_read(struct xdp_md *ctx)
{
	struct pm_session *session;
	struct pm_packet pkt = {};
	struct pm_known known;
	struct pm_read read = {};
	struct pm_maps m;
	__be32 crc;
	__u64 begun;

	if (!is_for_shard(ctx, &pkt) || !look_up_maps(&m) || !is_well_formed(&pkt))
		return XDP_PASS;
	begun = count_packet(m.counts);
	pkt.generation = *(volatile __u32 *)&m.shard->generation;
	session = find_session(pkt.header->session, &known);
	if (!session || (!PM_KEYED && !is_from_client(&pkt, session))) {
		COUNT(m.counts, sessions_unknown);
		goto up;
	}
#if PM_KEYED
	if (!is_packet_intact(ctx, &pkt)) {
		COUNT(m.counts, odd);
		goto up;
	}
	VERIFY(verify_read(ctx, &pkt, &m, known.keys));
	if (!is_from_client(&pkt, session)) {
		COUNT(m.counts, sessions_unknown);
		goto up;
	}
#endif
	read.kept = pkt.header->kind_word == PM_KEPT_READ_WORD;
	if (!find_buckets(&pkt, m.shard, &read, unknown_zero(m.shard)) ||
	    (!PM_KEYED && !is_packet_intact(ctx, &pkt))) {
		COUNT(m.counts, odd);
		goto up;
	}
	switch (gate(&m, answer_read(&pkt, &m, &read))) {
	case PM_SILENCED:
		session->heard = 1;
		return XDP_DROP;
	case PM_MISS:
		COUNT(m.counts, read_misses);
		session->heard = 1;
		make_answer(ctx, &pkt, &known, &read, PM_MISS_WORD, 0, 0);
		return record_time(m.counts, begun, reply_with_header(ctx, &pkt));
	case PM_HIT:
		if (!put_update(ctx, &pkt, &m, &read, &crc))
			break;
		/* The helper has invalidated all packet pointers. */
		if (!is_for_shard(ctx, &pkt))
			return XDP_DROP;
		pkt.header = (void *)(pkt.udp + 1);
		if ((void *)(pkt.header + 1) > pkt.end)
			return XDP_DROP;
		COUNT(m.counts, read_hits);
		session->heard = 1;
		make_answer(ctx, &pkt, &known, &read, PM_HIT_WORD, read.frame_len - PM_HEADER_LEN,
			    crc);
		if (!turn_around(&pkt, read.frame_len))
			return XDP_DROP;
		return record_time(m.counts, begun, XDP_TX);
	default:
		break;
	}
	if (!is_for_shard(ctx, &pkt))
		return XDP_DROP;
	COUNT(m.counts, reads_up);
up:
	COUNT(m.counts, handed_up);
	return hand_up(&pkt);
}

/*
 * Processes updates of clients. It returns PM_IS_A_READ or PM_NOT_AN_UPDATE if the packet is no
 * update; the packet is then unchanged.
 */
__attribute__((noinline)) int process_update(struct xdp_md *ctx)
{
	struct pm_session *session;
	struct pm_packet pkt = {};
	enum pm_verdict verdict;
	struct pm_known known;
	struct pm_maps m;
	__u32 zero;
	__u64 begun;

	if (!is_for_shard(ctx, &pkt) || !look_up_maps(&m))
		return XDP_PASS;
	pkt.generation = *(volatile __u32 *)&m.shard->generation;
	if (!is_current_update(&pkt, m.shard))
		return is_current_read(&pkt, m.shard) ? PM_IS_A_READ : PM_NOT_AN_UPDATE;
	begun = count_packet(m.counts);
	session = find_session(pkt.header->session, &known);
	if (!session || (!PM_KEYED && !is_from_client(&pkt, session))) {
		COUNT(m.counts, sessions_unknown);
		goto up;
	}
	expect_update(&pkt, m.shard);
	if (!is_update_intact(ctx, &pkt, session)) {
		COUNT(m.counts, odd);
		goto up;
	}
#if PM_KEYED
	VERIFY(verify_update(ctx, &pkt, &m, known.keys));
	if (!is_from_client(&pkt, session)) {
		COUNT(m.counts, sessions_unknown);
		goto up;
	}
#endif
	zero = unknown_zero(m.shard);
	leave_out_of_checksum(&pkt);
	verdict = admit_update(ctx, &pkt, &m, &known, zero);
	switch (gate(&m, verdict)) {
	case PM_SILENCED:
		wake_user_space(pkt.wake);
		return XDP_DROP;
	case PM_ACK:
		wake_user_space(pkt.wake);
		seal_ack(ctx, &pkt);
		return record_time(m.counts, begun, reply_with_header(ctx, &pkt));
	case PM_FORWARD:
		wake_user_space(pkt.wake);
		return record_time(m.counts, begun, send_append(ctx, &pkt));
	case PM_APPENDED:
		wake_user_space(true);
		return XDP_DROP;
	default:
		break;
	}
up:
	COUNT(m.counts, handed_up);
	return hand_up(&pkt);
}

/* Attached to the interfaces: processes every packet that comes in. */
SEC("xdp")
int pipeline(struct xdp_md *ctx)
{
	int verdict = process_update(ctx);

	if (verdict == PM_IS_A_READ)
		return process_read(ctx);
	return verdict == PM_NOT_AN_UPDATE ? process_hop_packet(ctx) : verdict;
}

/*
 * Sets whether the pipeline admits packets from now on, and begins a new generation: a packet whose
 * session was looked up earlier is not admitted any more. Returns XDP_DROP if the lock could not be
 * taken in time; nothing has then changed.
 */
static __always_inline int set_admits(bool admits)
{
	__u32 zero = 0;
	struct pm_shard *shard = bpf_map_lookup_elem(&pm_shards, &zero);

	if (!shard)
		return XDP_ABORTED;
	if (!try_lock(shard))
		return XDP_DROP;
	shard->admits = admits;
	shard->generation++;
	unlock(shard);
	return XDP_PASS;
}

/* User space runs this program to stop the pipeline from admitting packets. */
SEC("xdp")
int hold(struct xdp_md *ctx)
{
	(void)ctx;
	return set_admits(false);
}

/*
 * User space runs this program when it has published its changes: the pipeline then admits packets
 * again.
 */
SEC("xdp")
int release(struct xdp_md *ctx)
{
	(void)ctx;
	return set_admits(true);
}

/*
 * User space runs this program before it sleeps. The program takes the lock. So when it returns,
 * user space sees all that was appended before, and any CPU that appends later sees that user space
 * sleeps.
 */
SEC("xdp")
int wake_me(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct pm_shard *shard = bpf_map_lookup_elem(&pm_shards, &zero);

	(void)ctx;
	if (!shard)
		return XDP_ABORTED;
	if (!try_lock(shard))
		return XDP_DROP;
	shard->sleeps = 1;
	unlock(shard);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";

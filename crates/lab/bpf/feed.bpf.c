// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Measures the cost of one packet in the pipeline (`pmnet-lab bench pipeline`).
 *
 * User space prepares packets, and runs feed_pipeline on one frame, many times in one system call. Each run
 * copies the next prepared packet into the frame and tail-calls the pipeline, which is the same program as at an
 * interface. feed_nothing also copies each packet, and tail-calls a program that does nothing. The difference of
 * the two times is the cost of the pipeline.
 *
 * Invariant: each prepared packet is fed once, in order; changes that a run makes to the frame do not affect the
 * next run. Loader: crates/lab/src/xdp/feeder.rs. Spec: docs/spec/pipeline.md §3. The program must not interpret
 * the contents of a packet.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

/* The layout that `prepare` in crates/lab/src/xdp/feeder.rs writes. */
struct pm_prepared {
	__u32 length;
	__u8 frame[1532];
};

enum pm_target { PM_NOTHING, PM_PIPELINE };

/* The prepared packets. The loader sets max_entries. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_prepared);
} pm_packets SEC(".maps");

/* Index of the next packet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} pm_next SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} pm_targets SEC(".maps");

/* Copies the next packet into the frame. Returns false if no packet is left, or if the packet does not fit. */
static __always_inline bool feed(struct xdp_md *ctx)
{
	__u32 zero = 0, *next = bpf_map_lookup_elem(&pm_next, &zero), length;
	struct pm_prepared *packet;

	if (!next)
		return false;
	packet = bpf_map_lookup_elem(&pm_packets, next);
	if (!packet)
		return false;
	length = packet->length;
	if (length < ETH_HLEN || length > sizeof(packet->frame))
		return false;
	/* The frame is first cut to ETH_HLEN, so that the cost does not depend on the length of the previous packet. */
	if (bpf_xdp_adjust_tail(ctx, ETH_HLEN - (int)(ctx->data_end - ctx->data)) ||
	    bpf_xdp_adjust_tail(ctx, (int)length - ETH_HLEN) ||
	    bpf_xdp_store_bytes(ctx, 0, packet->frame, length))
		return false;
	/* An atomic add is a full barrier. After the add, the packet is in the cache, as a packet is after DMA. */
	__sync_fetch_and_add(next, 1);
	return true;
}

SEC("xdp")
int feed_pipeline(struct xdp_md *ctx)
{
	if (feed(ctx))
		bpf_tail_call(ctx, &pm_targets, PM_PIPELINE);
	return XDP_ABORTED;
}

SEC("xdp")
int feed_nothing(struct xdp_md *ctx)
{
	if (feed(ctx))
		bpf_tail_call(ctx, &pm_targets, PM_NOTHING);
	return XDP_ABORTED;
}

SEC("xdp")
int nothing(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_TX;
}

char _license[] SEC("license") = "Dual MIT/GPL";

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * What one packet costs the pipeline (`pmnet bench pipeline`): a program that is run many times in one
 * system call, on one frame. Each time it makes the frame the next of the packets that user space has
 * prepared, and goes over to the pipeline, the very program that an interface would run, by a tail call.
 * Its twin goes over to a program that does nothing; the difference is the pipeline.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

/* As `Prepared` in crates/dataplane/src/xdp/feeder.rs. */
struct pm_prepared {
	__u32 length;
	__u8 frame[1532];
};

enum pm_target { PM_NOTHING, PM_PIPELINE };

/* The number of packets is the loader's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_prepared);
} pm_packets SEC(".maps");

/* Number of the next packet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
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

/* The frame becomes the next packet; false: there is none, or it does not fit. */
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
	/* In two steps, so that what was done to the frame before makes no difference. */
	if (bpf_xdp_adjust_tail(ctx, ETH_HLEN - (int)(ctx->data_end - ctx->data)) ||
	    bpf_xdp_adjust_tail(ctx, (int)length - ETH_HLEN) ||
	    bpf_xdp_store_bytes(ctx, 0, packet->frame, length))
		return false;
	/* Atomic, and so a barrier: what was stored here is in the cache, as what a NIC has written is. */
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

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Several devices at one interface: this program passes a packet on to the pipeline of the device
 * whose port is the packet's destination. The program is attached to an interface only if two or
 * more devices use the interface; the pipeline of a single device is attached directly.
 *
 * Invariants: the program reads only the two bytes that may be a packet's UDP destination port, and
 * changes nothing. The pipeline (packet.h) decides by itself whether the packet is for its shard,
 * as if it were attached to the interface. All other packets pass. Ports and places are constants
 * to the verifier, and the kernel turns the calls into direct jumps, so a dispatch costs a few
 * nanoseconds. A device that joins or leaves attaches a new program.
 *
 * Loader: crates/dataplane/src/xdp/dispatcher.rs. Spec: docs/spec/pipeline.md §9. The program must
 * not change a packet.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "generated.h"

/*
 * UDP ports of the devices, by their places, in network byte order. The loader sets them. 0: the
 * place is free.
 */
const volatile __u16 pm_ports[PM_DEVICES_MAX];

/* The pipelines of the devices, by their places. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PM_DEVICES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} pm_programs SEC(".maps");

SEC("xdp")
int dispatch(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ethhdr *eth = data;
	const struct udphdr *udp;
	__u16 port;
	int place;

	if (data + sizeof(*eth) + sizeof(struct iphdr) + sizeof(*udp) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		udp = data + sizeof(*eth) + sizeof(struct iphdr);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		udp = data + sizeof(*eth) + sizeof(struct ipv6hdr);
		if ((void *)(udp + 1) > end)
			return XDP_PASS;
	} else {
		return XDP_PASS;
	}
	port = udp->dest;
#pragma unroll
	for (place = 0; place < PM_DEVICES_MAX; place++)
		if (pm_ports[place] && port == pm_ports[place])
			bpf_tail_call_static(ctx, &pm_programs, place);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";

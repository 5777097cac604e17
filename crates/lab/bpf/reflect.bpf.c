// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Three XDP programs without state.
 *
 * reflect: sends every IPv4 UDP datagram to a port of pmnet's range back to its sender. This program is the
 * baseline of measurements.
 *
 * cross: takes every IPv4 UDP datagram from or to a port of pmnet's range, and sends the datagram unchanged
 * through another interface. A machine between two others cannot do less work.
 *
 * pass: passes every packet to the network stack. A veth accepts packets that its peer sends by XDP_TX only if the
 * veth itself has an XDP program.
 *
 * Loader: crates/lab/src/xdp/plain.rs. The programs must not keep state, and must not interpret the contents of a
 * datagram.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The first port of pmnet's range. The loader sets the port, in host byte order. */
const volatile __u16 pm_port_first;
const volatile __u16 pm_port_last;
/* Index of the interface through which cross sends. */
const volatile __u32 pm_other;

/* Finds the headers of an IPv4 UDP datagram without IP options. Returns false if the frame is not such a
 * datagram. */
static __always_inline bool find(struct xdp_md *ctx, struct ethhdr **eth, struct iphdr **ip, struct udphdr **udp)
{
	void *end = (void *)(long)ctx->data_end;

	*eth = (void *)(long)ctx->data;
	*ip = (void *)(*eth + 1);
	*udp = (void *)(*ip + 1);
	return (void *)(*udp + 1) <= end && (*eth)->h_proto == bpf_htons(ETH_P_IP) &&
	       (*ip)->ihl == 5 && (*ip)->protocol == IPPROTO_UDP;
}

static __always_inline bool is_of_pmnet(__be16 port)
{
	__u16 number = bpf_ntohs(port);

	return number >= pm_port_first && number <= pm_port_last;
}

SEC("xdp")
int reflect(struct xdp_md *ctx)
{
	struct ethhdr *eth;
	struct iphdr *ip;
	struct udphdr *udp;
	__u8 mac[ETH_ALEN];
	__be32 address;
	__be16 port;

	if (!find(ctx, &eth, &ip, &udp) || !is_of_pmnet(udp->dest))
		return XDP_PASS;

	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	address = ip->saddr;
	ip->saddr = ip->daddr;
	ip->daddr = address;
	port = udp->source;
	udp->source = udp->dest;
	udp->dest = port;
	return XDP_TX;
}

SEC("xdp")
int cross(struct xdp_md *ctx)
{
	struct ethhdr *eth;
	struct iphdr *ip;
	struct udphdr *udp;

	if (!find(ctx, &eth, &ip, &udp) || (!is_of_pmnet(udp->dest) && !is_of_pmnet(udp->source)))
		return XDP_PASS;
	return bpf_redirect(pm_other, 0);
}

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Three programs without state.
 *
 * reflect: sends every IPv4 UDP datagram to a port of pmnet's range back to its sender; the
 * baseline of measurements.
 *
 * cross: takes every IPv4 UDP datagram from or to a port of pmnet's range, and sends the datagram unchanged out at
 * another interface. A machine between two others cannot do less work.
 *
 * pass: passes everything. A veth accepts packets that its peer sends by XDP_TX only if the veth
 * has a program itself.
 *
 * Loader: crates/lab/src/xdp/plain.rs. May not: keep state, or interpret the contents of a datagram.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Set by the loader; host byte order. */
const volatile __u16 pm_port_first;
const volatile __u16 pm_port_last;
/* The interface at which cross sends. */
const volatile __u32 pm_other;

/* Finds the headers of an IPv4 UDP datagram without IP options; false if the frame is no such datagram. */
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

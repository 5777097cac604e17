// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Three programs without state.
 *
 * reflect: sends every IPv4 UDP datagram to a port of pmnet's range back to its sender; the
 * baseline of measurements.
 *
 * cross: sends every IPv4 UDP datagram from or to a port of pmnet's range out at another interface, unchanged: the least that
 * a machine in between can do.
 *
 * pass: passes everything. A veth accepts packets that its peer sends by XDP_TX only if it has a
 * program itself.
 *
 * Loader: crates/lab/src/xdp/plain.rs. May not: keep state, or know what is in a datagram.
 */
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
/* Where cross sends. */
const volatile __u32 pm_other;

SEC("xdp")
int reflect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u8 mac[ETH_ALEN];
	__be32 address;
	__be16 port;
	__u16 to;

	if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) ||
	    ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	to = bpf_ntohs(udp->dest);
	if (to < pm_port_first || to > pm_port_last)
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
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u16 from, to;

	if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) ||
	    ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	from = bpf_ntohs(udp->source);
	to = bpf_ntohs(udp->dest);
	if ((to < pm_port_first || to > pm_port_last) &&
	    (from < pm_port_first || from > pm_port_last))
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

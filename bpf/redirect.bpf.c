// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * Redirects UDP datagrams (or TCP segments) whose destination port is in a given range: each goes
 * to the AF_XDP socket of its receive queue. On request, the program redirects only packets to one
 * address, and only datagrams that begin with a magic number.
 *
 * Invariants: all other packets pass, and so do all packets of a queue that has no socket. Loader:
 * crates/dataplane/src/af_xdp/redirect.rs. This program must not change a packet, or read what
 * follows the ports, except for the magic number.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/*
 * The socket of each queue. If pm_stride is not 0: the socket of each queue, for each port. The
 * loader then raises max_entries.
 */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} pm_sockets SEC(".maps");

/* Set by the loader; host byte order. */
const volatile __u16 pm_port_first;
const volatile __u16 pm_port_last;

/*
 * The maximum number of sockets of a port in pm_sockets; a queue with a higher number has no
 * socket. A socket gets only packets that its own queue received, so each port needs queues of its
 * own; a packet that another queue received passes. 0: all ports have the same sockets.
 */
const volatile __u32 pm_stride;

/* IPPROTO_UDP or IPPROTO_TCP. Both headers begin with the ports. */
const volatile __u32 pm_protocol;
/* 1: redirects only packets to pm_address. */
const volatile __u32 pm_filter;
/* In network byte order. An IPv4 address has the first four bytes. */
const volatile __be32 pm_address[4];
/* 1: redirects only datagrams that begin with pm_magic. */
const volatile __u32 pm_magic_needed;
/* The magic number, in host byte order. */
const volatile __u16 pm_magic;

/* Flag MF and the fragment offset: a fragment may have no ports. */
#define FRAGMENT_MASK 0x3fff

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct udphdr *udp;
	__be16 *magic;
	__u16 port;
	__u32 at = ctx->rx_queue_index;

	if ((void *)(ip + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if (ip->ihl != 5 || ip->protocol != pm_protocol ||
		    (ip->frag_off & bpf_htons(FRAGMENT_MASK)))
			return XDP_PASS;
		if (pm_filter && ip->daddr != pm_address[0])
			return XDP_PASS;
		udp = (void *)(ip + 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		if ((void *)(ip6 + 1) > end || ip6->nexthdr != pm_protocol)
			return XDP_PASS;
		if (pm_filter && (ip6->daddr.s6_addr32[0] != pm_address[0] ||
				  ip6->daddr.s6_addr32[1] != pm_address[1] ||
				  ip6->daddr.s6_addr32[2] != pm_address[2] ||
				  ip6->daddr.s6_addr32[3] != pm_address[3]))
			return XDP_PASS;
		udp = (void *)(ip6 + 1);
	} else {
		return XDP_PASS;
	}
	if ((void *)(udp + 1) > end)
		return XDP_PASS;
	port = bpf_ntohs(udp->dest);
	if (port < pm_port_first || port > pm_port_last)
		return XDP_PASS;
	magic = (void *)(udp + 1);
	if (pm_magic_needed && ((void *)(magic + 1) > end || *magic != bpf_htons(pm_magic)))
		return XDP_PASS;
	if (pm_stride) {
		if (at >= pm_stride)
			return XDP_PASS;
		at += (port - pm_port_first) * pm_stride;
	}
	return bpf_redirect_map(&pm_sockets, at, XDP_PASS);
}

char _license[] SEC("license") = "Dual MIT/GPL";

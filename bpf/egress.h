/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Egress: addresses, lengths and checksums of the packet that leaves, and the XDP action.
 *
 * Invariants: the lock is not held. The contents of the packet were written under the lock, or come
 * from pm_packet. send_durable() reads names without the lock, so it compares the generation last.
 * A packet leaves by XDP_TX, or by redirection if the route to its receiver leads through another
 * interface.
 *
 * Spec: docs/spec/pipeline.md §4, "Ways", and §5. This file must not change the log, a session or a
 * hop.
 */
#pragma once

#include "hops.h"

/* Folds a sum of words to 16 bits, in ones' complement (RFC 1071). */
static __always_inline __u32 fold_sum(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/*
 * Returns the IPv4 checksum, from the id and flags, which the header keeps, and from its new
 * values.
 */
static __always_inline __u16 ip4_checksum(const struct iphdr *ip, __be16 total, __be32 from,
					  __be32 to)
{
	const __u32 *words = (const void *)ip;

	return ~fold_sum((words[0] & 0xffff) + total + (__u64)words[1] +
			 bpf_htons(64 << 8 | IPPROTO_UDP) + from + to);
}

/*
 * Returns the sum of the ports and our header. Besides the addresses, nothing else changes in a
 * forwarded packet.
 */
static __always_inline __u64 sum_of_header(const struct pm_packet *pkt)
{
	const __u32 *p = (const void *)pkt->header;
	__u64 sum = *(__u32 *)&pkt->udp->source;

#pragma clang loop unroll(full)
	for (int i = 0; i < PM_HEADER_LEN / 4; i++)
		sum += p[i];
	return sum;
}

/* Returns the sum of the addresses of an IPv6 header. */
static __always_inline __u64 sum_of_addresses(const struct ipv6hdr *ip)
{
	const __u32 *p = (const void *)&ip->saddr;
	__u64 sum = 0;

	for (int i = 0; i < 8; i++)
		sum += p[i];
	return sum;
}

/*
 * Returns the sum of the other values that an IPv6 UDP checksum covers: all except addresses,
 * ports, our header and payload.
 */
static __always_inline __u64 sum_of_lengths(__u32 datagram_len)
{
	const __be16 udp_len = bpf_htons(sizeof(struct udphdr) + datagram_len);

	/* The UDP checksum covers the length twice: in the header and in the pseudo header. */
	return (__u64)udp_len + udp_len + bpf_htons(IPPROTO_UDP);
}

/*
 * Returns the UDP checksum, which IPv6 requires. @sum covers all that sum_of_header() and
 * sum_of_addresses() do not cover.
 */
static __always_inline __u16 udp6_checksum(const struct pm_packet *pkt, const struct ipv6hdr *ip,
					   __u64 sum)
{
	sum = ~fold_sum(sum + sum_of_header(pkt) + sum_of_addresses(ip)) & 0xffff;
	return sum ? sum : 0xffff;
}

/*
 * Removes the fields that will change from the UDP checksum of a packet that may be forwarded as an
 * APPEND over IPv6 (RFC 1624). The payload is not summed up again, so a wrong checksum stays wrong.
 */
static __always_inline void leave_out_of_checksum(struct pm_packet *pkt)
{
	const struct ipv6hdr *ip = pkt->ip;

	if (!pkt->ipv6 || (void *)(ip + 1) > pkt->end || (void *)(pkt->header + 1) > pkt->end)
		return;
	/* In ones' complement, adding the complement of a number subtracts the number. */
	pkt->udp_sum = (__u16)~pkt->udp->check +
		       (__u16)~fold_sum(sum_of_header(pkt) + sum_of_addresses(ip));
}

/* Swaps the two addresses of the Ethernet header, which lie side by side. */
static __always_inline void swap_mac_addresses(struct ethhdr *eth)
{
	void *bytes = eth;
	__u64 first = *(__u64 *)bytes, source = first >> 48 | (__u64)*(__u32 *)(bytes + 8) << 16;

	*(__u64 *)bytes = source | first << 48;
	*(__u32 *)(bytes + 8) = first >> 16;
}

/*
 * Addresses the packet to its sender, with a datagram of @datagram_len bytes. Over IPv6 the
 * datagram must have no payload.
 */
static __always_inline bool turn_around(struct pm_packet *pkt, __u32 datagram_len)
{
	const __u32 udp_len = sizeof(*pkt->udp) + datagram_len;
	__u32 ports;

	swap_mac_addresses(pkt->eth);
	/*
	 * The stores are of whole words, because sum_of_header() loads words: a load that spans two
	 * stores stalls.
	 */
	ports = *(__u32 *)&pkt->udp->source;
	*(__u32 *)&pkt->udp->source = ports << 16 | ports >> 16;
	*(__u32 *)&pkt->udp->len = bpf_htons(udp_len);
	if (pkt->ipv6) {
		struct ipv6hdr *ip = pkt->ip;
		struct in6_addr address;

		if ((void *)(ip + 1) > pkt->end)
			return false;
		address = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = address;
		ip->payload_len = bpf_htons(udp_len);
		ip->hop_limit = 64;
		if ((void *)(pkt->header + 1) > pkt->end)
			return false;
		pkt->udp->check = udp6_checksum(pkt, ip, sum_of_lengths(datagram_len));
	} else {
		struct iphdr *ip = pkt->ip;
		__be32 address = ip->saddr;
		__be16 total = bpf_htons(sizeof(*ip) + udp_len);
		__u16 check = ip4_checksum(ip, total, ip->saddr, ip->daddr);

		ip->saddr = ip->daddr;
		ip->daddr = address;
		ip->tot_len = total;
		ip->ttl = 64;
		ip->check = check;
	}
	return true;
}

/* Sends the header alone back to the sender of the packet. */
static __always_inline int reply_with_header(struct xdp_md *ctx, struct pm_packet *pkt)
{
	if (!turn_around(pkt, PM_HEADER_LEN))
		return XDP_PASS;
	if (pkt->payload_len && bpf_xdp_adjust_tail(ctx, -(int)pkt->payload_len))
		return XDP_DROP;
	return XDP_TX;
}

/*
 * Addresses a packet to its destination, with a datagram of @datagram_len bytes. The source is the
 * shard's address; in switch mode, towards another hop, it is the switch's own. Over IPv6, @udp_sum
 * is the sum of the lengths and of all bytes after our header, or the value that
 * leave_out_of_checksum() has stored.
 */
static __always_inline bool set_addresses(struct pm_packet *pkt, __u32 datagram_len, bool to_hop,
					  __u64 udp_sum)
{
	const __u32 udp_len = sizeof(*pkt->udp) + datagram_len;
	__u32 *mac = (void *)pkt->eth;

	mac[0] = pkt->way[0];
	mac[1] = pkt->way[1];
	mac[2] = pkt->way[2];
	pkt->udp->source = pm_port;
	pkt->udp->dest = pkt->to_port;
	pkt->udp->len = bpf_htons(udp_len);
	if (pkt->ipv6) {
		struct ipv6hdr *ip = pkt->ip;

		if ((void *)(ip + 1) > pkt->end)
			return false;
		*(__u64 *)&ip->saddr.s6_addr32[0] = pm_address_high;
		*(__u64 *)&ip->saddr.s6_addr32[2] = pm_address_low;
		*(__u64 *)&ip->daddr.s6_addr32[0] = pkt->to_high;
		*(__u64 *)&ip->daddr.s6_addr32[2] = pkt->to_low;
		ip->payload_len = bpf_htons(udp_len);
		ip->hop_limit = 64;
		pkt->udp->check = udp6_checksum(pkt, ip, udp_sum);
	} else {
		__be32 from = to_hop && pm_own_address ? pm_own_address : pm_address_low >> 32;
		__be16 total = bpf_htons(sizeof(struct iphdr) + udp_len);
		__be32 to = pkt->to_low >> 32;
		struct iphdr *ip = pkt->ip;
		__u16 check = ip4_checksum(ip, total, from, to);

		ip->saddr = from;
		ip->daddr = to;
		ip->tot_len = total;
		ip->ttl = 64;
		ip->check = check;
		pkt->udp->check = 0;
	}
	return true;
}

static __always_inline int transmit(struct xdp_md *ctx, const struct pm_packet *pkt)
{
	if (pkt->way[PM_WAY_INTERFACE] == ctx->ingress_ifindex)
		return XDP_TX;
	return bpf_redirect(pkt->way[PM_WAY_INTERFACE], 0);
}

/* Sends the entry to the next hop. */
static __always_inline int send_append(struct xdp_md *ctx, struct pm_packet *pkt)
{
	if ((void *)(pkt->header + 1) > pkt->end ||
	    !set_addresses(pkt, PM_HEADER_LEN + pkt->payload_len, true, pkt->udp_sum))
		return XDP_DROP;
	return transmit(ctx, pkt);
}

/*
 * Sends an acknowledgement to the client of the update that a DURABLE commits. The acknowledgement
 * replaces the DURABLE in the packet.
 */
static __always_inline int send_ack(struct xdp_md *ctx, struct pm_packet *pkt)
{
	if ((void *)(pkt->header + 1) > pkt->end ||
	    !set_addresses(pkt, PM_HEADER_LEN, false, sum_of_lengths(PM_HEADER_LEN)))
		return XDP_DROP;
	if (bpf_xdp_adjust_tail(ctx, -(int)pkt->payload_len))
		return XDP_DROP;
	return transmit(ctx, pkt);
}

/*
 * Sends a DURABLE to the previous hop: a row of this device, and a row for each device downstream,
 * with the orders in @orders.
 */
static __always_inline int send_durable(struct xdp_md *ctx, struct pm_packet *pkt,
					const struct pm_maps *m, const __u64 *orders, __u32 zero)
{
	const struct pm_shard *shard = m->shard;
	const struct pm_hops *hops = m->hops;
	__u32 behind = hops->behind, length = (behind + 1) * PM_ROW_BYTES, crc = ~0u;
	__u64 sum = sum_of_lengths(PM_HEADER_LEN + length);
	pm_table t = pm_slice;
	struct pm_header *h;
	void *rows;

	if (behind > PM_BEHIND_MAX || bpf_xdp_adjust_tail(ctx, (int)length - (int)pkt->payload_len))
		return XDP_PASS;
	/* The helper has invalidated all packet pointers. */
	pkt->eth = (void *)(long)ctx->data;
	pkt->end = (void *)(long)ctx->data_end;
	pkt->ip = pkt->eth + 1;
	pkt->udp = pkt->ip + (pkt->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	h = (void *)(pkt->udp + 1);
	if ((void *)(h + 1) > pkt->end)
		return XDP_DROP;
	pkt->header = h;
	rows = (void *)(h + 1) + (zero & PACKET_MASK);
	OPAQUE(t);
#pragma clang loop unroll(full)
	for (__u32 i = 0; i <= PM_BEHIND_MAX; i++) {
		struct pm_row *row = rows + i * PM_ROW_BYTES;

		if (i > behind)
			continue;
		if ((void *)(row + 1) > pkt->end)
			return XDP_DROP;
		row->name = i ? hops->names[i - 1] : shard->device_incarnation;
		row->order = i ? bpf_cpu_to_be64(orders[i - 1]) : pkt->persisted_be;
		sum += (row->name >> 32) + (__u32)row->name;
		sum += (row->order >> 32) + (__u32)row->order;
		crc = crc_add8(t, crc, row->name);
		OPAQUE(crc);
		crc = crc_add8(t, crc, row->order);
		OPAQUE(crc);
	}
	h->kind_word = PM_DURABLE_WORD | (__u64)(behind + 1) << PM_DURABLE_ROWS_SHIFT;
	h->shard_epoch = shard->shard_epoch;
	h->device_incarnation = shard->device_incarnation;
	h->session = 0;
	h->durable.reserved_seq = 0;
	h->durable.persisted = pkt->persisted_be;
	h->durable.room = pkt->room_be;
	h->durable.reserved_key_hash = 0;
	h->fragment_index = 0;
	h->fragment_count = bpf_htons(1);
	h->payload_len = bpf_htonl(length);
	h->payload_crc = bpf_htonl(~crc);
#if PM_KEYED
	h->tag = make_tag(ctx, payload_offset(pkt), length, m->keys->own[0], m->keys->own[1]);
#else
	h->tag = shard->token;
#endif
	h->header_crc = bpf_htonl(header_crc(h));
	/*
	 * The orders were read under the lock, the names without it. If user space has held the
	 * shard in between, names and orders may not belong together.
	 */
	if (*(volatile __u32 *)&shard->generation != pkt->generation)
		return XDP_DROP;
	if (!set_addresses(pkt, PM_HEADER_LEN + length, true, sum))
		return XDP_DROP;
	return transmit(ctx, pkt);
}

/*
 * Passes the packet to user space unchanged. In switch mode the packet is addressed to the server,
 * but the network stack of the bridge must deliver it: its destination IP and hardware addresses
 * become the bridge's.
 */
static __always_inline int hand_up(struct pm_packet *pkt)
{
	struct iphdr *ip = pkt->ip;
	__u32 sum;

	if (!pm_own_address || pkt->ipv6 || pkt->to_switch)
		return XDP_PASS;
	for (int i = 0; i < ETH_ALEN; i++)
		pkt->eth->h_dest[i] = pm_own_mac[i];
	/* Updates the checksum for the new address (RFC 1624). */
	sum = (__u16)~ip->check;
	sum += (__u16)~(ip->daddr & 0xffff);
	sum += (__u16)~(ip->daddr >> 16);
	sum += pm_own_address & 0xffff;
	sum += pm_own_address >> 16;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	ip->daddr = pm_own_address;
	/* No UDP checksum: our header and payload have checksums of their own. */
	pkt->udp->check = 0;
	return XDP_PASS;
}

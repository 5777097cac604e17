/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Ingress: is this packet for the shard, well formed, of the current epoch, from its expected
 * sender, and undamaged?
 *
 * Invariants: no code changes a packet before all of these questions are answered, so user space
 * gets the packet as it came. Every access follows a check against the end of the packet. Headers
 * of updates are verified from the session's part of the checksum (crc.h); all other headers are
 * verified in full.
 *
 * Spec: docs/spec/pipeline.md §1, points 1 to 4. This file must not take the lock, or change a
 * packet or a map.
 */
#pragma once

#include "mac.h"

/* A bit of frag_off. In a packet that is no fragment, all other bits are zero. */
#define IP_DONT_FRAGMENT 0x4000

/*
 * Is this a UDP packet to the address and port of the shard, or of the switch in which the program
 * runs? And has it no IP options, extension headers, fragments or VLAN tags?
 */
static __always_inline bool is_for_shard(struct xdp_md *ctx, struct pm_packet *pkt)
{
	void *data = (void *)(long)ctx->data;

	pkt->end = (void *)(long)ctx->data_end;
	pkt->eth = data;
	pkt->ip = data + sizeof(struct ethhdr);
	if (pkt->ip + sizeof(struct iphdr) > pkt->end)
		return false;
	if (pkt->eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = pkt->ip;

		if (ip->ihl != 5 || ip->protocol != IPPROTO_UDP ||
		    (ip->frag_off & ~bpf_htons(IP_DONT_FRAGMENT)))
			return false;
		pkt->to_switch = pm_own_address && ip->daddr == pm_own_address;
		if (!pkt->to_switch &&
		    (pm_address_high || pm_address_low != ((__u64)ip->daddr << 32 | 0xffff0000)))
			return false;
		pkt->udp = (void *)(ip + 1);
		pkt->ipv6 = false;
	} else if (pkt->eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = pkt->ip;

		/*
		 * pm_address_* of an IPv4 shard is an IPv4-mapped address, which no packet has.
		 */
		if (!is_ipv6_shard() || (void *)(ip + 1) > pkt->end || ip->nexthdr != IPPROTO_UDP)
			return false;
		if (*(__u64 *)&ip->daddr.s6_addr32[0] != pm_address_high ||
		    *(__u64 *)&ip->daddr.s6_addr32[2] != pm_address_low)
			return false;
		pkt->udp = (void *)(ip + 1);
		pkt->ipv6 = true;
	} else {
		return false;
	}
	return (void *)(pkt->udp + 1) <= pkt->end && pkt->udp->dest == pm_port;
}

/*
 * Does one of our headers follow the UDP header, with fragment numbers in range, and do all lengths
 * equal the packet's?
 */
static __always_inline bool is_well_formed(struct pm_packet *pkt)
{
	struct pm_header *h = (void *)(pkt->udp + 1);
	__u32 count, length;

	if ((void *)(h + 1) > pkt->end)
		return false;
	pkt->header = h;
	pkt->payload = h + 1;
	count = bpf_ntohs(h->fragment_count);
	length = bpf_ntohl(h->payload_len);
	pkt->payload_len = length;
	return count - 1 < PM_FRAGMENTS_MAX && bpf_ntohs(h->fragment_index) < count &&
	       length <= PM_FRAGMENT_BYTES && pkt->payload + length == pkt->end &&
	       bpf_ntohs(pkt->udp->len) == sizeof(*pkt->udp) + PM_HEADER_LEN + length;
}

/*
 * Is the packet an update of this shard and epoch, with zeros in the fields that a client leaves
 * zero?
 */
static __always_inline bool is_current_update(struct pm_packet *pkt, const struct pm_shard *shard)
{
	const struct pm_header *h;

	if (!is_well_formed(pkt) || pkt->to_switch)
		return false;
	h = pkt->header;
	return h->kind_word == PM_UPDATE_WORD && h->shard_epoch == shard->shard_epoch &&
	       !h->device_incarnation && !h->update.reserved_order && !h->update.reserved_request;
}

/*
 * Is the well-formed packet a READ of this shard and epoch, with zeros in the fields that a client
 * leaves zero?
 */
static __always_inline bool is_current_read(const struct pm_packet *pkt,
					    const struct pm_shard *shard)
{
	const struct pm_header *h = pkt->header;

	return h && !pkt->to_switch &&
	       (h->kind_word == PM_READ_WORD || h->kind_word == PM_KEPT_READ_WORD) &&
	       h->shard_epoch == shard->shard_epoch &&
	       !h->device_incarnation && !h->read.size && !h->read.reserved_order &&
	       !h->read.reserved_key_hash && !h->fragment_index &&
	       h->fragment_count == bpf_htons(1);
}

/* Does the packet come from this address and port? */
static __always_inline bool is_from(const struct pm_packet *pkt, __u64 high, __u64 low, __u32 port)
{
	if (pkt->ipv6) {
		const struct ipv6hdr *ip = pkt->ip;

		if ((void *)(ip + 1) > pkt->end || *(__u64 *)&ip->saddr.s6_addr32[0] != high ||
		    *(__u64 *)&ip->saddr.s6_addr32[2] != low)
			return false;
	} else {
		const struct iphdr *ip = pkt->ip;

		if (high || ((__u64)ip->saddr << 32 | 0xffff0000) != low)
			return false;
	}
	return pkt->udp->source == port;
}

/*
 * Does the packet have the session's token, and the address to which the session's acknowledgements
 * go? (With keys the tag is a MAC, which is verified later.)
 */
static __always_inline bool is_from_client(const struct pm_packet *pkt,
					   const struct pm_session *session)
{
	return (PM_KEYED || pkt->header->tag == session->token) &&
	       is_from(pkt, session->address_high, session->address_low, session->port);
}

/*
 * Is the packet of this kind, shard and epoch, with the token between hops, from the hop at this
 * address and port? With keys, tag and address are not compared: the MAC is verified after the
 * checksums.
 */
static __always_inline bool is_from_hop(struct pm_packet *pkt, const struct pm_shard *shard,
					__u64 kind_word, __u64 high, __u64 low, __u32 port)
{
	const struct pm_header *h;

	if (!is_well_formed(pkt))
		return false;
	h = pkt->header;
	return h->kind_word == kind_word && h->shard_epoch == shard->shard_epoch &&
	       (PM_KEYED || h->tag == shard->token) && port &&
	       (PM_KEYED || is_from(pkt, high, low, port));
}

static __always_inline __u32 payload_offset(const struct pm_packet *pkt)
{
	const __u32 ip = pkt->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	return sizeof(struct ethhdr) + ip + sizeof(struct udphdr) + PM_HEADER_LEN;
}

/*
 * Are both checksums of this update right? The session's part covers an update with one fragment
 * and zeros in seq, key hash, length and payload checksum. The contributions of the other values
 * are added to it, and kept in @pkt for the entry's header.
 */
static __always_inline bool is_update_intact(struct xdp_md *ctx, struct pm_packet *pkt,
					     const struct pm_session *session)
{
	struct pm_header *h = pkt->header;
	/* Index, count and length of the fragment. */
	__u64 fragment = *(__u64 *)&h->fragment_index;
	/* Index 0, count 1. */
	const __u32 one = (__u32)bpf_htons(1) << 16;
	__u32 crc;

	pkt->seq_crc = field_crc_from(FIELD(update.seq), h->update.seq, session->seq_known,
				      session->seq_places);
	/* The largest length fits the last two of the field's four bytes. */
	pkt->fields_crc = pkt->seq_crc ^ field_crc(FIELD(payload_len) + 2, 2, fragment >> 48) ^
			  field_crc(FIELD(payload_crc), 4, h->payload_crc);
	if (h->update.key_hash)
		pkt->fields_crc ^= field_crc(FIELD(update.key_hash), 8, h->update.key_hash);
	if ((__u32)fragment != one)
		pkt->fields_crc ^= field_crc(FIELD(fragment_index), 4, (__u32)fragment ^ one);
	crc = session->update_crc ^ pkt->fields_crc;
#if PM_KEYED
	/* The session's part covers a tag of zeros. */
	crc ^= tag_crc(h->tag);
#endif
	if (bpf_htonl(crc) != h->header_crc)
		return false;
	return payload_crc(ctx, payload_offset(pkt), pkt->payload_len) == bpf_ntohl(h->payload_crc);
}

/* Are both checksums of this packet, of any kind, right? */
static __always_inline bool is_packet_intact(struct xdp_md *ctx, struct pm_packet *pkt)
{
	return bpf_htonl(header_crc(pkt->header)) == pkt->header->header_crc &&
	       payload_crc(ctx, payload_offset(pkt), pkt->payload_len) ==
		       bpf_ntohl(pkt->header->payload_crc);
}

#if PM_KEYED
/* The result of verifying a packet's MAC. */
enum pm_seal {
	PM_SEALED,		/* it is right */
	PM_FORGED,		/* it is wrong: the packet is to be dropped */
	PM_NOT_SURE,		/* wrong, but the keys may have changed: to user space */
};

/* Returns what it means that a MAC does not verify with the keys of the packet's generation. */
static __always_inline enum pm_seal seal_is_wrong(const struct pm_packet *pkt,
						  const struct pm_maps *m)
{
	asm volatile("" ::: "memory");
	if (!*(volatile __u32 *)&m->shard->admits ||
	    *(volatile __u32 *)&m->shard->generation != pkt->generation) {
		COUNT(m->counts, held);
		return PM_NOT_SURE;
	}
	COUNT(m->counts, forged);
	return PM_FORGED;
}

/* Has the session's client sealed this READ? */
static __always_inline enum pm_seal verify_read(struct xdp_md *ctx, const struct pm_packet *pkt,
						const struct pm_maps *m,
						const struct pm_session_keys *keys)
{
	if (is_sealed(ctx, payload_offset(pkt), pkt->payload_len, keys->to_head[0],
		      keys->to_head[1]))
		return PM_SEALED;
	return seal_is_wrong(pkt, m);
}

/*
 * Has the session's client sealed this update? If this device forwards the entry, the same pass
 * makes the entry's tag, for the order that the entry will most likely get.
 */
static __always_inline enum pm_seal verify_update(struct xdp_md *ctx, struct pm_packet *pkt,
						  const struct pm_maps *m,
						  const struct pm_session_keys *keys)
{
	const struct pm_shard *shard = m->shard;
	struct pm_seals seals = {};

	if (shard->alone)
		return verify_read(ctx, pkt, m, keys);
	seals.from[0] = keys->to_head[0];
	seals.from[1] = keys->to_head[1];
	seals.own[0] = m->keys->own[0];
	seals.own[1] = m->keys->own[1];
	seals.kind_word = PM_APPEND_WORD;
	seals.device_incarnation = shard->device_incarnation;
	seals.order = bpf_cpu_to_be64(*(volatile __u64 *)&shard->last + 1);
	if (!verify_and_make(ctx, payload_offset(pkt), pkt->payload_len, &seals))
		return seal_is_wrong(pkt, m);
	pkt->entry_order = seals.order;
	pkt->entry_tag = seals.tag;
	return PM_SEALED;
}

/*
 * Has the hop with one of these two keys sealed the packet? The second key is used during a
 * rollover.
 */
static __always_inline enum pm_seal verify_hop(struct xdp_md *ctx, const struct pm_packet *pkt,
					       const struct pm_maps *m, const __u64 *keys)
{
	__u32 offset = payload_offset(pkt);

	if (is_sealed(ctx, offset, pkt->payload_len, keys[0], keys[1]) ||
	    is_sealed(ctx, offset, pkt->payload_len, keys[2], keys[3]))
		return PM_SEALED;
	return seal_is_wrong(pkt, m);
}

/*
 * Has the previous hop sealed this entry? If this device forwards the entry, the same pass makes
 * the entry's new tag; otherwise the tag is 0.
 */
static __always_inline enum pm_seal verify_entry(struct xdp_md *ctx, struct pm_packet *pkt,
						 const struct pm_maps *m)
{
	const struct pm_hop_keys *keys = m->keys;
	struct pm_seals seals = {};

	pkt->entry_tag = 0;
	if (!m->hops->behind)
		return verify_hop(ctx, pkt, m, keys->before);
	seals.from[0] = keys->before[0];
	seals.from[1] = keys->before[1];
	seals.own[0] = keys->own[0];
	seals.own[1] = keys->own[1];
	seals.kind_word = pkt->header->kind_word;
	seals.device_incarnation = pkt->header->device_incarnation;
	seals.order = pkt->header->append.order;
	if (!verify_and_make(ctx, payload_offset(pkt), pkt->payload_len, &seals) &&
	    !is_sealed(ctx, payload_offset(pkt), pkt->payload_len, keys->before[2],
		       keys->before[3]))
		return seal_is_wrong(pkt, m);
	pkt->entry_tag = seals.tag;
	return PM_SEALED;
}
#endif

/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Keys: the MACs of a shard with keys, SipHash-2-4 (J.-P. Aumasson, D. J. Bernstein, 2012). Only
 * the program with keys (PM_KEYED) has this code; without keys a tag is a token.
 *
 * A MAC covers the header with zeros as checksum and tag, then the payload. The header has eleven
 * whole words, so the payload begins with a word.
 *
 * Invariants: a packet is dropped as forged only if the keys cannot have changed while it was
 * verified. The keys cannot have changed if the pipeline admits, and the generation is the same as
 * before the keys were read. A key of zeros is no key, and verifies nothing. Loops are bounded by
 * the largest payload.
 *
 * Spec: docs/spec/keys.md §1 and §3, docs/spec/pipeline.md §10. This file must not derive keys, or
 * decide which sender may send which packet.
 */
#pragma once

#include "crc.h"
#include "maps.h"

#if PM_KEYED
/* The state of one computation of a hash. */
struct pm_sip {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotate(__u64 word, int by)
{
	return word << by | word >> (64 - by);
}

static __always_inline void sip_round(struct pm_sip *s)
{
	s->v0 += s->v1;
	s->v1 = rotate(s->v1, 13) ^ s->v0;
	s->v0 = rotate(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotate(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotate(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotate(s->v1, 17) ^ s->v2;
	s->v2 = rotate(s->v2, 32);
}

static __always_inline void sip_begin(struct pm_sip *s, __u64 first, __u64 second)
{
	s->v0 = first ^ 0x736f6d6570736575ull;
	s->v1 = second ^ 0x646f72616e646f6dull;
	s->v2 = first ^ 0x6c7967656e657261ull;
	s->v3 = second ^ 0x7465646279746573ull;
}

static __always_inline void sip_add(struct pm_sip *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	sip_round(s);
	s->v0 ^= word;
}

static __always_inline __be64 sip_end(struct pm_sip *s)
{
	s->v2 ^= 0xff;
	sip_round(s);
	sip_round(s);
	sip_round(s);
	sip_round(s);
	return bpf_cpu_to_be64(s->v0 ^ s->v1 ^ s->v2 ^ s->v3);
}

/* The last word: the bytes after the last whole word of the payload, and the total length. */
static __always_inline __u64 last_word(const __u64 *last_eight, __u32 length)
{
	__u32 odd = length & 7;
	__u64 word = (__u64)(PM_HEADER_LEN + length) << 56;

	return odd ? word | *last_eight >> (64 - 8 * odd) : word;
}

static __always_inline void sip_header(struct pm_sip *s, const struct pm_header *h)
{
	const __u64 *words = (const void *)h;

#pragma clang loop unroll(full)
	for (int i = 0; i < 9; i++)
		sip_add(s, words[i]);
	sip_add(s, h->payload_crc);
	sip_add(s, 0);
}

/* The locations of a packet's words. */
struct pm_words {
	const struct pm_header *h;
	const __u64 *last;	/* the last eight bytes */
	void *payload, *end;
};

/*
 * Finds the words of a packet. The packet's payload reaches from @offset of the frame to the
 * frame's end. The pointer to the payload has an identity of its own (unknown_zero()).
 */
static __always_inline bool find_words(struct xdp_md *ctx, __u32 offset, __u32 length,
				       struct pm_words *words)
{
	void *data = (void *)(long)ctx->data, *last;
	__u32 zero = offset / (PACKET_MASK + 1) & PACKET_MASK;

	words->end = (void *)(long)ctx->data_end;
	words->h = data + ((offset - PM_HEADER_LEN) & PACKET_MASK);
	if ((void *)(words->h + 1) > words->end)
		return false;
	last = (void *)words->h + PM_HEADER_LEN - 8;
	words->payload = last + 8 + zero;
	last += length & PACKET_MASK;
	if (last + 8 > words->end)
		return false;
	words->last = last;
	return true;
}

static __always_inline __be64 mac_of(const struct pm_words *words, __u32 length, __u64 first,
				     __u64 second)
{
	void *p = words->payload;
	struct pm_sip s;

	sip_begin(&s, first, second);
	sip_header(&s, words->h);
#pragma clang loop unroll(disable)
	for (int i = 0; i < PM_FRAGMENT_BYTES / 8; i++) {
		if (p + 8 > words->end)
			break;
		sip_add(&s, *(__u64 *)p);
		p += 8;
	}
	sip_add(&s, last_word(words->last, length));
	return sip_end(&s);
}

/*
 * Was the packet sealed with this key, and is it unchanged? Its payload begins at @offset and has
 * @length bytes. This function and the next three are global: the verifier checks each once.
 */
__attribute__((noinline)) bool is_sealed(struct xdp_md *ctx, __u32 offset, __u32 length,
					 __u64 first, __u64 second)
{
	struct pm_words words;

	if (!(first | second) || !find_words(ctx, offset, length, &words))
		return false;
	return !(mac_of(&words, length, first, second) ^ words.h->tag);
}

/* Makes the tag, with this key, of a packet that will be sent. */
__attribute__((noinline)) __u64 make_tag(struct xdp_md *ctx, __u32 offset, __u32 length,
					 __u64 first, __u64 second)
{
	struct pm_words words;

	if (!find_words(ctx, offset, length, &words))
		return 0;
	return mac_of(&words, length, first, second);
}

/* Makes the tag, with this key, of a packet that will be sent as a header without a payload. */
__attribute__((noinline)) __u64 make_header_tag(struct xdp_md *ctx, __u32 offset, __u64 first,
						__u64 second)
{
	struct pm_words words;
	struct pm_sip s;

	if (!find_words(ctx, offset, 0, &words))
		return 0;
	sip_begin(&s, first, second);
	sip_header(&s, words.h);
	sip_add(&s, (__u64)PM_HEADER_LEN << 56);
	return sip_end(&s);
}

/*
 * The input and the result of two MACs in one pass: the MAC of a packet, and the MAC of its entry.
 */
struct pm_seals {
	__u64 from[2];		/* the key under which the packet was sealed */
	__u64 own[2];		/* the key under which the entry will be sealed */
	/* Fields of the entry's header that differ from the packet's. */
	__u64 kind_word, device_incarnation;
	__be64 order;
	__be64 tag;		/* of the entry: the result */
	__u64 tail;		/* only used inside */
};

/*
 * Was the packet sealed with `from`, and is it unchanged? If the packet passes, @seals gets the
 * entry's tag.
 */
__attribute__((noinline)) bool verify_and_make(struct xdp_md *ctx, __u32 offset, __u32 length,
					       struct pm_seals *seals)
{
	struct pm_sip a, b;
	struct pm_words words;
	const __u64 *header;
	__u64 wrong;
	void *p;

	if (!seals || !(seals->from[0] | seals->from[1]) ||
	    !find_words(ctx, offset, length, &words))
		return false;
	_Static_assert(FIELD(append.order) == 40, "order");
	header = (const void *)words.h;
	sip_begin(&a, seals->from[0], seals->from[1]);
	sip_begin(&b, seals->own[0], seals->own[1]);
	/*
	 * These values are needed after the loop. Older kernels leave this function 96 bytes of
	 * stack.
	 */
	seals->tail = last_word(words.last, length);
	seals->tag = words.h->tag;
#pragma clang loop unroll(full)
	for (int i = 0; i < 9; i++) {
		sip_add(&a, header[i]);
		sip_add(&b, i == 0 ? seals->kind_word :
			    i == 2 ? seals->device_incarnation :
			    i == 5 ? seals->order : header[i]);
	}
	sip_add(&a, words.h->payload_crc);
	sip_add(&b, words.h->payload_crc);
	sip_add(&a, 0);
	sip_add(&b, 0);
	p = words.payload;
#pragma clang loop unroll(disable)
	for (int i = 0; i < PM_FRAGMENT_BYTES / 8; i++) {
		if (p + 8 > words.end)
			break;
		sip_add(&a, *(__u64 *)p);
		sip_add(&b, *(__u64 *)p);
		p += 8;
	}
	asm volatile("" ::: "memory");
	sip_add(&a, seals->tail);
	sip_add(&b, seals->tail);
	wrong = sip_end(&a) ^ seals->tag;
	seals->tag = sip_end(&b);
	return !wrong;
}

/* Contribution of the tag, the last eight bytes of a header, to the checksum. */
static __always_inline __u32 tag_crc(__be64 tag)
{
	pm_table t = pm_slice;

	OPAQUE(t);
	return crc_add8(t, 0, tag);
}
#endif

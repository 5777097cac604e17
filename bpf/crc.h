/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Checksums: CRC32C of payloads and headers, by tables.
 *
 * CRC32C is linear. The checksum of a header is the checksum of the same header with zeros in some
 * fields, XOR the contributions of these fields. User space computes the first part once for each
 * session; pm_place gives the contribution of each byte at each offset. With a few look-ups each,
 * the header of an update is verified, and the headers of its entry and its acknowledgement are
 * made. Checksums of payloads, and of headers between hops, are computed in full.
 *
 * Invariants: every index into a table is below 256 for the verifier of Linux 6.1 too. That
 * verifier loses bounds at an XOR, so the mask comes after the XOR. Loops are bounded by the
 * largest payload.
 *
 * Spec: docs/spec/wire.md (what is covered), docs/spec/pipeline.md §3. This file must not write to
 * packets or maps, or decide anything about a packet.
 */
#pragma once

#include "types.h"

typedef const __u32 (*pm_table)[256];

/*
 * Returns the value of one byte in table @which; @index is the byte times four. The sum of pointer
 * and index is written in assembly because the compiler would copy the pointer first.
 */
static __always_inline __u32 crc_look_up(pm_table t, int which, __u64 index)
{
	asm("%0 += %1" : "+r"(index) : "r"(t));
	return *(const __u32 *)((const void *)index + which * sizeof(*t));
}

/*
 * Returns the contribution of four bytes in memory; table @last is that of the last byte. Byte
 * loads cost less than shifts.
 */
static __always_inline __u32 crc_bytes4(pm_table t, int last, const __u8 *p)
{
	__u32 sum = crc_look_up(t, last + 3, (__u64)p[0] << 2) ^
		    crc_look_up(t, last + 2, (__u64)p[1] << 2);

	OPAQUE(sum);
	sum ^= crc_look_up(t, last + 1, (__u64)p[2] << 2) ^ crc_look_up(t, last, (__u64)p[3] << 2);
	OPAQUE(sum);
	return sum;
}

/* Returns the contribution of the four bytes of @word; the first byte is in its lowest bits. */
static __always_inline __u32 crc_word4(pm_table t, int last, __u32 word)
{
	__u32 sum = crc_look_up(t, last + 3, (word << 2) & 0x3fc) ^
		    crc_look_up(t, last + 2, (word >> 6) & 0x3fc);

	return sum ^ crc_look_up(t, last + 1, (word >> 14) & 0x3fc) ^
	       crc_look_up(t, last, (word >> 22) & 0x3fc);
}

/* Returns the checksum's state after eight more bytes. */
static __always_inline __u32 crc_add8(pm_table t, __u32 crc, __u64 word)
{
	__u32 sum = crc_word4(t, 0, word >> 32);

	OPAQUE(sum);
	return crc_word4(t, 4, (__u32)word ^ crc) ^ sum;
}

/*
 * Returns the CRC32C of the payload, which reaches from @offset of the frame to the frame's end.
 * First come the 1 to 7 bytes that do not fill a word, then 8 bytes if the rest is no multiple of
 * 16, then 16 bytes in each step. In a step of 16 bytes, only the first four bytes depend on the
 * step before, so the CPU can look up the other twelve early.
 *
 * A global function: the verifier checks it once, with its loop, and not again for each caller and
 * state.
 */
__attribute__((noinline)) __u32 payload_crc(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	void *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	/* Always 0, but the verifier does not know that (see unknown_zero()). */
	__u32 zero = offset / (PACKET_MASK + 1) & PACKET_MASK;
	__u32 odd = length & 7, crc = ~zero, sum;
	pm_table t = pm_slice;

	OPAQUE(t);
	p += (offset - 8) & PACKET_MASK;
	if (odd) {
		/*
		 * Loads the word that ends with the odd bytes, and shifts out the bytes before
		 * them. The odd bytes are then the last bytes of a word that begins with zeros.
		 * Leading zeros contribute nothing.
		 */
		void *last = p + odd;
		__u32 shift = 64 - 8 * odd;
		__u64 word;

		if (last + 8 > end)
			return 0;
		word = (*(__u64 *)last >> shift ^ crc) << shift;
		crc = crc_word4(t, 0, word >> 32) ^ crc_word4(t, 4, word) ^
		      (__u64)crc >> (64 - shift);
	}
	p += 8 + odd;
	if (length & 8) {
		if (p + 8 > end)
			return 0;
		sum = crc_bytes4(t, 0, p + 4);
		crc = crc_word4(t, 4, *(__u32 *)p ^ crc) ^ sum;
		p += 8;
	}
	p += zero;
#pragma clang loop unroll(disable)
	for (int i = 0; i < PM_FRAGMENT_BYTES / 16; i++) {
		if (p + 16 > end)
			break;
		sum = crc_bytes4(t, 0, p + 12);
		sum ^= crc_bytes4(t, 4, p + 8);
		sum ^= crc_bytes4(t, 8, p + 4);
		crc = crc_word4(t, 12, *(__u32 *)p ^ crc) ^ sum;
		p += 16;
	}
	return ~crc;
}

/* CRC32C of a whole header without the checksum field itself. */
static __always_inline __u32 header_crc(const struct pm_header *h)
{
	const __u64 *words = (const void *)h;
	pm_table t = pm_slice;
	__u32 crc = ~0u;

	OPAQUE(t);
#pragma clang loop unroll(full)
	for (int i = 0; i < 9; i++) {
		crc = crc_add8(t, crc, words[i]);
		OPAQUE(crc);
	}
	crc = crc_word4(t, 0, crc ^ h->payload_crc);
	OPAQUE(crc);
	return ~crc_add8(t, crc, h->tag);
}

/*
 * Returns the contribution of a field of @bytes bytes, at most 8, to the checksum of a header that
 * has the field at @offset.
 */
static __always_inline __u32 field_crc(__u32 offset, int bytes, __u64 word)
{
	pm_table t = pm_place + (offset - PM_PLACE_FIRST);
	__u32 sum = 0;

	OPAQUE(t);
	for (int i = 0; i < bytes; i++) {
		sum ^= t[i][word & 255];
		word >>= 8;
		OPAQUE(sum);
	}
	return sum;
}

/*
 * Returns the contribution of a field of eight bytes in network byte order, given the contribution
 * @known_crc of another value, @known. A counter mostly differs from its last value in the last
 * byte only: the function then needs one look-up.
 */
static __always_inline __u32 field_crc_from(__u32 offset, __u64 word, __u64 known, __u32 known_crc)
{
	pm_table t = pm_place + (offset + 7 - PM_PLACE_FIRST);

	word ^= known;
	OPAQUE(t);
	known_crc ^= t[0][word >> 56];
	if (word << 8)
		known_crc ^= field_crc(offset, 7, word & ~(0xffull << 56));
	return known_crc;
}

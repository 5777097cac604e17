// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT
/*
 * The device's fast path in the kernel (docs/spec/pipeline.md): an update of a known session, in
 * order, with room in the log, is appended and acknowledged before the network stack sees it.
 *
 *   ingress     is it such an update, whole, for this shard, of a session that is served here?
 *   log access  under the shard's lock: rule 2 (session order), append, the cursors
 *   egress      the packet becomes its own acknowledgement and goes back where it came from
 *
 * In a chain the packet goes on as an entry instead (APPEND), the last device makes a DURABLE of it,
 * and the head makes the acknowledgement of that: one packet all the way there and back.
 *
 * Whatever is not exactly that goes up to the device in user space, unchanged, which knows all
 * rules; so this file decides nothing that the machine would decide otherwise.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "generated.h"

/* The compiler must not know where this came from: it would spill or unroll what it derives. */
#define OPAQUE(x) asm volatile("" : "+r"(x))
/* Offsets in a packet, bounded for the verifier in a way that keeps its states alike. */
#define PACKET_MASK 2047
/* No verdict of XDP. */
#define PM_NOT_AN_UPDATE (-1)

/* Set when the program is loaded; known to the verifier as constants. */
const volatile __u64 pm_entries;	/* of the log, a power of two */
const volatile __u64 pm_frame_bytes;	/* of its frame ring, a power of two */
const volatile __u64 pm_address_high;	/* of the shard: IPv6, or ::ffff: and IPv4, as in packets */
const volatile __u64 pm_address_low;
const volatile __u32 pm_port;		/* of the shard, in network byte order */
const volatile __u32 pm_session_mask;	/* a session is in the row with these bits of its id, if it is free */

/* In a switch: where the device's own socket is. What the pipeline does not do goes there. */
const volatile __u32 pm_own_address;	/* IPv4, as in packets; 0: it has the shard's address */
const volatile __u8 pm_own_mac[8];

struct pm_header {
	__u64 kind_word, shard_epoch, device_incarnation, session, seq, order, request, key_hash;
	__be16 fragment_index, fragment_count;
	__be32 payload_len, payload_crc, header_crc;
	__u64 tag;
};
_Static_assert(sizeof(struct pm_header) == PM_HEADER_LEN, "header");

struct pm_entry {
	__u64 order, session, seq;
	__u32 durable_lag, applied_lag, frame_line, frame_len, payload_crc;
	__u32 epoch, incarnation;
	__u16 fragment_index, fragment_count, header_len;
	__u8 kind, zero;
	__u32 checksum;	/* 0: whoever saves the log seals it (ordered-log.md) */
};
_Static_assert(sizeof(struct pm_entry) == PM_ENTRY_BYTES, "entry");

/* Sizes of image, sessions and session_rows are the loader's: it makes these maps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4096);
} pm_image SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_shard);
} pm_shards SEC(".maps");

/* The hops before and behind, in a chain. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_hops);
} pm_chain SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_session);
} pm_sessions SEC(".maps");

/* Session id to the number of its row. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} pm_session_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pm_counters);
} pm_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} pm_wakeups SEC(".maps");

/* A row of DURABLE: one device, and how far its log is durable. */
struct pm_row {
	__u64 name;	/* device and incarnation, as in a header */
	__be64 order;
};
_Static_assert(sizeof(struct pm_row) == PM_ROW_BYTES, "row");

/* One packet on its way through the stages. */
struct pm_update {
	struct ethhdr *eth;
	void *ip;
	struct udphdr *udp;
	struct pm_header *header;
	void *payload, *end;
	__u32 payload_len;
	__u32 places;		/* what the fields that change contribute to its checksum */
	__u32 seq_places;	/* the seq's part of it */
	__u32 generation;
	bool ipv6;
	bool wake;		/* user space slept when this was appended: it is to be woken */
	__u64 seq;
	/* In a chain: what a DURABLE says, as it stands there, and where the packet goes. */
	__be64 order_be, room_be;
	__u32 to_address, to_port, way[4];
};

enum pm_verdict {
	PM_UP,		/* user space does it */
	PM_ACK,		/* back to the client, as its acknowledgement */
	PM_APPENDED,	/* in the log; user space sends it on */
	PM_FORWARD,	/* on to the next hop, as an entry */
	PM_TELL,	/* to the hop before, as a DURABLE */
	PM_CONFIRM,	/* to the client whose update it confirms, as its acknowledgement */
	PM_NOTED,	/* nothing more to do */
	PM_SKIPPED,	/* user space acknowledges what it confirms */
};

/* ---- checksums -------------------------------------------------------------------------------- */

typedef const __u32 (*pm_table)[256];

/*
 * What a byte contributes by table `which`; `index` is four times the byte. (The sum of pointer and index is
 * written out: the compiler would copy the pointer first.)
 */
static __always_inline __u32 look_up(pm_table t, int which, __u64 index)
{
	asm("%0 += %1" : "+r"(index) : "r"(t));
	return *(const __u32 *)((const void *)index + which * sizeof(*t));
}

/* What four bytes contribute if the last one does by table `last`; loads cost less than shifts and masks. */
static __always_inline __u32 bytes4(pm_table t, int last, const __u8 *p)
{
	__u32 sum = look_up(t, last + 3, (__u64)p[0] << 2) ^ look_up(t, last + 2, (__u64)p[1] << 2);

	OPAQUE(sum);
	sum ^= look_up(t, last + 1, (__u64)p[2] << 2) ^ look_up(t, last, (__u64)p[3] << 2);
	OPAQUE(sum);
	return sum;
}

/* The same of four bytes in a word, the first one in its lowest bits. */
static __always_inline __u32 word4(pm_table t, int last, __u32 word)
{
	/* Before Linux 6.10 the verifier loses the bounds of what is combined: the mask comes last. */
	__u32 sum = look_up(t, last + 3, (word << 2) & 0x3fc) ^ look_up(t, last + 2, (word >> 6) & 0x3fc);

	return sum ^ look_up(t, last + 1, (word >> 14) & 0x3fc) ^ look_up(t, last, (word >> 22) & 0x3fc);
}

/* The checksum's next state, after eight more bytes. */
static __always_inline __u32 slice8(pm_table t, __u32 crc, __u64 word)
{
	__u32 sum = word4(t, 0, word >> 32);

	OPAQUE(sum);
	return word4(t, 4, (__u32)word ^ crc) ^ sum;
}

/*
 * CRC32C of the payload, which begins at this offset of the frame and fills the rest: of what is left of eight bytes,
 * of sixteen, then the rest. A function of its own, so that the verifier looks at its loop once and not at every
 * place from which it is called, in every state in which that can be.
 */
__attribute__((noinline)) __u32 payload_crc(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	void *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	/* The verifier does not know that this is 0: see `unknown_zero`. */
	__u32 zero = offset / (PACKET_MASK + 1) & PACKET_MASK;
	__u32 odd = length & 7, crc = ~zero, sum;
	pm_table t = pm_slice;

	OPAQUE(t);
	p += (offset - 8) & PACKET_MASK;
	if (odd) {
		/* They are the last of eight bytes of which the others are zeros, which change nothing. */
		void *last = p + odd;
		__u32 shift = 64 - 8 * odd;
		__u64 word;

		if (last + 8 > end)
			return 0;
		word = (*(__u64 *)last >> shift ^ crc) << shift;
		crc = word4(t, 0, word >> 32) ^ word4(t, 4, word) ^ (__u64)crc >> (64 - shift);
	}
	p += 8 + odd;
	if (length & 8) {
		if (p + 8 > end)
			return 0;
		sum = bytes4(t, 0, p + 4);
		crc = word4(t, 4, *(__u32 *)p ^ crc) ^ sum;
		p += 8;
	}
	p += zero;
#pragma clang loop unroll(disable)
	for (int i = 0; i < PM_FRAGMENT_BYTES / 16; i++) {
		if (p + 16 > end)
			break;
		/* What does not wait for the step before comes first. */
		sum = bytes4(t, 0, p + 12);
		sum ^= bytes4(t, 4, p + 8);
		sum ^= bytes4(t, 8, p + 4);
		crc = word4(t, 12, *(__u32 *)p ^ crc) ^ sum;
		p += 16;
	}
	return ~crc;
}

/* What `bytes` bytes, at most 8, contribute to a header's checksum from `place` on. */
static __always_inline __u32 places(__u32 place, int bytes, __u64 word)
{
	pm_table t = pm_place + (place - PM_PLACE_FIRST);
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
 * The same for a number in network byte order of which the contribution of another, `known`, is known.
 * Numbers that count differ from the one before in their last byte, so this is one look-up, mostly.
 */
static __always_inline __u32 places_from(__u32 place, __u64 word, __u64 known, __u32 sum)
{
	pm_table t = pm_place + (place + 7 - PM_PLACE_FIRST);

	word ^= known;
	OPAQUE(t);
	sum ^= t[0][word >> 56];
	if (word << 8)
		sum ^= places(place, 7, word & ~(0xffull << 56));
	return sum;
}

/* ---- ingress ---------------------------------------------------------------------------------- */

/* Is this UDP for the shard, without options, fragments, tags? */
static __always_inline bool find(struct xdp_md *ctx, struct pm_update *u)
{
	void *data = (void *)(long)ctx->data;

	u->end = (void *)(long)ctx->data_end;
	u->eth = data;
	u->ip = data + sizeof(struct ethhdr);
	if (u->ip + sizeof(struct iphdr) > u->end)
		return false;
	if (u->eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = u->ip;

		if (ip->ihl != 5 || ip->protocol != IPPROTO_UDP || (ip->frag_off & ~bpf_htons(0x4000)))
			return false;
		if (pm_address_high || pm_address_low != ((__u64)ip->daddr << 32 | 0xffff0000))
			return false;
		u->udp = (void *)(ip + 1);
		u->ipv6 = false;
	} else if (u->eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = u->ip;

		if ((void *)(ip + 1) > u->end || ip->nexthdr != IPPROTO_UDP)
			return false;
		if (*(__u64 *)&ip->daddr.s6_addr32[0] != pm_address_high ||
		    *(__u64 *)&ip->daddr.s6_addr32[2] != pm_address_low)
			return false;
		u->udp = (void *)(ip + 1);
		u->ipv6 = true;
	} else {
		return false;
	}
	return (void *)(u->udp + 1) <= u->end && u->udp->dest == pm_port;
}

/* Is there one of our headers behind UDP's, with fragments and lengths that agree with each other and the packet's? */
static __always_inline bool agrees(struct pm_update *u)
{
	struct pm_header *h = (void *)(u->udp + 1);
	__u32 count, length;

	if ((void *)(h + 1) > u->end)
		return false;
	u->header = h;
	u->payload = h + 1;
	count = bpf_ntohs(h->fragment_count);
	length = bpf_ntohl(h->payload_len);
	u->payload_len = length;
	return count - 1 < PM_FRAGMENTS_MAX && bpf_ntohs(h->fragment_index) < count &&
	       length <= PM_FRAGMENT_BYTES && u->payload + length == u->end &&
	       bpf_ntohs(u->udp->len) == sizeof(*u->udp) + PM_HEADER_LEN + length;
}

/* Is it an update of this epoch, with every field as a client of this version sends it? */
static __always_inline bool regular(struct pm_update *u, const struct pm_shard *shard)
{
	const struct pm_header *h;

	if (!agrees(u))
		return false;
	h = u->header;
	return h->kind_word == PM_UPDATE_WORD && h->shard_epoch == shard->shard_epoch &&
	       !h->device_incarnation && !h->order && !h->request;
}

/* Did it come from where the session's client is, under its token? Acknowledgements go there. */
static __always_inline bool from_its_client(struct pm_update *u, const struct pm_session *session)
{
	__u64 high = 0, low;

	if (u->ipv6) {
		struct ipv6hdr *ip = u->ip;

		if ((void *)(ip + 1) > u->end)
			return false;
		high = *(__u64 *)&ip->saddr.s6_addr32[0];
		low = *(__u64 *)&ip->saddr.s6_addr32[2];
	} else {
		struct iphdr *ip = u->ip;

		low = (__u64)ip->saddr << 32 | 0xffff0000;
	}
	return u->header->tag == session->token && u->udp->source == session->port &&
	       high == session->address_high && low == session->address_low;
}

static __always_inline __u32 payload_offset(const struct pm_update *u)
{
	const __u32 ip = u->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	return sizeof(struct ethhdr) + ip + sizeof(struct udphdr) + PM_HEADER_LEN;
}

/* Both checksums: the header's from the session's part and the fields that change. */
static __always_inline bool whole(struct xdp_md *ctx, struct pm_update *u, const struct pm_session *session)
{
	struct pm_header *h = u->header;
	__u64 fragment = *(__u64 *)&h->fragment_index;

	u->seq_places = places_from(32, h->seq, session->seq_known, session->seq_places);
	u->places = u->seq_places ^ places(70, 2, fragment >> 48) ^ places(72, 4, h->payload_crc);
	if (h->key_hash)
		u->places ^= places(56, 8, h->key_hash);
	if ((__u32)fragment != (__u32)bpf_htons(1) << 16)
		u->places ^= places(64, 4, (__u32)fragment ^ ((__u32)bpf_htons(1) << 16));
	if (bpf_htonl(session->update_crc ^ u->places) != h->header_crc)
		return false;
	return payload_crc(ctx, payload_offset(u), u->payload_len) == bpf_ntohl(h->payload_crc);
}

/* Is it a packet between hops of this shard, of this epoch and token, from this address? */
static __always_inline bool from_hop(struct pm_update *u, const struct pm_shard *shard, __u64 kind_word,
				     __u32 address, __u32 port)
{
	const struct iphdr *ip = u->ip;
	const struct pm_header *h;

	if (u->ipv6 || !agrees(u))
		return false;
	h = u->header;
	return h->kind_word == kind_word && h->shard_epoch == shard->shard_epoch &&
	       h->tag == shard->token && address && ip->saddr == address && u->udp->source == port;
}

/* CRC32C of a header without the field of the checksum. */
static __always_inline __u32 header_crc(const struct pm_header *h)
{
	const __u64 *words = (const void *)h;
	pm_table t = pm_slice;
	__u32 crc = ~0u;

	OPAQUE(t);
#pragma clang loop unroll(full)
	for (int i = 0; i < 9; i++) {
		crc = slice8(t, crc, words[i]);
		OPAQUE(crc);
	}
	crc = word4(t, 0, crc ^ h->payload_crc);
	OPAQUE(crc);
	return ~slice8(t, crc, h->tag);
}

static __always_inline bool whole_between_hops(struct xdp_md *ctx, struct pm_update *u)
{
	return bpf_htonl(header_crc(u->header)) == u->header->header_crc &&
	       payload_crc(ctx, payload_offset(u), u->payload_len) == bpf_ntohl(u->header->payload_crc);
}

/* How packets reach whoever sent this one: the first 12 bytes of a frame, and the interface. */
static __always_inline void learn(__u32 *way, const struct ethhdr *eth, __u32 interface)
{
	const __u16 *mac = (const void *)eth;

	way[0] = mac[3] | (__u32)mac[4] << 16;
	way[1] = mac[5] | (__u32)mac[0] << 16;
	way[2] = mac[1] | (__u32)mac[2] << 16;
	way[PM_WAY_INTERFACE] = interface;
}

/* ---- the lock --------------------------------------------------------------------------------- */

/*
 * One word of the shard's. Not bpf_spin_lock, which costs as much as the append (it turns interrupts off and on), and
 * waits however long it takes: here a CPU looks so often, some tens of microseconds, and then hands the packet up.
 * Nobody dies inside: a program runs to its end.
 */
#define PM_LOCK_LOOKS 2048

__attribute__((noinline)) bool lock_in_time(struct pm_shard *shard)
{
	if (!shard)
		return false;
#pragma clang loop unroll(disable)
	for (int i = 0; i < PM_LOCK_LOOKS; i++)
		if (!__sync_lock_test_and_set(&shard->taken, 1))
			return true;
	return false;
}

static __always_inline bool lock(struct pm_shard *shard)
{
	return !__sync_lock_test_and_set(&shard->taken, 1) || lock_in_time(shard);
}

static __always_inline void unlock(struct pm_shard *shard)
{
	asm volatile("" ::: "memory");
	*(volatile __u32 *)&shard->taken = 0;
}

/* ---- log access ------------------------------------------------------------------------------- */

/* Where the entry of this order is, or will be (ordered-log.md §3). */
static __always_inline struct pm_entry *entry_of(void *image, __u64 order)
{
	return image + 2 * PM_BLOCK_BYTES + (order & (pm_entries - 1)) * PM_ENTRY_BYTES;
}

/* Where a frame of `taken` bytes goes (ordered-log.md §4); below 0: nowhere. */
static __always_inline __s64 allocate(void *image, const struct pm_shard *shard, __u64 taken)
{
	__u64 head = shard->head, oldest;
	const struct pm_entry *entry;

	if (shard->last - shard->released >= pm_entries)
		return -1;
	if (shard->last == shard->released)
		return 0;
	entry = entry_of(image, shard->released + 1);
	oldest = (__u64)entry->frame_line * PM_FRAME_ALIGN;
	if (head <= oldest)
		return taken <= oldest - head ? (__s64)head : -1;
	if (pm_frame_bytes - head >= taken)
		return head;
	return taken <= oldest ? 0 : -1;
}

/*
 * Has user space asked to be woken? Whoever takes its word wakes it. The lock is held, as it is when user space
 * asks (`wake_me`): so the word that is taken here was said before this was appended, and never a later one, of a
 * process that has followed this and drained the ring since.
 */
static __always_inline bool take_sleeper(struct pm_shard *shard)
{
	if (!shard->sleeps)
		return false;
	shard->sleeps = 0;
	return true;
}

/* The entry that was just made is a witness (ordered-log.md §8); then everybody may see it. */
static __always_inline void publish(struct pm_shard *shard, __u64 at_end, __u64 applied)
{
	__u64 second = applied < shard->stated ? applied : shard->stated;

	if (second > shard->released)
		shard->released = second;
	if (applied > shard->stated)
		shard->stated = applied;
	shard->head = at_end;
	/* Release: user space reads `last` without the lock, and then what is below it. */
	asm volatile("" ::: "memory");
	*(volatile __u64 *)&shard->last = shard->last + 1;
}

static __always_inline void copy32(void *to, const void *from)
{
	for (int i = 0; i < 4; i++)
		((__u64 *)to)[i] = ((const __u64 *)from)[i];
}

/* The head makes an entry of an update: the packet is now what goes into the log and down the chain. */
static __always_inline void become_entry(struct pm_update *u, struct pm_shard *shard,
					 const struct pm_session *session, __u64 order)
{
	struct pm_header *h = u->header;
	__be64 order_be = bpf_cpu_to_be64(order);

	shard->order_places = places_from(40, order_be, shard->order_known, shard->order_places);
	shard->order_known = order_be;
	h->kind_word = PM_APPEND_WORD;
	h->device_incarnation = shard->device_incarnation;
	h->order = order_be;
	/* As one word, which is how it is copied: a load of what was stored in pieces waits for the stores. */
	*(__u64 *)&h->payload_crc = (__u64)bpf_htonl(session->append_crc ^ u->places ^ shard->order_places) << 32 |
				    h->payload_crc;
	h->tag = shard->token;
}

/*
 * Appends and publishes the frame and its entry, as `Log::append` does; the lock is held. An update
 * of this session becomes an entry; without a session it is one already.
 */
static __always_inline bool append(struct pm_update *u, void *image, struct pm_shard *shard,
				   const struct pm_session *session, __u32 zero)
{
	struct pm_header *h = u->header, *frame;
	__u32 length = PM_HEADER_LEN + u->payload_len, offset;
	__u64 taken = (length + PM_FRAME_ALIGN - 1) & ~(PM_FRAME_ALIGN - 1ull), at, order;
	__u64 applied = shard->applied;
	__s64 place = allocate(image, shard, taken);
	void *end = u->end, *from, *to;
	struct pm_entry *entry;

	if (place < 0)
		return false;
	at = (__u64)place & (pm_frame_bytes - 1) & ~(PM_FRAME_ALIGN - 1ull);
	order = shard->last + 1;

	frame = image + 2 * PM_BLOCK_BYTES + pm_entries * PM_ENTRY_BYTES + at;
	/* The last 32 bytes first: of a shorter payload, some of them are the header's, which comes after. */
	offset = PM_HEADER_LEN - 32 + ((zero + u->payload_len) & PACKET_MASK);
	from = (void *)h + offset;
	if (from + 32 > end)
		return false;
	copy32((void *)frame + offset, from);
	from = u->payload + (zero & PACKET_MASK);
	to = frame + 1;
#pragma clang loop unroll(disable)
	for (int i = 0; i < PM_FRAGMENT_BYTES / 32; i++) {
		if (from + 32 > end)
			break;
		copy32(to, from);
		from += 32;
		to += 32;
	}
	asm volatile("" ::: "memory");
	if (session)
		become_entry(u, shard, session, order);
	*frame = *h;

	entry = entry_of(image, order);
	entry->order = order;
	entry->session = bpf_be64_to_cpu(h->session);
	entry->seq = bpf_be64_to_cpu(h->seq);
	entry->durable_lag = 1;
	entry->applied_lag = order - applied;
	entry->frame_line = at / PM_FRAME_ALIGN;
	entry->frame_len = length;
	entry->payload_crc = bpf_ntohl(h->payload_crc);
	entry->epoch = shard->epoch;
	entry->incarnation = shard->incarnation;
	entry->fragment_index = bpf_ntohs(h->fragment_index);
	entry->fragment_count = bpf_ntohs(h->fragment_count);
	entry->header_len = PM_HEADER_LEN;
	entry->kind = PM_KIND_UPDATE;
	entry->zero = 0;
	entry->checksum = 0;
	publish(shard, at + taken, applied);
	u->wake = take_sleeper(shard);
	return true;
}

/* The packet's header becomes that of the acknowledgement up to this seq and order; the lock is held. */
static __always_inline void become_ack(struct pm_update *u, struct pm_shard *shard, struct pm_session *session,
				       __u64 seq, __u64 order)
{
	__u64 applied = session->applied < seq ? session->applied : seq;
	__be64 seq_be = bpf_cpu_to_be64(seq), order_be = bpf_cpu_to_be64(order);
	__be64 room_be = bpf_cpu_to_be64(pm_entries - (shard->last - shard->released));
	__be64 applied_be = bpf_cpu_to_be64(applied);
	struct pm_header *h = u->header;

	shard->order_places = places_from(40, order_be, shard->order_known, shard->order_places);
	shard->order_known = order_be;
	shard->room_places = places_from(48, room_be, shard->room_known, shard->room_places);
	shard->room_known = room_be;
	session->seq_places = places_from(32, seq_be, session->seq_known, session->seq_places);
	session->seq_known = seq_be;
	session->applied_places = places_from(56, applied_be, session->applied_known,
					      session->applied_places);
	session->applied_known = applied_be;
	h->kind_word = PM_ACK_WORD | (__u64)shard->copies << PM_COPIES_SHIFT;
	h->shard_epoch = shard->shard_epoch;
	h->device_incarnation = shard->device_incarnation;
	h->session = bpf_cpu_to_be64(session->id);
	h->seq = seq_be;
	h->order = order_be;
	h->request = room_be;
	h->key_hash = applied_be;
	h->fragment_index = 0;
	h->fragment_count = bpf_htons(1);
	h->payload_len = 0;
	h->payload_crc = 0;
	h->header_crc = bpf_htonl(session->ack_crc ^ session->seq_places ^ shard->order_places ^
				  shard->room_places ^ session->applied_places);
	h->tag = session->token;
}

#define COUNT(counts, what) ((counts)->what++)

/* When this packet began to be looked at, if it is one of those that are timed; else 0. */
static __always_inline __u64 begun(struct pm_counters *counts)
{
	return counts->packets++ % 64 ? 0 : bpf_ktime_get_ns();
}

static __always_inline int done(struct pm_counters *counts, __u64 begun, int verdict)
{
	if (begun) {
		__u64 slot = (bpf_ktime_get_ns() - begun) / PM_TOOK_NS;

		if (slot >= PM_TOOK_SLOTS)
			slot = PM_TOOK_SLOTS - 1;
		OPAQUE(slot);
		counts->took[slot & (PM_TOOK_SLOTS - 1)]++;
	}
	return verdict;
}

static __always_inline void sends_to(struct pm_update *u, __u32 address, __u32 port, const __u32 *way)
{
	u->to_address = address;
	u->to_port = port;
	for (int i = 0; i < 4; i++)
		u->way[i] = way[i];
}

/*
 * Rule 4: what was just appended goes on if all before it has, and the next hop has room; else user
 * space sends it, and all that follows until it has caught up. The lock is held.
 */
static __always_inline enum pm_verdict send_on(struct pm_update *u, const struct pm_shard *shard,
					       struct pm_hops *hops)
{
	__u64 credit = hops->credit < hops->window ? hops->credit : hops->window;

	if (u->ipv6 || !hops->next[PM_WAY_INTERFACE] || hops->sent + 1 != shard->last ||
	    shard->last > hops->orders[0] + credit)
		return PM_APPENDED;
	hops->sent = shard->last;
	sends_to(u, hops->next_address, hops->next_port, hops->next);
	return PM_FORWARD;
}

static __always_inline enum pm_verdict admit(struct pm_update *u, void *image,
					     struct pm_shard *shard, struct pm_session *session,
					     struct pm_hops *hops, struct pm_counters *counts, __u32 interface, __u32 zero)
{
	enum pm_verdict verdict = PM_UP;

	u->seq = bpf_be64_to_cpu(u->header->seq);
	if (!lock(shard)) {
		COUNT(counts, busy);
		return PM_UP;
	}
	if (!shard->admits || shard->generation != u->generation || hops->follows) {
		COUNT(counts, held);
	} else if (u->seq > session->last + 1 || u->seq > session->until || !u->seq) {
		COUNT(counts, gaps);
	} else if (u->seq <= session->last) {
		/* A duplicate: what is committed is said again. */
		COUNT(counts, duplicates);
		if (shard->alone) {
			become_ack(u, shard, session, session->last, shard->last);
			verdict = PM_ACK;
		} else if (u->seq <= session->committed && hops->next_address) {
			become_ack(u, shard, session, session->committed, hops->committed);
			verdict = PM_ACK;
		}
		session->heard |= verdict == PM_ACK;
	} else if (!append(u, image, shard, session, zero)) {
		COUNT(counts, full);
	} else {
		COUNT(counts, appended);
		session->last = u->seq;
		session->seq_known = u->header->seq;
		session->seq_places = u->seq_places;
		if (shard->alone) {
			become_ack(u, shard, session, session->last, shard->last);
			verdict = PM_ACK;
		} else {
			/* Its acknowledgement comes the other way, as a DURABLE. */
			learn(session->client, u->eth, interface);
			verdict = send_on(u, shard, hops);
		}
	}
	unlock(shard);
	return verdict;
}

/* What a DURABLE of this device says; the lock is held. */
static __always_inline void say_durable(struct pm_update *u, const struct pm_shard *shard,
					struct pm_hops *hops)
{
	__u64 room = pm_entries - (shard->last - shard->released);

	if (room > hops->receive_window)
		room = hops->receive_window;
	u->room_be = bpf_cpu_to_be64(room);
	u->order_be = bpf_cpu_to_be64(shard->last);
	hops->told = shard->last;
	sends_to(u, hops->before_address, hops->before_port, hops->before);
}

/* A follower takes the next order only; the last device of the chain says that it has it. */
static __always_inline enum pm_verdict take(struct pm_update *u, void *image, struct pm_shard *shard,
					    struct pm_hops *hops, struct pm_counters *counts, __u32 interface, __u32 zero)
{
	enum pm_verdict verdict = PM_UP;

	if (!lock(shard)) {
		COUNT(counts, busy);
		return PM_UP;
	}
	if (!shard->admits || shard->generation != u->generation) {
		COUNT(counts, held);
	} else if (bpf_be64_to_cpu(u->header->order) != shard->last + 1) {
		COUNT(counts, gaps);
	} else if (!append(u, image, shard, NULL, zero)) {
		COUNT(counts, full);
	} else {
		COUNT(counts, appended);
		learn(hops->before, u->eth, interface);
		if (hops->behind) {
			verdict = send_on(u, shard, hops);
		} else {
			say_durable(u, shard, hops);
			verdict = PM_TELL;
		}
	}
	unlock(shard);
	return verdict;
}

/* The orders of a DURABLE, if it has a row for each device behind this one, under the right names. */
static __always_inline bool read_rows(struct pm_update *u, const struct pm_hops *hops, __u64 *orders,
				      __u32 zero)
{
	void *rows = u->payload + (zero & PACKET_MASK);
	__u32 behind = hops->behind;

	if (u->payload_len != behind * PM_ROW_BYTES)
		return false;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PM_BEHIND_MAX; i++) {
		struct pm_row *row = rows + i * PM_ROW_BYTES;

		orders[i] = 0;
		if (i >= behind)
			continue;
		if ((void *)(row + 1) > u->end || row->name != hops->names[i])
			return false;
		orders[i] = bpf_be64_to_cpu(row->order);
	}
	return true;
}

/*
 * The devices behind this one have said what they hold. The ack rule (rule 5): committed is what all of
 * them and this device hold. Here one update at a time is acknowledged by the packet that confirms
 * it; user space does it for others.
 */
static __always_inline enum pm_verdict confirm(struct pm_update *u, void *image, struct pm_shard *shard,
					       struct pm_hops *hops, struct pm_session *session,
					       struct pm_counters *counts,
					       __u64 expected, __u64 *orders, __u32 interface)
{
	enum pm_verdict verdict = PM_UP;
	const struct pm_entry *entry;
	__u64 committed;

	if (!lock(shard)) {
		COUNT(counts, busy);
		return PM_UP;
	}
	committed = shard->last;
	if (!shard->admits || shard->generation != u->generation || orders[0] > committed ||
	    (hops->follows && !hops->before[PM_WAY_INTERFACE])) {
		COUNT(counts, held);
		goto out;
	}
	COUNT(counts, confirmed);
	learn(hops->next, u->eth, interface);
	hops->credit = bpf_be64_to_cpu(u->header->request);
	if (!hops->credit)
		hops->credit = 1;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PM_BEHIND_MAX; i++) {
		if (i >= hops->behind)
			continue;
		if (orders[i] < hops->orders[i])
			orders[i] = hops->orders[i];
		if (orders[i] < committed)
			committed = orders[i];
	}
	if (hops->follows) {
		say_durable(u, shard, hops);
		u->wake = take_sleeper(shard);
		verdict = PM_TELL;
	} else if (committed <= hops->committed) {
		verdict = PM_NOTED;
	} else {
		entry = entry_of(image, expected);
		if (session && committed == expected && expected == hops->committed + 1 &&
		    entry->order == expected && entry->kind == PM_KIND_UPDATE &&
		    entry->session == session->id && session->client[PM_WAY_INTERFACE] &&
		    !session->address_high && (__u32)session->address_low == 0xffff0000) {
			if (entry->seq > session->committed)
				session->committed = entry->seq;
			become_ack(u, shard, session, session->committed, committed);
			sends_to(u, session->address_low >> 32, session->port, session->client);
			verdict = PM_CONFIRM;
		} else {
			/* Before the orders: whoever sees those sees also that nobody was told. */
			*(volatile __u64 *)&hops->skipped = committed;
			verdict = PM_SKIPPED;
		}
		hops->committed = committed;
	}
	asm volatile("" ::: "memory");
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < PM_BEHIND_MAX; i++)
		if (i < hops->behind)
			*(volatile __u64 *)&hops->orders[i] = orders[i];
out:
	unlock(shard);
	return verdict;
}

/* ---- egress ----------------------------------------------------------------------------------- */

/* A sum of words as the Internet checksum has it: 16 bits, and not inverted. */
static __always_inline __u32 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The Internet checksum of the UDP packet, which IPv6 demands. */
static __always_inline __u16 udp6_checksum(struct pm_update *u)
{
	struct ipv6hdr *ip = u->ip;
	__u64 sum = bpf_htons(IPPROTO_UDP) + (__u32)u->udp->len;
	__u32 *p;

	if ((void *)(ip + 1) > u->end || (void *)(u->header + 1) > u->end)
		return 0;
	p = (void *)&ip->saddr;
	for (int i = 0; i < 8; i++)
		sum += p[i];
	p = (void *)u->udp;
#pragma clang loop unroll(full)
	for (int i = 0; i < (int)(sizeof(*u->udp) + PM_HEADER_LEN) / 4; i++)
		sum += p[i];
	sum = ~folded(sum) & 0xffff;
	return sum ? sum : 0xffff;
}

/* Destination and source change places; the addresses lie side by side, with no padding. */
static __always_inline void turn(struct ethhdr *eth)
{
	void *bytes = eth;
	__u64 first = *(__u64 *)bytes, source = first >> 48 | (__u64)*(__u32 *)(bytes + 8) << 16;

	*(__u64 *)bytes = source | first << 48;
	*(__u32 *)(bytes + 8) = first >> 16;
}

/* The checksum that an IPv4 header without options will have: of its id and flags, and of what is new. */
static __always_inline __u16 ip4_checksum(const struct iphdr *ip, __be16 total, __be32 from, __be32 to)
{
	const __u32 *words = (const void *)ip;

	return ~folded((words[0] & 0xffff) + total + (__u64)words[1] +
		       bpf_htons(64 << 8 | IPPROTO_UDP) + from + to);
}

static __always_inline int acknowledge(struct xdp_md *ctx, struct pm_update *u)
{
	const __u32 udp_len = sizeof(*u->udp) + PM_HEADER_LEN;
	__u32 ports;

	turn(u->eth);
	/* In words, as the checksum reads them: a load of what was stored in pieces waits for the stores. */
	ports = *(__u32 *)&u->udp->source;
	*(__u32 *)&u->udp->source = ports << 16 | ports >> 16;
	*(__u32 *)&u->udp->len = bpf_htons(udp_len);
	if (u->ipv6) {
		struct ipv6hdr *ip = u->ip;
		struct in6_addr address;

		if ((void *)(ip + 1) > u->end)
			return XDP_PASS;
		address = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = address;
		ip->payload_len = bpf_htons(udp_len);
		ip->hop_limit = 64;
		u->udp->check = udp6_checksum(u);
	} else {
		struct iphdr *ip = u->ip;
		__be32 address = ip->saddr;
		__be16 total = bpf_htons(sizeof(*ip) + udp_len);
		__u16 check = ip4_checksum(ip, total, ip->saddr, ip->daddr);

		ip->saddr = ip->daddr;
		ip->daddr = address;
		ip->tot_len = total;
		ip->ttl = 64;
		ip->check = check;
	}
	if (u->payload_len && bpf_xdp_adjust_tail(ctx, -(int)u->payload_len))
		return XDP_DROP;
	return XDP_TX;
}

/* In a chain: addresses the packet, from the shard, for a datagram of so many bytes. */
static __always_inline void address(struct pm_update *u, __u32 datagram_len)
{
	__be16 total = bpf_htons(sizeof(struct iphdr) + sizeof(*u->udp) + datagram_len);
	__be32 from = pm_address_low >> 32;
	__u32 *mac = (void *)u->eth;
	struct iphdr *ip = u->ip;
	__u16 check = ip4_checksum(ip, total, from, u->to_address);

	mac[0] = u->way[0];
	mac[1] = u->way[1];
	mac[2] = u->way[2];
	ip->saddr = from;
	ip->daddr = u->to_address;
	ip->tot_len = total;
	ip->ttl = 64;
	ip->check = check;
	u->udp->source = pm_port;
	u->udp->dest = u->to_port;
	u->udp->len = bpf_htons(sizeof(*u->udp) + datagram_len);
	u->udp->check = 0;
}

/* Out of the interface behind which the receiver is. */
static __always_inline int transmit(struct xdp_md *ctx, const struct pm_update *u)
{
	if (u->way[PM_WAY_INTERFACE] == ctx->ingress_ifindex)
		return XDP_TX;
	return bpf_redirect(u->way[PM_WAY_INTERFACE], 0);
}

/* An entry, to the next hop. */
static __always_inline int forward(struct xdp_md *ctx, struct pm_update *u)
{
	address(u, PM_HEADER_LEN + u->payload_len);
	return transmit(ctx, u);
}

/* What the last of the chain said has become the acknowledgement of the update that it confirms. */
static __always_inline int acknowledge_confirmed(struct xdp_md *ctx, struct pm_update *u)
{
	address(u, PM_HEADER_LEN);
	if (bpf_xdp_adjust_tail(ctx, -(int)u->payload_len))
		return XDP_DROP;
	return transmit(ctx, u);
}

/* DURABLE to the hop before: this device, and those behind it with these orders. */
static __always_inline int tell(struct xdp_md *ctx, struct pm_update *u, const struct pm_shard *shard,
				const struct pm_hops *hops, const __u64 *orders, __u32 zero)
{
	__u32 behind = hops->behind, length = (behind + 1) * PM_ROW_BYTES, crc = ~0u;
	pm_table t = pm_slice;
	struct pm_header *h;
	void *rows;

	if (behind > PM_BEHIND_MAX || bpf_xdp_adjust_tail(ctx, (int)length - (int)u->payload_len))
		return XDP_PASS;
	u->eth = (void *)(long)ctx->data;
	u->end = (void *)(long)ctx->data_end;
	u->ip = u->eth + 1;
	u->udp = u->ip + sizeof(struct iphdr);
	h = (void *)(u->udp + 1);
	if ((void *)(h + 1) > u->end)
		return XDP_DROP;
	rows = (void *)(h + 1) + (zero & PACKET_MASK);
	OPAQUE(t);
#pragma clang loop unroll(full)
	for (__u32 i = 0; i <= PM_BEHIND_MAX; i++) {
		struct pm_row *row = rows + i * PM_ROW_BYTES;

		if (i > behind)
			continue;
		if ((void *)(row + 1) > u->end)
			return XDP_DROP;
		row->name = i ? hops->names[i - 1] : shard->device_incarnation;
		row->order = i ? bpf_cpu_to_be64(orders[i - 1]) : u->order_be;
		crc = slice8(t, crc, row->name);
		OPAQUE(crc);
		crc = slice8(t, crc, row->order);
		OPAQUE(crc);
	}
	h->kind_word = PM_DURABLE_WORD | (__u64)(behind + 1) << PM_COPIES_SHIFT;
	h->shard_epoch = shard->shard_epoch;
	h->device_incarnation = shard->device_incarnation;
	h->session = 0;
	h->seq = 0;
	h->order = u->order_be;
	h->request = u->room_be;
	h->key_hash = 0;
	h->fragment_index = 0;
	h->fragment_count = bpf_htons(1);
	h->payload_len = bpf_htonl(length);
	h->payload_crc = bpf_htonl(~crc);
	h->tag = shard->token;
	h->header_crc = bpf_htonl(header_crc(h));
	/* Names and orders belong together: under a hold the one may have changed before the other was read. */
	if (*(volatile __u32 *)&shard->generation != u->generation)
		return XDP_DROP;
	address(u, PM_HEADER_LEN + length);
	return transmit(ctx, u);
}

/* Up to user space: to the socket at the shard's address, or from the wire to the switch's own. */
static __always_inline int hand_up(struct pm_update *u)
{
	struct iphdr *ip = u->ip;
	__u32 sum;

	if (!pm_own_address || u->ipv6)
		return XDP_PASS;
	for (int i = 0; i < ETH_ALEN; i++)
		u->eth->h_dest[i] = pm_own_mac[i];
	/* RFC 1624: the checksum with one address for another. */
	sum = (__u16)~ip->check;
	sum += (__u16)~(ip->daddr & 0xffff);
	sum += (__u16)~(ip->daddr >> 16);
	sum += pm_own_address & 0xffff;
	sum += pm_own_address >> 16;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	ip->daddr = pm_own_address;
	/* Packets have checksums of their own. */
	u->udp->check = 0;
	return XDP_PASS;
}

/* User space slept, or should not wait: one wake-up, not one a packet. The lock is not held. */
static __always_inline void wake(bool wanted)
{
	__u32 word = 1;

	if (wanted)
		bpf_ringbuf_output(&pm_wakeups, &word, sizeof(word), BPF_RB_FORCE_WAKEUP);
}

/* A session that is served here: in the row that its id asks for, mostly. */
static __always_inline struct pm_session *find_session(__be64 id)
{
	__u32 low = bpf_be64_to_cpu(id) & pm_session_mask, *row;
	struct pm_session *session = bpf_map_lookup_elem(&pm_sessions, &low);

	if (session && session->id == bpf_be64_to_cpu(id))
		return session;
	row = bpf_map_lookup_elem(&pm_session_rows, &id);
	return row ? bpf_map_lookup_elem(&pm_sessions, row) : NULL;
}

/* The session of an order, if it is served here. */
static __always_inline struct pm_session *session_of(void *image, __u64 order)
{
	return find_session(bpf_cpu_to_be64(entry_of(image, order)->session));
}

struct pm_maps {
	struct pm_shard *shard;
	struct pm_counters *counts;
	struct pm_hops *hops;
	void *image;
};

static __always_inline bool look_up_maps(struct pm_maps *m)
{
	__u32 zero = 0;

	m->shard = bpf_map_lookup_elem(&pm_shards, &zero);
	m->counts = bpf_map_lookup_elem(&pm_counts, &zero);
	m->image = bpf_map_lookup_elem(&pm_image, &zero);
	m->hops = bpf_map_lookup_elem(&pm_chain, &zero);
	return m->shard && m->counts && m->image && m->hops;
}

/*
 * A zero that the verifier does not know. Added to a pointer into the packet it makes one of its own: what
 * the verifier learns of that in a loop it does not learn of the others, and has one state behind the loop.
 */
static __always_inline __u32 unknown_zero(const struct pm_shard *shard)
{
	return shard->padding;
}

/*
 * What hops say to each other, and everything else that is not an update. This and `updates` are functions of
 * their own for the verifier's sake, like `payload_crc`.
 */
__attribute__((noinline)) int between_hops(struct xdp_md *ctx)
{
	struct pm_session *session;
	struct pm_update u = {};
	enum pm_verdict verdict;
	struct pm_hops *hops;
	struct pm_maps m;
	__u32 zero;
	__u64 orders[PM_BEHIND_MAX] = {}, expected, begin;

	if (!find(ctx, &u) || !look_up_maps(&m))
		return XDP_PASS;
	begin = begun(m.counts);
	hops = m.hops;
	u.generation = *(volatile __u32 *)&m.shard->generation;
	zero = unknown_zero(m.shard);
	if (hops->follows && from_hop(&u, m.shard, PM_APPEND_WORD, hops->before_address, hops->before_port)) {
		if (!whole_between_hops(ctx, &u)) {
			COUNT(m.counts, odd);
			goto up;
		}
		verdict = take(&u, m.image, m.shard, hops, m.counts, ctx->ingress_ifindex, zero);
	} else if (hops->behind &&
		   from_hop(&u, m.shard, PM_DURABLE_WORD | (__u64)hops->behind << PM_COPIES_SHIFT,
			    hops->next_address, hops->next_port)) {
		if (!whole_between_hops(ctx, &u) || !read_rows(&u, hops, orders, zero)) {
			COUNT(m.counts, odd);
			goto up;
		}
		expected = *(volatile __u64 *)&hops->committed + 1;
		session = session_of(m.image, expected);
		verdict = confirm(&u, m.image, m.shard, hops, session, m.counts, expected, orders,
				  ctx->ingress_ifindex);
	} else {
		COUNT(m.counts, odd);
		goto up;
	}
	switch (verdict) {
	case PM_FORWARD:
		wake(u.wake);
		return done(m.counts, begin, forward(ctx, &u));
	case PM_TELL:
		wake(u.wake);
		return done(m.counts, begin, tell(ctx, &u, m.shard, hops, orders, zero));
	case PM_CONFIRM:
		return done(m.counts, begin, acknowledge_confirmed(ctx, &u));
	case PM_NOTED:
		return XDP_DROP;
	case PM_APPENDED:
	case PM_SKIPPED:
		wake(true);
		return XDP_DROP;
	default:
		break;
	}
up:
	COUNT(m.counts, handed_up);
	return hand_up(&u);
}

/* Updates of clients; PM_NOT_AN_UPDATE: it is none, and as it was. */
__attribute__((noinline)) int updates(struct xdp_md *ctx)
{
	struct pm_session *session;
	struct pm_update u = {};
	enum pm_verdict verdict;
	struct pm_maps m;
	__u32 zero;
	__u64 begin;

	if (!find(ctx, &u) || !look_up_maps(&m))
		return XDP_PASS;
	u.generation = *(volatile __u32 *)&m.shard->generation;
	if (!regular(&u, m.shard))
		return PM_NOT_AN_UPDATE;
	begin = begun(m.counts);
	session = find_session(u.header->session);
	if (!session || !from_its_client(&u, session)) {
		COUNT(m.counts, sessions_unknown);
		goto up;
	}
	if (!whole(ctx, &u, session)) {
		COUNT(m.counts, odd);
		goto up;
	}
	zero = unknown_zero(m.shard);
	verdict = admit(&u, m.image, m.shard, session, m.hops, m.counts, ctx->ingress_ifindex, zero);
	switch (verdict) {
	case PM_ACK:
		wake(u.wake);
		return done(m.counts, begin, acknowledge(ctx, &u));
	case PM_FORWARD:
		wake(u.wake);
		return done(m.counts, begin, forward(ctx, &u));
	case PM_APPENDED:
		wake(true);
		return XDP_DROP;
	default:
		break;
	}
up:
	COUNT(m.counts, handed_up);
	return hand_up(&u);
}

SEC("xdp")
int pipeline(struct xdp_md *ctx)
{
	int verdict = updates(ctx);

	return verdict == PM_NOT_AN_UPDATE ? between_hops(ctx) : verdict;
}

/*
 * Who admits from now on; from every hold to its release, and from there to the next, is a generation. XDP_DROP:
 * nothing was changed, the lock was not to be had in time.
 */
static __always_inline int set_admits(bool admits)
{
	__u32 zero = 0;
	struct pm_shard *shard = bpf_map_lookup_elem(&pm_shards, &zero);

	if (!shard)
		return XDP_ABORTED;
	if (!lock(shard))
		return XDP_DROP;
	shard->admits = admits;
	/* What was looked at while it was held, or before, does not count from here on. */
	shard->generation++;
	unlock(shard);
	return XDP_PASS;
}

/* Run by user space: from now on the pipeline admits nothing. */
SEC("xdp")
int hold(struct xdp_md *ctx)
{
	(void)ctx;
	return set_admits(false);
}

/* Run by user space when it has published what it changed. */
SEC("xdp")
int release(struct xdp_md *ctx)
{
	(void)ctx;
	return set_admits(true);
}

/*
 * Run by user space before it sleeps. Under the lock: what was appended before, it sees when this returns; whoever
 * appends from now on sees that it sleeps.
 */
SEC("xdp")
int wake_me(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct pm_shard *shard = bpf_map_lookup_elem(&pm_shards, &zero);

	(void)ctx;
	if (!shard)
		return XDP_ABORTED;
	if (!lock(shard))
		return XDP_DROP;
	shard->sleeps = 1;
	unlock(shard);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";

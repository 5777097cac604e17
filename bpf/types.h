/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * Types and constants that all stages share: the formats of packets and log entries, the packet
 * that is being processed, and the verdicts about it.
 *
 * Invariants: pm_header, pm_entry and pm_row are the formats of docs/spec/wire.md and
 * docs/spec/ordered-log.md byte for byte; the compiler checks their sizes against the Rust code.
 * Structures that user space shares (pm_shard, pm_hops, pm_session, pm_counters) are not in this
 * file: they are generated from crates/dataplane/src/xdp/shared.rs into generated.h.
 *
 * Spec: docs/spec/pipeline.md. This file must not contain code.
 */
#pragma once

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

/*
 * 1: this is the program for a shard with keys. It is compiled separately, by pipeline_keyed.bpf.c,
 * so that the program without keys has no code for keys.
 */
#ifndef PM_KEYED
#define PM_KEYED 0
#endif

/*
 * Hides a value's origin from the compiler. Without this, clang keeps derived values in stack slots
 * or unrolls look-ups. Such code is slower, or the verifier rejects it.
 */
#define OPAQUE(x) asm volatile("" : "+r"(x))

/*
 * Bounds an offset into a packet. A mask gives the verifier the same bound on every path, so it can
 * prune states.
 */
#define PACKET_MASK 2047

/*
 * A result of process_update() that is no XDP action: the packet is a READ (or is neither a READ
 * nor an update), and nothing was changed.
 */
#define PM_IS_A_READ (-1)
#define PM_NOT_AN_UPDATE (-2)

/*
 * The header of every packet (wire.md §1). Fields of several bytes are in network byte order. The
 * meaning of four fields depends on the kind of packet (§2), so each of them has one name for each
 * kind. The meaning of byte 5 depends on the kind too: the byte is part of kind_word, and each kind
 * has a shift for it (generated.h).
 */
struct pm_header {
	__u64 kind_word;	/* magic, version, kind, flags, byte 5, length: all in one word */
	__u64 shard_epoch;
	__u64 device_incarnation;
	__u64 session;
	union {
		struct pm_update_fields update;
		struct pm_append_fields append;
		struct pm_ack_fields ack;
		struct pm_durable_fields durable;
		struct pm_read_keys_fields read;
		struct pm_hit_fields hit;
		struct pm_miss_fields miss;
	};
	__be16 fragment_index, fragment_count;
	__be32 payload_len, payload_crc, header_crc;
	__u64 tag;		/* the token (of the session, or between hops); with keys a MAC */
};
_Static_assert(sizeof(struct pm_header) == PM_HEADER_LEN, "header");

/* Offset of a field in a header: FIELD(payload_len), FIELD(ack.room). */
#define FIELD(name) __builtin_offsetof(struct pm_header, name)

/* An entry of the log (ordered-log.md §5), in this machine's byte order. */
struct pm_entry {
	__u64 order, session, seq;
	__u32 durable_lag, applied_lag, frame_line, frame_len, payload_crc;
	__u32 epoch, incarnation;
	__u16 fragment_index, fragment_count, header_len;
	__u8 kind, zero;
	__u32 checksum;		/* 0 until user space fills it in (pipeline.md §3) */
};
_Static_assert(sizeof(struct pm_entry) == PM_ENTRY_BYTES, "entry");

/* A row in the payload of a DURABLE: one device, and the order up to which its log is durable. */
struct pm_row {
	__u64 name;		/* device and incarnation, as in a header */
	__be64 order;
};
_Static_assert(sizeof(struct pm_row) == PM_ROW_BYTES, "row");

/* The packet that is being processed, and the results of the stages so far. */
struct pm_packet {
	struct ethhdr *eth;
	void *ip;
	struct udphdr *udp;
	struct pm_header *header;
	void *payload, *end;
	__u32 payload_len;
	__u32 fields_crc;	/* contribution of an update's variable fields to its checksum */
	__u32 seq_crc;		/* the seq's part of fields_crc */
	__u32 generation;	/* of the shard, before sessions were looked up */
	bool ipv6;
	bool to_switch;		/* it is addressed to the switch itself, as packets of hops are */
	bool wake;		/* user space must be woken for this packet */
	__u64 seq;
	struct pm_bucket *bucket;	/* bucket of its key, if it is an update of one key */
	/* Fields of a DURABLE that must be sent. */
	__be64 persisted_be, room_be;
	/* The destination of the packet, if that is not its sender. */
	__u64 to_high, to_low;	/* address, as in pm_address_high and pm_address_low */
	__u32 to_port, way[4];
	__u64 udp_sum;		/* over IPv6: the part of its UDP checksum that is kept */
#if PM_KEYED
	__be64 entry_order, entry_tag;	/* the entry's tag, made for this order */
	__u64 answer_key[2];	/* the key that seals its answer to a client */
#endif
};

/* The verdict about a packet: where it goes. */
enum pm_verdict {
	PM_HAND_UP,		/* to user space, through the network stack */
	PM_ACK,			/* back to its sender, as the acknowledgement */
	PM_APPENDED,		/* nowhere: it is in the log, and user space forwards it */
	PM_FORWARD,		/* to the next hop, as an APPEND */
	PM_SEND_DURABLE,	/* to the previous hop, as a DURABLE */
	PM_ACK_COMMITTED,	/* to the client whose update it commits, as the acknowledgement */
	PM_NO_NEWS,		/* nowhere: it changed nothing */
	PM_USER_ACKS,		/* nowhere: user space acknowledges what it commits */
	PM_HIT,			/* back to its sender, as the update that it asked for */
	PM_MISS,		/* back to its sender: the order that the store must have reached */
	PM_SILENCED,		/* nowhere: it needs a lease, and there is none */
};

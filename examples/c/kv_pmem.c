// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A key-value server over the persistent maps of libpmemobj's examples: B-tree, crit-bit tree, red-black tree, hash map, skip
 * list.
 *
 *	kv_pmem MAP POOL LISTEN
 *
 * Compiled without PMNET, the program is a plain UDP server: it replies to each request. Compiled with -DPMNET, the
 * program is a server of pmnet: the devices acknowledge the requests, and each request takes effect exactly once, even
 * if processes are killed. The lines for pmnet are between #ifdef PMNET and #else or #endif.
 *
 * Requests are text: "set KEY VALUE", "add KEY NUMBER", "get KEY". Keys and numbers are decimal. There is no request
 * that removes a key, because the B-tree of the examples breaks if keys are removed (libpmemobj 1.12.1).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <libpmemobj.h>

#include "map.h"
#include "map_btree.h"
#include "map_ctree.h"
#include "map_hashmap_tx.h"
#include "map_rbtree.h"
#include "map_skiplist.h"

#ifdef PMNET
#include <pmnet.h>
#endif

#define POOL_BYTES ((size_t)64 << 20)
#define REQUEST_MAX 1400
#define MARK_MAX 65536

POBJ_LAYOUT_BEGIN(kv);
POBJ_LAYOUT_ROOT(kv, struct root);
POBJ_LAYOUT_TOID(kv, struct value);
POBJ_LAYOUT_END(kv);

struct root {
	TOID(struct map) map;
#ifdef PMNET
	char mark[MARK_MAX];
#endif
};

/*
 * The map's entry for a key always points to this structure. The value's bytes are in a separate allocation, and a zero
 * byte follows them.
 */
struct value {
	size_t len;
	PMEMoid bytes;
};

struct store {
	PMEMobjpool *pop;
	TOID(struct root) root;
	struct map_ctx *maps;
};

static const struct {
	const char *name;
	const struct map_ops *ops;
} kinds[] = {
	{ "btree", MAP_BTREE },		{ "ctree", MAP_CTREE },	      { "rbtree", MAP_RBTREE },
	{ "hashmap_tx", MAP_HASHMAP_TX }, { "skiplist", MAP_SKIPLIST },
};

static void die(const char *what)
{
	fprintf(stderr, "kv_pmem: %s\n", what);
	exit(1);
}

static void check(int code)
{
	if (code < 0)
		die("a call failed");
}

static TOID(struct map) map_of(struct store *store)
{
	return D_RO(store->root)->map;
}

static void open_store(struct store *store, const char *kind, const char *path)
{
	const struct map_ops *ops = NULL;
	size_t i;

	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kinds[i].name, kind))
			ops = kinds[i].ops;
	if (!ops)
		die("there is no such map");
	if (access(path, F_OK))
		store->pop = pmemobj_create(path, POBJ_LAYOUT_NAME(kv), POOL_BYTES, 0666);
	else
		store->pop = pmemobj_open(path, POBJ_LAYOUT_NAME(kv));
	if (!store->pop)
		die(pmemobj_errormsg());
	store->root = POBJ_ROOT(store->pop, struct root);
	store->maps = map_ctx_init(ops, store->pop);
	if (!store->maps)
		die("no memory");
	if (!TOID_IS_NULL(map_of(store)))
		check(ops->init && map_init(store->maps, map_of(store)) ? -1 : 0);
	else
		check(map_create(store->maps, &D_RW(store->root)->map, NULL) ? -1 : 0);
}

/* Sets the value of a key. The caller has begun a transaction. */
static void put(struct store *store, uint64_t key, const char *bytes, size_t len)
{
	TOID(struct value) value;
	PMEMoid place = pmemobj_tx_alloc(len + 1, 0);
	char *copy = pmemobj_direct(place);

	/* Newly allocated memory needs no undo log. */
	memcpy(copy, bytes, len);
	copy[len] = 0;
	value.oid = map_get(store->maps, map_of(store), key);
	if (TOID_IS_NULL(value)) {
		value = TX_ZNEW(struct value);
		if (map_insert(store->maps, map_of(store), key, value.oid))
			pmemobj_tx_abort(ENOMEM);
	} else {
		TX_ADD(value);
		pmemobj_tx_free(D_RO(value)->bytes);
	}
	D_RW(value)->bytes = place;
	D_RW(value)->len = len;
}

/* Executes a request, and writes the reply into `reply`. Returns the reply's length. The caller has begun a transaction. */
static size_t handle(struct store *store, const char *bytes, size_t len, char *reply)
{
	char request[REQUEST_MAX + 1] = "", verb[4] = "", number[24];
	uint64_t key = 0;
	int at = 0;

	memcpy(request, bytes, len < REQUEST_MAX ? len : REQUEST_MAX);
	if (len > REQUEST_MAX || sscanf(request, "%3s %" SCNu64 "%n", verb, &key, &at) != 2)
		return (size_t)sprintf(reply, "error");
	const char *argument = request + at + (request[at] == ' ');
	PMEMoid found = map_get(store->maps, map_of(store), key);
	const struct value *value = OID_IS_NULL(found) ? NULL : pmemobj_direct(found);
	const char *text = value ? pmemobj_direct(value->bytes) : "";

	if (!strcmp(verb, "get")) {
		memcpy(reply, text, value ? value->len : 0);
		return value ? value->len : 0;
	} else if (!strcmp(verb, "set")) {
		put(store, key, argument, strlen(argument));
	} else if (!strcmp(verb, "add")) {
		uint64_t after = strtoull(text, NULL, 10) + strtoull(argument, NULL, 10);
		int digits = sprintf(number, "%" PRIu64, after);

		put(store, key, number, (size_t)digits);
	} else {
		return (size_t)sprintf(reply, "error");
	}
	return (size_t)sprintf(reply, "ok");
}

int main(int argc, char **argv)
{
	static char reply[REQUEST_MAX + 64];
	struct store store;
#ifdef PMNET
	struct pmnet_server server;
	struct pmnet_batch batch;
#else
	volatile size_t len = 0;
	static char request[65536];
	struct sockaddr_in from, own = { .sin_family = AF_INET };
	socklen_t from_len;
	ssize_t got;
	char *port;
	int sock;
#endif

	if (argc != 4)
		die("usage: kv_pmem MAP POOL LISTEN");
	open_store(&store, argv[1], argv[2]);
#ifdef PMNET
	struct pmnet_server_options options = { .size = sizeof(options), .listen = argv[3], .watermark = D_RO(store.root)->mark, .watermark_len = MARK_MAX };
	check(pmnet_server_open(&options, &server));
#else
	port = strchr(argv[3], ':');
	if (!port)
		die("no port");
	own.sin_port = htons((uint16_t)atoi(port + 1));
	*port = 0;
	sock = socket(AF_INET, SOCK_DGRAM, 0);
	check(inet_pton(AF_INET, argv[3], &own.sin_addr) == 1 ? 0 : -1);
	check(bind(sock, (struct sockaddr *)&own, sizeof(own)));
#endif
	printf("ready\n");
	fflush(stdout);

	for (;;) {
#ifdef PMNET
		check(pmnet_server_next(server, -1, &batch));
#else
		from_len = sizeof(from);
		got = recvfrom(sock, request, sizeof(request), 0, (struct sockaddr *)&from, &from_len);
		check((int)got);
#endif
		TX_BEGIN(store.pop) {
#ifdef PMNET
			for (size_t i = 0; i < batch.count; i++) /* An update takes no reply. */
				pmnet_server_reply(server, i, reply, handle(&store, batch.items[i].payload, batch.items[i].len, reply));
			check(pmnet_server_watermark(server, &options.watermark, &options.watermark_len));
			TX_MEMCPY(D_RW(store.root)->mark, options.watermark, options.watermark_len);
#else
			len = handle(&store, request, (size_t)got, reply);
#endif
		} TX_ONABORT {
			die(pmemobj_errormsg());
		} TX_END
#ifdef PMNET
		check(pmnet_server_done(server, batch.number));
#else
		sendto(sock, reply, len, 0, (struct sockaddr *)&from, from_len);
#endif
	}
}

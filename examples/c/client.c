// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A client for a server program of your own.
 *
 *	client DEVICES update TEXT [TIMES]	TIMES updates, many of them under way at once
 *	client DEVICES ask TEXT			a request that may change something, and its reply
 *	client DEVICES read TEXT		a request that only reads, and its reply
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pmnet.h>

#define UNDER_WAY 256

static int fail(void)
{
	fprintf(stderr, "client: %s\n", pmnet_last_error());
	return 1;
}

/* Sends the updates. Returns how many are durable; returns early if an update failed. */
static uint64_t update(struct pmnet_client client, const char *text, uint64_t times)
{
	uint64_t hash = pmnet_key_hash("count", 5);
	uint64_t begun = 0, ended = 0;

	while (ended < times) {
		struct pmnet_event event;

		for (; begun < times && begun - ended < UNDER_WAY; begun++)
			if (pmnet_update_start(client, begun, hash, text, strlen(text)))
				return ended;
		if (pmnet_client_next(client, -1, &event) < 0)
			return ended;
		/* On failure pmnet_last_error() returns the reason, until another call fails. */
		if (event.result < 0)
			return ended;
		ended++;
	}
	return ended;
}

int main(int argc, char **argv)
{
	struct pmnet_client_options options = { .size = sizeof(options) };
	struct pmnet_client client;
	int code;

	if (argc < 4) {
		fprintf(stderr, "usage: client DEVICES update|ask|read TEXT [TIMES]\n");
		return 2;
	}
	options.devices = argv[1];
	options.timeout_ms = 30000;
	if (pmnet_client_open(&options, &client))
		return fail();

	if (!strcmp(argv[2], "update")) {
		uint64_t times = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
		uint64_t durable = update(client, argv[3], times);

		printf("durable %" PRIu64 " of %" PRIu64 "\n", durable, times);
		code = durable == times ? 0 : fail();
	} else {
		struct pmnet_bytes reply;
		uint32_t flags = !strcmp(argv[2], "read") ? PMNET_READ_ONLY : 0;

		code = pmnet_bypass(client, 0, flags, argv[3], strlen(argv[3]), &reply);
		if (code) {
			code = fail();
		} else {
			printf("%.*s\n", (int)reply.len, reply.data ? (char *)reply.data : "");
			pmnet_bytes_free(&reply);
		}
	}
	if (pmnet_client_close(client) && !code)
		return fail();
	return code;
}

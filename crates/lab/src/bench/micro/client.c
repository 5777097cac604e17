// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The clients of libpmnet in `pmnet-lab bench micro`. This is the loop of programs.rs, written in C.
 *
 *	client DEVICES PAYLOAD CLIENTS WARM_UP DURATION [KEY_FILE]
 *
 * One thread, which never sleeps, keeps one update of PAYLOAD bytes in flight for each client. Times are in
 * nanoseconds. Prints the smallest number of copies, then one line for each bucket of the histogram: its lowest value
 * and its count.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <pmnet.h>

#define CLIENTS_MAX 64
/* The width of a bucket is at most a 1024th of its values. */
#define BITS 10
#define BUCKETS ((64 - BITS + 1) << BITS)

struct client {
	struct pmnet_client handle;
	uint64_t begun;
};

static struct client clients[CLIENTS_MAX];
static uint32_t counts[BUCKETS];
static void *payload;
static size_t payload_len;
static int copies_min = 255;

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void check(int code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "%s: %s (%s)\n", what, pmnet_error_text(code), pmnet_last_error());
	exit(1);
}

static void record(uint64_t value)
{
	unsigned int shift = value >> BITS ? (unsigned int)(64 - BITS - 1 - __builtin_clzll(value)) : 0;

	counts[((uint64_t)shift << BITS) + (value >> shift)]++;
}

static void print(void)
{
	uint64_t index;

	printf("%d\n", copies_min);
	for (index = 0; index < BUCKETS; index++) {
		uint64_t shift = index >> BITS ? (index >> BITS) - 1 : 0;

		if (counts[index])
			printf("%" PRIu64 " %" PRIu32 "\n", (index - (shift << BITS)) << shift, counts[index]);
	}
}

static void begin(int number)
{
	struct client *client = &clients[number];

	client->begun = now();
	check(pmnet_update_start(client->handle, (uint64_t)number, 0, payload, payload_len), "pmnet_update_start");
}

/* Returns whether the client's update has ended. */
static int has_ended(struct client *client)
{
	struct pmnet_event event;
	int code = pmnet_client_next(client->handle, 0, &event);

	check(code, "pmnet_client_next");
	if (code == PMNET_AGAIN)
		return 0;
	check(event.result, "an update");
	copies_min = event.result < copies_min ? event.result : copies_min;
	return 1;
}

static void run(int count, uint64_t measure, uint64_t until)
{
	uint64_t at;
	int number, busy;

	for (number = 0; number < count; number++)
		begin(number);
	for (busy = count; busy > 0;) {
		for (number = 0; number < count; number++) {
			struct client *client = &clients[number];

			if (!client->begun || !has_ended(client))
				continue;
			at = now();
			if (client->begun >= measure && at < until)
				record(at - client->begun);
			client->begun = 0;
			if (at < until)
				begin(number);
			else
				busy--;
		}
	}
}

static void *idle(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

int main(int argc, char **argv)
{
	struct pmnet_client_options options = { .size = sizeof(options) };
	struct pmnet_bytes reply;
	pthread_t other;
	uint64_t begun;
	int count, number;

	if (argc < 6 || argc > 7)
		return 2;
	options.devices = argv[1];
	options.key_file = argv[6];
	payload_len = strtoull(argv[2], NULL, 10);
	count = atoi(argv[3]);
	payload = calloc(1, payload_len + 1);
	if (!payload || count < 1 || count > CLIENTS_MAX)
		return 2;
	memset(payload, 'v', payload_len);
	/* Allocations are cheaper in a process with one thread. The process of the Rust client has several threads, so
	 * this process gets a second thread. */
	if (pthread_create(&other, NULL, idle, NULL))
		return 2;
	for (number = 0; number < count; number++) {
		check(pmnet_client_open(&options, &clients[number].handle), "pmnet_client_open");
		/* The first call opens the session, so the session is open afterwards. */
		check(pmnet_update(clients[number].handle, 0, payload, payload_len), "pmnet_update");
	}
	begun = now();
	run(count, begun + strtoull(argv[4], NULL, 10),
	    begun + strtoull(argv[4], NULL, 10) + strtoull(argv[5], NULL, 10));
	/* Waits until the server has applied the updates of this run, so that this work does not disturb the next run. */
	check(pmnet_bypass(clients[0].handle, 0, PMNET_READ_ONLY, payload, payload_len, &reply), "pmnet_bypass");
	pmnet_bytes_free(&reply);
	for (number = 0; number < count; number++)
		check(pmnet_client_close(clients[number].handle), "pmnet_client_close");
	print();
	return 0;
}

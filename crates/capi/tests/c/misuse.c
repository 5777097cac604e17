// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * For each error that a program can make, checks the code that the header states. Correct calls after the
 * error must still work.
 *
 *	misuse LISTEN DEVICE
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pmnet.h>

#define MIB ((size_t)1 << 20)

static int failed;

static void want(const char *what, int line, long got, long wanted)
{
	if (got == wanted)
		return;
	fprintf(stderr, "line %d: %s is %ld, not %ld: %s\n", line, what, got, wanted, pmnet_last_error());
	failed = 1;
}

#define WANT(what, wanted) want(#what, __LINE__, (long)(what), (long)(wanted))

static void objects_that_are_none(void)
{
	const struct pmnet_client no_client = { 0 }, foreign_client = { 12345 };
	const struct pmnet_server no_server = { 0 };
	const struct pmnet_row *rows;
	struct pmnet_reading reading;
	struct pmnet_bytes bytes;
	struct pmnet_event event;
	struct pmnet_batch batch;
	const void *mark;
	size_t len;

	WANT(pmnet_client_close(no_client), PMNET_E_HANDLE);
	WANT(pmnet_client_close(foreign_client), PMNET_E_FORK);
	WANT(pmnet_client_fd(no_client), PMNET_E_HANDLE);
	WANT(pmnet_client_next(no_client, 0, &event), PMNET_E_HANDLE);
	WANT(pmnet_client_next(no_client, 0, NULL), PMNET_E_ARGUMENT);
	WANT(pmnet_update(no_client, 0, "x", 1), PMNET_E_HANDLE);
	WANT(pmnet_update(no_client, 0, NULL, 1), PMNET_E_ARGUMENT);
	WANT(pmnet_update_start(no_client, 0, 0, "x", 1), PMNET_E_HANDLE);
	WANT(pmnet_bypass(no_client, 0, 0, "x", 1, &bytes), PMNET_E_HANDLE);
	WANT(pmnet_bypass(no_client, 0, 0, "x", 1, NULL), PMNET_E_ARGUMENT);
	WANT(pmnet_bypass(no_client, 0, 2, "x", 1, &bytes), PMNET_E_ARGUMENT);
	WANT(pmnet_bypass_start(no_client, 0, 0, 0, "x", 1), PMNET_E_HANDLE);
	WANT(pmnet_read(no_client, 1, &reading), PMNET_E_HANDLE);
	WANT(pmnet_read(no_client, 1, NULL), PMNET_E_ARGUMENT);
	WANT(pmnet_server_close(no_server), PMNET_E_HANDLE);
	WANT(pmnet_server_fd(no_server), PMNET_E_HANDLE);
	WANT(pmnet_server_port(no_server), PMNET_E_HANDLE);
	WANT(pmnet_server_next(no_server, 0, &batch), PMNET_E_HANDLE);
	WANT(pmnet_server_next(no_server, 0, NULL), PMNET_E_ARGUMENT);
	WANT(pmnet_server_reply(no_server, 0, "x", 1), PMNET_E_HANDLE);
	WANT(pmnet_server_rows(no_server, &rows, &len), PMNET_E_HANDLE);
	WANT(pmnet_server_rows(no_server, NULL, &len), PMNET_E_ARGUMENT);
	WANT(pmnet_server_watermark(no_server, &mark, &len), PMNET_E_HANDLE);
	WANT(pmnet_server_watermark(no_server, &mark, NULL), PMNET_E_ARGUMENT);
	WANT(pmnet_server_done(no_server, 1), PMNET_E_HANDLE);
	WANT(pmnet_server_undone(no_server, 1), PMNET_E_HANDLE);
	WANT(pmnet_key_hash(NULL, 1), 0);
	WANT(pmnet_key_hash(NULL, 0) != 0, 1);
	pmnet_bytes_free(NULL);
	bytes.data = NULL;
	bytes.len = 7;
	pmnet_bytes_free(&bytes);
	WANT(bytes.len, 0);
}

static void options_that_are_wrong(void)
{
	struct pmnet_client_options client_options = { .size = sizeof(client_options) };
	struct pmnet_server_options server_options = { .size = sizeof(server_options) };
	struct {
		struct pmnet_client_options known;
		uint64_t later;
	} longer = { .known = { .size = sizeof(longer), .devices = "127.0.0.1:1" } };
	struct pmnet_row row = { .key = NULL, .key_len = 3 };
	struct pmnet_client client;
	struct pmnet_server server;

	WANT(pmnet_client_open(NULL, &client), PMNET_E_ARGUMENT);
	WANT(pmnet_client_open(&client_options, NULL), PMNET_E_ARGUMENT);
	WANT(pmnet_client_open(&client_options, &client), PMNET_E_ARGUMENT);
	client_options.devices = "not an address";
	WANT(pmnet_client_open(&client_options, &client), PMNET_E_ARGUMENT);
	client_options.devices = "127.0.0.1:1,[::1]:1";
	WANT(pmnet_client_open(&client_options, &client), PMNET_E_ARGUMENT);
	client_options.devices = "127.0.0.1:1";
	client_options.copies_min = 256;
	WANT(pmnet_client_open(&client_options, &client), PMNET_E_ARGUMENT);
	client_options.copies_min = 0;
	client_options.size = 0;
	WANT(pmnet_client_open(&client_options, &client), PMNET_E_ARGUMENT);
	/* The longer struct of a later version is accepted if its new fields are zero. */
	longer.later = 1;
	WANT(pmnet_client_open(&longer.known, &client), PMNET_E_ARGUMENT);
	longer.later = 0;
	longer.known.timeout_ms = 1;
	WANT(pmnet_client_open(&longer.known, &client), PMNET_OK);
	WANT(pmnet_server_close((struct pmnet_server){ client.id }), PMNET_E_HANDLE);
	WANT(pmnet_client_close(client), PMNET_OK);
	WANT(pmnet_client_close(client), PMNET_E_HANDLE);
	WANT(pmnet_update(client, 0, "x", 1), PMNET_E_HANDLE);

	WANT(pmnet_server_open(NULL, &server), PMNET_E_ARGUMENT);
	WANT(pmnet_server_open(&server_options, &server), PMNET_E_ARGUMENT);
	server_options.listen = "127.0.0.1:0";
	WANT(pmnet_server_open(&server_options, NULL), PMNET_E_ARGUMENT);
	server_options.rows_count = 1;
	WANT(pmnet_server_open(&server_options, &server), PMNET_E_ARGUMENT);
	server_options.rows = &row;
	WANT(pmnet_server_open(&server_options, &server), PMNET_E_ARGUMENT);
	server_options.rows_count = 0;
	server_options.batch_entries_max = 1000000;
	WANT(pmnet_server_open(&server_options, &server), PMNET_E_ARGUMENT);
	server_options.batch_entries_max = 0;
	server_options.watermark = "nonsense";
	server_options.watermark_len = 8;
	WANT(pmnet_server_open(&server_options, &server), PMNET_E_ROWS);
}

static void *waits(void *server)
{
	struct pmnet_batch batch;

	WANT(pmnet_server_next(*(struct pmnet_server *)server, 300, &batch), PMNET_AGAIN);
	return NULL;
}

static void threads_and_forks(struct pmnet_server server, struct pmnet_client client)
{
	struct timespec pause = { .tv_nsec = 100 * 1000 * 1000 };
	struct pmnet_batch batch;
	pthread_t thread;
	int status;
	pid_t child;

	pthread_create(&thread, NULL, waits, &server);
	nanosleep(&pause, NULL);
	WANT(pmnet_server_next(server, 0, &batch), PMNET_E_THREAD);
	WANT(pmnet_server_close(server), PMNET_E_THREAD);
	pthread_join(thread, NULL);

	child = fork();
	if (child == 0) {
		struct pmnet_client_options options = {
			.size = sizeof(options), .devices = "127.0.0.1:1", .timeout_ms = 1,
		};
		struct pmnet_client own;

		WANT(pmnet_server_next(server, 0, &batch), PMNET_E_FORK);
		WANT(pmnet_server_close(server), PMNET_E_FORK);
		WANT(pmnet_update(client, 0, "x", 1), PMNET_E_FORK);
		WANT(pmnet_client_close(client), PMNET_E_FORK);
		WANT(pmnet_client_open(&options, &own), PMNET_OK);
		WANT(pmnet_client_close(own), PMNET_OK);
		_exit(failed);
	}
	waitpid(child, &status, 0);
	WANT(status, 0);
}

/* Takes one batch and confirms it. Returns 0 if no batch came. */
static int serve(struct pmnet_server server, int wait_ms, char *reply, size_t len)
{
	const struct pmnet_row *rows;
	struct pmnet_batch batch;
	size_t i, count;
	int code = pmnet_server_next(server, wait_ms, &batch);

	if (code == PMNET_AGAIN)
		return 0;
	WANT(code, PMNET_OK);
	for (i = 0; i < batch.count; i++)
		if (batch.items[i].kind != PMNET_UPDATE)
			WANT(pmnet_server_reply(server, i, reply, len), PMNET_OK);
	WANT(pmnet_server_rows(server, &rows, &count), PMNET_OK);
	WANT(pmnet_server_done(server, batch.number), PMNET_OK);
	return 1;
}

/* Waits for the client's next event. Meanwhile serves batches. */
static void finish(struct pmnet_client client, struct pmnet_server server, struct pmnet_event *event, char *reply,
		   size_t len)
{
	int turns;

	for (turns = 0; turns < 5000; turns++) {
		int code = pmnet_client_next(client, 5, event);

		if (code == PMNET_OK)
			return;
		WANT(code, PMNET_AGAIN);
		serve(server, 0, reply, len);
	}
	WANT(turns, 0);
}

/* Waits for a batch with items. */
static void take(struct pmnet_client client, struct pmnet_server server, struct pmnet_batch *batch)
{
	const struct pmnet_row *rows;
	struct pmnet_event event;
	size_t count;
	int turns;

	for (turns = 0; turns < 5000; turns++) {
		if (pmnet_server_next(server, 5, batch) == PMNET_OK) {
			if (batch->count > 0)
				return;
			WANT(pmnet_server_rows(server, &rows, &count), PMNET_OK);
			WANT(pmnet_server_done(server, batch->number), PMNET_OK);
		}
		WANT(pmnet_client_next(client, 0, &event), PMNET_AGAIN);
	}
	WANT(turns, 0);
}

static void batches_out_of_order(struct pmnet_server server, struct pmnet_client client)
{
	struct pmnet_batch batch, none;
	const struct pmnet_row *rows;
	struct pmnet_event event;
	struct pmnet_bytes reply;
	uint64_t before;
	size_t count;
	char *large = malloc(16 * MIB + 1);

	WANT(pmnet_server_done(server, 0), PMNET_E_ORDER);
	WANT(pmnet_server_rows(server, &rows, &count), PMNET_E_ORDER);
	WANT(pmnet_server_reply(server, 0, "", 0), PMNET_E_ORDER);

	/* The client sends an update. */
	WANT(pmnet_update_start(client, 1, 0, "one", 3), PMNET_OK);
	finish(client, server, &event, "", 0);
	WANT(event.token, 1);
	WANT(event.result, 1);
	WANT(pmnet_update(client, 77, "two", 3), 1);
	do {
		WANT(pmnet_server_next(server, 1000, &batch), PMNET_OK);
		if (batch.count > 0 && !memcmp(batch.items[batch.count - 1].payload, "two", 3))
			break;
		WANT(pmnet_server_rows(server, &rows, &count), PMNET_OK);
		WANT(pmnet_server_done(server, batch.number), PMNET_OK);
	} while (1);
	WANT(batch.items[batch.count - 1].kind, PMNET_UPDATE);
	WANT(pmnet_server_next(server, 0, &none), PMNET_E_ORDER);
	WANT(pmnet_server_done(server, batch.number + 1), PMNET_E_ORDER);
	WANT(pmnet_server_done(server, batch.number), PMNET_E_ORDER);
	WANT(pmnet_server_reply(server, batch.count - 1, "", 0), PMNET_E_REPLY);
	WANT(pmnet_server_reply(server, batch.count, "", 0), PMNET_E_ARGUMENT);
	/* A batch that was given back is offered again. */
	before = batch.number;
	WANT(pmnet_server_undone(server, batch.number), PMNET_OK);
	WANT(pmnet_server_undone(server, batch.number), PMNET_E_ORDER);
	WANT(pmnet_server_next(server, 3000, &batch), PMNET_OK);
	WANT(memcmp(batch.items[batch.count - 1].payload, "two", 3), 0);
	WANT(pmnet_server_done(server, before), PMNET_E_ORDER);
	WANT(pmnet_server_rows(server, &rows, &count), PMNET_OK);
	WANT(count > 0, 1);
	WANT(pmnet_server_done(server, batch.number), PMNET_OK);
	WANT(pmnet_server_done(server, batch.number), PMNET_E_ORDER);

	/* The client sends a bypass, which gets an empty reply. */
	WANT(pmnet_bypass_start(client, 2, 0, 0, "", 0), PMNET_OK);
	take(client, server, &batch);
	WANT(batch.items[0].kind, PMNET_BYPASS);
	WANT(batch.items[0].len, 0);
	WANT(pmnet_server_rows(server, &rows, &count), PMNET_E_REPLY);
	WANT(pmnet_server_done(server, batch.number), PMNET_E_REPLY);
	WANT(pmnet_server_reply(server, 0, large, 16 * MIB + 1), PMNET_E_LENGTH);
	WANT(pmnet_server_reply(server, 0, NULL, 5), PMNET_E_ARGUMENT);
	WANT(pmnet_server_reply(server, 0, NULL, 0), PMNET_OK);
	WANT(pmnet_server_reply(server, 0, "", 0), PMNET_E_REPLY);
	WANT(pmnet_server_rows(server, &rows, &count), PMNET_OK);
	WANT(pmnet_server_reply(server, 0, "", 0), PMNET_E_ORDER);
	WANT(pmnet_server_done(server, batch.number), PMNET_OK);
	finish(client, server, &event, "", 0);
	WANT(event.token, 2);
	WANT(event.result, PMNET_OK);
	WANT(event.reply.len, 0);

	/* The longest allowed reply and the longest allowed payload. */
	memset(large, 'r', 16 * MIB);
	large[16 * MIB - 1] = 'e';
	WANT(pmnet_update(client, 0, large, 16 * MIB + 1), PMNET_E_LENGTH);
	WANT(pmnet_bypass_start(client, 3, 0, PMNET_READ_ONLY, large, 16 * MIB), PMNET_OK);
	finish(client, server, &event, large, 16 * MIB);
	WANT(event.result, PMNET_OK);
	reply = event.reply;
	WANT(reply.len, 16 * MIB);
	WANT(reply.data && !memcmp(reply.data, large, 16 * MIB), 1);
	pmnet_bytes_free(&reply);
	pmnet_bytes_free(&reply);
	WANT(pmnet_bypass_start(client, 4, 0, 0, "x", 1), PMNET_OK);
	finish(client, server, &event, large, 16 * MIB);
	WANT(event.reply.len, 16 * MIB);
	pmnet_bytes_free(&event.reply);
	free(large);
}

static void reads(struct pmnet_server server, struct pmnet_client client)
{
	uint64_t hash = pmnet_key_hash("key", 3);
	struct pmnet_reading reading;
	struct pmnet_event event;
	int tries;

	WANT(pmnet_update_start(client, 5, hash, "value", 5), PMNET_OK);
	WANT(pmnet_read(client, hash, &reading), PMNET_E_PENDING);
	WANT(pmnet_client_next(client, 5000, &event), PMNET_OK);
	WANT(event.result, 1);
	/* The server has not taken the update, so the device answers with it. On a busy machine a read may miss its
	 * deadline, so it is repeated. */
	for (tries = 0; tries < 200; tries++) {
		int code = pmnet_read(client, hash, &reading);

		if (code == PMNET_OK)
			break;
		WANT(code == PMNET_E_NO_ANSWER || code == PMNET_E_FULL, 1);
		poll(NULL, 0, 20);
	}
	WANT(reading.kind, PMNET_HIT);
	WANT(reading.payload.len, 5);
	WANT(reading.payload.data && !memcmp(reading.payload.data, "value", 5), 1);
	pmnet_bytes_free(&reading.payload);
	while (serve(server, 100, "", 0))
		;
}

/* Each descriptor must be readable exactly when its object has work or a result. */
static void polls(struct pmnet_server server, struct pmnet_client client)
{
	struct pollfd fds[2] = {
		{ .fd = pmnet_server_fd(server), .events = POLLIN },
		{ .fd = pmnet_client_fd(client), .events = POLLIN },
	};
	int turns, done = 0;

	WANT(pmnet_bypass_start(client, 9, 0, 0, "polled", 6), PMNET_OK);
	for (turns = 0; turns < 5000 && !done; turns++) {
		struct pmnet_event event;

		WANT(poll(fds, 2, 5000) > 0, 1);
		if (fds[0].revents)
			WANT(serve(server, 0, "reply", 5), 1);
		while (fds[1].revents && pmnet_client_next(client, 0, &event) == PMNET_OK) {
			done = event.token == 9 && event.reply.len == 5;
			pmnet_bytes_free(&event.reply);
		}
	}
	WANT(done, 1);
	WANT(turns < 1000, 1);
}

/* Opens servers with the stored watermark, and with each kind of wrong watermark. */
static void watermarks(struct pmnet_server server, struct pmnet_client client)
{
	struct pmnet_server_options options = { .size = sizeof(options), .listen = "127.0.0.1:0" };
	struct pmnet_server other;
	struct pmnet_batch batch;
	struct pmnet_event event;
	const void *mark;
	char *copy;
	size_t len;

	WANT(pmnet_bypass_start(client, 6, 0, 0, "x", 1), PMNET_OK);
	take(client, server, &batch);
	WANT(pmnet_server_reply(server, 0, "y", 1), PMNET_OK);
	WANT(pmnet_server_watermark(server, &mark, &len), PMNET_OK);
	copy = malloc(len);
	memcpy(copy, mark, len);
	WANT(pmnet_server_done(server, batch.number), PMNET_OK);
	finish(client, server, &event, "", 0);
	pmnet_bytes_free(&event.reply);

	options.watermark = copy;
	options.watermark_len = len;
	WANT(pmnet_server_open(&options, &other), PMNET_OK);
	WANT(pmnet_server_close(other), PMNET_OK);
	options.rows = &(struct pmnet_row){ .key = "pmnet", .key_len = 5, .value = "x", .value_len = 1 };
	options.rows_count = 1;
	WANT(pmnet_server_open(&options, &other), PMNET_E_ARGUMENT);
	options.watermark_len = 0;
	WANT(pmnet_server_open(&options, &other), PMNET_E_ROWS);
	options.rows_count = 0;
	options.watermark_len = len - 1;
	WANT(pmnet_server_open(&options, &other), PMNET_E_ROWS);
	options.watermark_len = len;
	options.shard = 1;
	WANT(pmnet_server_open(&options, &other), PMNET_E_SHARD);
	options.shard = 0;
	copy[len / 2] ^= 1;
	WANT(pmnet_server_open(&options, &other), PMNET_E_ROWS);
	free(copy);
}

int main(int argc, char **argv)
{
	struct pmnet_client_options client_options = { .size = sizeof(client_options), .timeout_ms = 20000 };
	struct pmnet_server_options server_options = { .size = sizeof(server_options) };
	struct pmnet_client client;
	struct pmnet_server server;
	int code;

	if (argc != 3)
		return 2;
	for (code = PMNET_E_BUG; code <= PMNET_AGAIN; code++)
		WANT(strcmp(pmnet_error_text(code), pmnet_error_text(4711)) != 0, 1);
	objects_that_are_none();
	options_that_are_wrong();

	server_options.listen = argv[1];
	WANT(pmnet_server_open(&server_options, &server), PMNET_OK);
	WANT(pmnet_server_port(server), atoi(strrchr(argv[1], ':') + 1));
	client_options.devices = argv[2];
	WANT(pmnet_client_open(&client_options, &client), PMNET_OK);

	batches_out_of_order(server, client);
	threads_and_forks(server, client);
	reads(server, client);
	polls(server, client);
	watermarks(server, client);

	WANT(pmnet_client_close(client), PMNET_OK);
	WANT(pmnet_server_close(server), PMNET_OK);
	WANT(pmnet_server_close(server), PMNET_E_HANDLE);
	return failed;
}

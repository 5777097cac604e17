// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Scores by name: server and clients for dist/test.py. The author used only docs/use/programs.md, the man pages and the
 * header.
 *
 *	scores serve ADDRESS FILE		its store is a file, which is replaced as a whole, and has the watermark
 *	scores add DEVICE NAME AMOUNT COUNT	COUNT updates, 32 of them under way at once
 *	scores get DEVICE NAME
 *	scores take DEVICE NAME			prints the score, and makes it 0
 *
 * Payloads: "+AMOUNT NAME" is an update. "get NAME" and "take NAME" are bypasses; their replies are scores in decimal.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pmnet.h>

#define NAMES 64
#define NAME 32
#define UNDER_WAY 32

struct scores {
	char names[NAMES][NAME];
	long long values[NAMES];
};

static struct scores scores;

_Noreturn static void die(const char *what, int code)
{
	if (code < 0)
		fprintf(stderr, "%s: %s: %s\n", what, pmnet_error_text(code), pmnet_last_error());
	else
		perror(what);
	exit(1);
}

static int check(const char *what, int code)
{
	if (code < 0)
		die(what, code);
	return code;
}

/* Returns NULL if there is no score with this name. If is_new is set, adds one, and returns NULL only if the table
 * is full. */
static long long *score(const char *name, int is_new)
{
	int at;

	for (at = 0; at < NAMES; at++) {
		if (!scores.names[at][0] && is_new)
			snprintf(scores.names[at], NAME, "%s", name);
		if (!strcmp(scores.names[at], name))
			return &scores.values[at];
	}
	return NULL;
}

static void execute(struct pmnet_server server, const struct pmnet_batch *batch, size_t at)
{
	const struct pmnet_item *item = &batch->items[at];
	long long amount = 0, *value = NULL;
	char text[128] = "", name[NAME] = "", reply[32];
	int is_take;

	if (item->len < sizeof(text))
		memcpy(text, item->payload, item->len);
	if (item->kind == PMNET_UPDATE) {
		/* An invalid update is skipped, because it would be invalid at a second attempt too. */
		if (sscanf(text, "+%lld %31s", &amount, name) == 2)
			value = score(name, 1);
		if (value)
			*value += amount;
		return;
	}
	is_take = item->kind == PMNET_BYPASS && sscanf(text, "take %31s", name) == 1;
	if (is_take || sscanf(text, "get %31s", name) == 1)
		value = score(name, 0);
	snprintf(reply, sizeof(reply), "%lld", value ? *value : 0);
	if (is_take && value)
		*value = 0;
	check("pmnet_server_reply", pmnet_server_reply(server, at, reply, strlen(reply)));
}

static void put(int fd, const void *from, size_t len)
{
	if (len && write(fd, from, len) != (ssize_t)len)
		die("write", 0);
}

/* The transaction: a new durable file replaces the old file. */
static void commit(const char *path, const void *watermark, size_t len)
{
	char other[4096], folder[4096] = ".";
	const char *slash = strrchr(path, '/');
	int fd;

	snprintf(other, sizeof(other), "%s.new", path);
	if (slash)
		snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path) + 1, path);
	fd = open(other, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		die(other, 0);
	put(fd, &scores, sizeof(scores));
	put(fd, watermark, len);
	if (fsync(fd) || close(fd) || rename(other, path))
		die(path, 0);
	fd = open(folder, O_RDONLY | O_DIRECTORY);
	if (fd < 0 || fsync(fd) || close(fd))
		die(folder, 0);
}

static void *load(const char *path, size_t *len)
{
	static char stored[sizeof(scores) + (1 << 20)];
	FILE *file = fopen(path, "r");
	size_t got;

	*len = 0;
	if (!file && errno == ENOENT)
		return NULL;
	got = file ? fread(stored, 1, sizeof(stored), file) : 0;
	if (!file || got < sizeof(scores) || got == sizeof(stored) || fclose(file))
		die(path, 0);
	memcpy(&scores, stored, sizeof(scores));
	*len = got - sizeof(scores);
	return stored + sizeof(scores);
}

static void serve(const char *address, const char *path)
{
	struct pmnet_server_options options = { .size = sizeof(options) };
	struct pmnet_server server;
	struct pmnet_batch batch;
	const void *watermark;
	size_t at, len;
	int code;

	options.listen = address;
	options.watermark = load(path, &options.watermark_len);
	check("pmnet_server_open", pmnet_server_open(&options, &server));
	puts("ready");
	fflush(stdout);
	for (;;) {
		code = check("pmnet_server_next", pmnet_server_next(server, -1, &batch));
		if (code == PMNET_AGAIN)
			continue;
		for (at = 0; at < batch.count; at++)
			execute(server, &batch, at);
		check("pmnet_server_watermark", pmnet_server_watermark(server, &watermark, &len));
		commit(path, watermark, len);
		check("pmnet_server_done", pmnet_server_done(server, batch.number));
	}
}

static struct pmnet_client client_of(const char *device)
{
	struct pmnet_client_options options = { .size = sizeof(options) };
	struct pmnet_client client;

	options.devices = device;
	options.timeout_ms = 30000;
	check("pmnet_client_open", pmnet_client_open(&options, &client));
	return client;
}

static int add(const char *device, const char *name, const char *amount, long count)
{
	struct pmnet_client client = client_of(device);
	struct pollfd fd = { .fd = check("pmnet_client_fd", pmnet_client_fd(client)), .events = POLLIN };
	uint64_t hash = pmnet_key_hash(name, strlen(name));
	long begun = 0, ended = 0;
	struct pmnet_event event;
	char text[128];

	snprintf(text, sizeof(text), "+%s %s", amount, name);
	while (ended < count) {
		for (; begun < count && begun - ended < UNDER_WAY; begun++)
			check("pmnet_update_start",
			      pmnet_update_start(client, (uint64_t)begun, hash, text, strlen(text)));
		if (poll(&fd, 1, -1) < 0 && errno != EINTR)
			die("poll", 0);
		while (check("pmnet_client_next", pmnet_client_next(client, 0, &event)) == PMNET_OK) {
			check("an update", event.result);
			ended++;
		}
	}
	check("pmnet_client_close", pmnet_client_close(client));
	printf("%ld\n", ended);
	return 0;
}

static int ask(const char *device, const char *what, const char *name)
{
	struct pmnet_client client = client_of(device);
	uint32_t flags = strcmp(what, "get") ? 0 : PMNET_READ_ONLY;
	struct pmnet_bytes reply;
	char text[128];

	snprintf(text, sizeof(text), "%s %s", what, name);
	check("pmnet_bypass",
	      pmnet_bypass(client, pmnet_key_hash(name, strlen(name)), flags, text, strlen(text), &reply));
	printf("%.*s\n", (int)reply.len, (const char *)reply.data);
	pmnet_bytes_free(&reply);
	check("pmnet_client_close", pmnet_client_close(client));
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (argc == 4 && !strcmp(what, "serve"))
		serve(argv[2], argv[3]);
	if (argc == 6 && !strcmp(what, "add"))
		return add(argv[2], argv[3], argv[4], atol(argv[5]));
	if (argc == 4 && (!strcmp(what, "get") || !strcmp(what, "take")))
		return ask(argv[2], what, argv[3]);
	fprintf(stderr, "usage: the head of scores.c\n");
	return 2;
}

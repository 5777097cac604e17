// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A counter that applies each update exactly once, even if processes are killed.
 *
 *	counter LISTEN FOLDER
 *
 * The update "+N" adds N. The request "get" returns the count; "take" returns the count and sets it to zero.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pmnet.h>

#define FILE_MAX (sizeof(uint64_t) + (64 << 20))

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	stop = number;
}

static void die(const char *what)
{
	fprintf(stderr, "counter: %s\n", what);
	exit(1);
}

static void check(int code)
{
	if (code < 0)
		die(pmnet_last_error());
}

/* Stores count and watermark in one transaction: writes both into a new file, and renames it over the old file. */
static void store(int folder, uint64_t count, const void *mark, size_t len)
{
	FILE *file = fopen("count.new", "w");

	if (!file || fwrite(&count, sizeof(count), 1, file) != 1 || fwrite(mark, 1, len, file) != len ||
	    fflush(file) || fsync(fileno(file)) || fclose(file) || rename("count.new", "count") ||
	    fsync(folder))
		die(strerror(errno));
}

/* Reads the stored count and watermark. Returns the length of the watermark; 0 at the first start. */
static size_t load(uint64_t *count, char *buffer)
{
	FILE *file = fopen("count", "r");
	size_t len;

	if (!file && errno == ENOENT)
		return 0;
	if (!file || fread(count, sizeof(*count), 1, file) != 1)
		die("the file is damaged");
	len = fread(buffer, 1, FILE_MAX, file);
	fclose(file);
	return len;
}

/* Applies item `at` of the batch, and replies if it is a bypass. Returns the new count. */
static uint64_t apply(struct pmnet_server server, const struct pmnet_batch *batch, size_t at, uint64_t count)
{
	const struct pmnet_item *item = &batch->items[at];
	char text[32] = "";
	int len;

	memcpy(text, item->payload, item->len < sizeof(text) ? item->len : sizeof(text) - 1);
	if (item->kind == PMNET_UPDATE)
		return count + strtoull(text, NULL, 10);
	len = snprintf(text, sizeof(text), "%" PRIu64, count);
	check(pmnet_server_reply(server, at, text, (size_t)len));
	return item->kind == PMNET_BYPASS ? 0 : count;
}

int main(int argc, char **argv)
{
	struct pmnet_server_options options = { .size = sizeof(options) };
	struct sigaction action = { .sa_handler = on_signal };
	char *buffer = malloc(FILE_MAX);
	struct pmnet_server server;
	uint64_t count = 0;
	int folder;

	if (argc != 3 || !buffer)
		die("usage: counter LISTEN FOLDER");
	sigaction(SIGTERM, &action, NULL);
	folder = open(argv[2], O_RDONLY | O_DIRECTORY);
	if (folder < 0 || fchdir(folder))
		die(strerror(errno));

	options.listen = argv[1];
	options.watermark_len = load(&count, buffer);
	options.watermark = options.watermark_len ? buffer : NULL;
	check(pmnet_server_open(&options, &server));
	printf("ready port=%d\n", pmnet_server_port(server));
	fflush(stdout);
	free(buffer);

	while (!stop) {
		const struct pmnet_row *rows;
		struct pmnet_batch batch;
		uint64_t next = count;
		const void *mark;
		size_t i, len;
		int code = pmnet_server_next(server, 1000, &batch);

		check(code);
		if (code == PMNET_AGAIN)
			continue;
		for (i = 0; i < batch.count; i++)
			next = apply(server, &batch, i, next);
		check(pmnet_server_rows(server, &rows, &len));
		if (len > 0) {
			check(pmnet_server_watermark(server, &mark, &len));
			store(folder, next, mark, len);
		}
		check(pmnet_server_done(server, batch.number));
		count = next;
	}
	check(pmnet_server_close(server));
	close(folder);
	return 0;
}

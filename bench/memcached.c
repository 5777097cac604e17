// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A load generator for bench/memcached.py: a closed loop of requests in memcached's text protocol.
 *
 *	memcached PORT set|get CLIENTS COUNT
 *
 * Each client is a thread with one connection. Each client sends COUNT commands with values of 100 bytes, each after
 * the reply to the previous command. Prints the median and the 99th percentile of the latency in nanoseconds, and
 * commands per second.
 */
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP 200
#define VALUE 100
#define KEYS 1000
#define CLIENTS_MAX 64

struct client {
	pthread_t thread;
	uint64_t *took;
	uint64_t begun, ended;
	int number;
};

static struct sockaddr_in place = { .sin_family = AF_INET };
static uint64_t count;
static bool sets;
static pthread_barrier_t barrier;

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void exchange(int fd, const char *sent, size_t len, const char *end)
{
	size_t ends = strlen(end), have = 0;
	char reply[1024];

	if (write(fd, sent, len) != (ssize_t)len)
		die("write");
	do {
		ssize_t got = read(fd, reply + have, sizeof(reply) - have);

		if (got <= 0)
			die("read");
		have += (size_t)got;
	} while (have < ends || memcmp(reply + have - ends, end, ends));
	/* Without this check a miss would be measured as a hit. */
	if (!sets && have < VALUE) {
		fprintf(stderr, "a get found nothing\n");
		exit(1);
	}
}

static void *run(void *argument)
{
	struct client *client = argument;
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	char value[VALUE + 1], sent[512];
	uint64_t number;

	if (fd < 0 || connect(fd, (struct sockaddr *)&place, sizeof(place)))
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	memset(value, 'x', VALUE);
	value[VALUE] = 0;
	for (number = 0; number < WARM_UP + count; number++) {
		int key = (int)((number * 7919 + (uint64_t)client->number * 104729) % KEYS);
		int len = sets ? snprintf(sent, sizeof(sent), "set key:%d 0 0 %d\r\n%s\r\n", key, VALUE, value) :
				 snprintf(sent, sizeof(sent), "get key:%d\r\n", key);
		uint64_t begun;

		if (number == WARM_UP) {
			pthread_barrier_wait(&barrier);
			client->begun = now();
		}
		begun = now();
		exchange(fd, sent, (size_t)len, sets ? "STORED\r\n" : "END\r\n");
		if (number >= WARM_UP)
			client->took[number - WARM_UP] = now() - begun;
	}
	client->ended = now();
	close(fd);
	return NULL;
}

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
	static struct client clients[CLIENTS_MAX];
	uint64_t begun = UINT64_MAX, ended = 0, all;
	uint64_t *took;
	int number, total;

	if (argc != 5)
		return 2;
	place.sin_port = htons((uint16_t)atoi(argv[1]));
	place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	sets = !strcmp(argv[2], "set");
	total = atoi(argv[3]);
	count = strtoull(argv[4], NULL, 10);
	if (total < 1 || total > CLIENTS_MAX || !count)
		return 2;
	all = count * (uint64_t)total;
	took = calloc(all, sizeof(*took));
	if (!took || pthread_barrier_init(&barrier, NULL, (unsigned int)total))
		die("memory");
	for (number = 0; number < total; number++) {
		clients[number].number = number;
		clients[number].took = took + count * (uint64_t)number;
		if (pthread_create(&clients[number].thread, NULL, run, &clients[number]))
			die("thread");
	}
	for (number = 0; number < total; number++) {
		pthread_join(clients[number].thread, NULL);
		begun = clients[number].begun < begun ? clients[number].begun : begun;
		ended = clients[number].ended > ended ? clients[number].ended : ended;
	}
	qsort(took, all, sizeof(*took), compare);
	printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", took[all / 2], took[all * 99 / 100],
	       all * 1000000000 / (ended - begun));
	free(took);
	return 0;
}

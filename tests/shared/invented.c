/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Commands that pmnet does not know, in a test module for Redis 6.2 and newer, and for Valkey.
 *
 * pmnet must handle each of these commands correctly, and knows only the server's description of
 * it. This file declares Redis's functions itself, because a module looks up each function by
 * its name.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

struct ctx;
struct string;
struct reply;
struct command;

typedef int (*handler)(struct ctx *ctx, struct string **argv, int argc);

/* The description of a command's keys (API 7.0). */
struct version {
	int version;
	size_t history_size;
	size_t key_spec_size;
	size_t argument_size;
};

enum { BEGIN_INDEX = 2, BEGIN_KEYWORD = 3 };
enum { FIND_RANGE = 2, FIND_KEYNUM = 3 };
enum { KEY_RO = 1 << 0, KEY_OW = 1 << 2, KEY_ACCESS = 1 << 4, KEY_UPDATE = 1 << 5 };

struct key_spec {
	const char *notes;
	uint64_t flags;
	int begin_type;
	union {
		int index;
		struct {
			const char *keyword;
			int start;
		} keyword;
	} begin;
	int find_type;
	union {
		struct {
			int last;
			int step;
			int limit;
		} range;
		struct {
			int number;
			int first;
			int step;
		} keynum;
	} find;
};

struct history {
	const char *since;
	const char *changes;
};

struct argument {
	const char *name;
	int type;
	int key_spec;
	const char *token;
	const char *summary;
	const char *since;
	int flags;
	const char *deprecated_since;
	struct argument *arguments;
	const char *display;
};

struct info {
	const struct version *version;
	const char *summary;
	const char *complexity;
	const char *since;
	struct history *history;
	const char *tips;
	int arity;
	struct key_spec *key_specs;
	struct argument *arguments;
};

static const struct version VERSION = {
	.version = 1,
	.history_size = sizeof(struct history),
	.key_spec_size = sizeof(struct key_spec),
	.argument_size = sizeof(struct argument),
};

static int (*get_api)(const char *name, void *function);
static void (*set_attributes)(struct ctx *ctx, const char *name, int version, int api);
static int (*create_command)(struct ctx *ctx, const char *name, handler run, const char *flags,
			     int first, int last, int step);
static struct command *(*get_command)(struct ctx *ctx, const char *name);
static int (*create_subcommand)(struct command *parent, const char *name, handler run, const char *flags,
				int first, int last, int step);
static int (*set_command_info)(struct command *command, const struct info *info);
static struct reply *(*call)(struct ctx *ctx, const char *command, const char *format, ...);
static int (*call_reply_type)(struct reply *reply);
static long long (*call_reply_integer)(struct reply *reply);
static size_t (*call_reply_length)(struct reply *reply);
static struct reply *(*call_reply_element)(struct reply *reply, size_t at);
static struct string *(*string_of_reply)(struct reply *reply);
static void (*free_reply)(struct reply *reply);
static int (*reply_with_reply)(struct ctx *ctx, struct reply *reply);
static int (*reply_with_integer)(struct ctx *ctx, long long number);
static int (*reply_with_status)(struct ctx *ctx, const char *text);
static int (*reply_with_error)(struct ctx *ctx, const char *text);
static int (*wrong_arity)(struct ctx *ctx);
static const char *(*string_bytes)(const struct string *string, size_t *length);
static struct string *(*string_printf)(struct ctx *ctx, const char *format, ...);
static int (*string_to_integer)(const struct string *string, long long *number);
static unsigned long long (*client_id)(struct ctx *ctx);
static void (*auto_memory)(struct ctx *ctx);
static struct string *(*user_name)(struct ctx *ctx);
static int (*reply_with_string)(struct ctx *ctx, struct string *text);

enum { REPLY_ARRAY = 3 };

/* inv.len KEY: a read. */
static int run_len(struct ctx *ctx, struct string **argv, int argc)
{
	if (argc != 2)
		return wrong_arity(ctx);
	auto_memory(ctx);
	return reply_with_reply(ctx, call(ctx, "STRLEN", "s", argv[1]));
}

/* inv.add KEY NUMBER: a write whose reply depends on the data. */
static int run_add(struct ctx *ctx, struct string **argv, int argc)
{
	if (argc != 3)
		return wrong_arity(ctx);
	auto_memory(ctx);
	return reply_with_reply(ctx, call(ctx, "INCRBY", "!ss", argv[1], argv[2]));
}

static int sum_of(struct ctx *ctx, struct string **argv, int argc, long long *sum)
{
	long long count;

	if (string_to_integer(argv[1], &count) != 0 || count < 1 || count > argc - 2)
		return -1;
	*sum = 0;
	for (int i = 0; i < count; i++) {
		struct reply *reply = call(ctx, "STRLEN", "s", argv[2 + i]);

		*sum += reply ? call_reply_integer(reply) : 0;
	}
	return 0;
}

/* inv.sum COUNT KEY ...: a read. Only a key specification says which arguments are its keys. */
static int run_sum(struct ctx *ctx, struct string **argv, int argc)
{
	long long sum;

	if (argc < 3)
		return wrong_arity(ctx);
	auto_memory(ctx);
	if (sum_of(ctx, argv, argc, &sum) != 0)
		return reply_with_error(ctx, "ERR wrong number of keys");
	return reply_with_integer(ctx, sum);
}

/* inv.store COUNT KEY ... INTO KEY: a write. The command reads the first keys, and writes the
 * last key. */
static int run_store(struct ctx *ctx, struct string **argv, int argc)
{
	long long sum;

	if (argc < 5)
		return wrong_arity(ctx);
	auto_memory(ctx);
	if (sum_of(ctx, argv, argc - 2, &sum) != 0)
		return reply_with_error(ctx, "ERR wrong number of keys");
	call(ctx, "SET", "!sl", argv[argc - 1], sum);
	return reply_with_integer(ctx, sum);
}

/* Texts, each of which belongs to a connection. */
static struct {
	unsigned long long client;
	char text[64];
} prepared[256];

/* inv.prepare TEXT: stores a text for this connection. */
static int run_prepare(struct ctx *ctx, struct string **argv, int argc)
{
	unsigned long long client = client_id(ctx);
	size_t length;
	const char *text;

	if (argc != 2)
		return wrong_arity(ctx);
	text = string_bytes(argv[1], &length);
	if (length >= sizeof(prepared[0].text))
		return reply_with_error(ctx, "ERR too long");
	prepared[client % 256].client = client;
	memcpy(prepared[client % 256].text, text, length);
	prepared[client % 256].text[length] = 0;
	return reply_with_status(ctx, "OK");
}

/* inv.put KEY: writes the text of this connection to the key. */
static int run_put(struct ctx *ctx, struct string **argv, int argc)
{
	unsigned long long client = client_id(ctx);

	if (argc != 2)
		return wrong_arity(ctx);
	if (prepared[client % 256].client != client)
		return reply_with_error(ctx, "ERR nothing is prepared on this connection");
	auto_memory(ctx);
	return reply_with_reply(ctx, call(ctx, "SET", "!sc", argv[1], prepared[client % 256].text));
}

/* inv.family PREPARE TEXT, inv.family PUT KEY: inv.prepare and inv.put as subcommands. */
static int run_family_prepare(struct ctx *ctx, struct string **argv, int argc)
{
	return run_prepare(ctx, argv + 1, argc - 1);
}

static int run_family_put(struct ctx *ctx, struct string **argv, int argc)
{
	return run_put(ctx, argv + 1, argc - 1);
}

/* inv.slow KEY SECONDS: a write that takes this time. */
static int run_slow(struct ctx *ctx, struct string **argv, int argc)
{
	long long seconds;

	if (argc != 3)
		return wrong_arity(ctx);
	if (string_to_integer(argv[2], &seconds) != 0 || seconds < 0 || seconds > 60)
		return reply_with_error(ctx, "ERR wrong number of seconds");
	auto_memory(ctx);
	sleep((unsigned int)seconds);
	return reply_with_reply(ctx, call(ctx, "INCRBY", "!sc", argv[1], "1"));
}

/* inv.wipe PREFIX: removes all keys with this prefix. The arguments of the command do not
 * name the keys. */
static int run_wipe(struct ctx *ctx, struct string **argv, int argc)
{
	struct reply *keys;
	size_t length;

	if (argc != 2)
		return wrong_arity(ctx);
	auto_memory(ctx);
	keys = call(ctx, "KEYS", "s", string_printf(ctx, "%s*", string_bytes(argv[1], &length)));
	if (!keys || call_reply_type(keys) != REPLY_ARRAY)
		return reply_with_error(ctx, "ERR no keys");
	for (size_t i = 0; i < call_reply_length(keys); i++)
		call(ctx, "DEL", "!s", string_of_reply(call_reply_element(keys, i)));
	return reply_with_integer(ctx, (long long)call_reply_length(keys));
}

/* inv.user: replies with the name of the user whose rights apply. The command has no key. */
static int run_user(struct ctx *ctx, struct string **argv, int argc)
{
	(void)argv;
	if (argc != 1)
		return wrong_arity(ctx);
	if (!user_name)
		return reply_with_error(ctx, "ERR this server does not say it");
	auto_memory(ctx);
	return reply_with_string(ctx, user_name(ctx));
}

static int describe(struct ctx *ctx)
{
	struct key_spec sources = {
		.flags = KEY_RO | KEY_ACCESS,
		.begin_type = BEGIN_INDEX,
		.begin.index = 1,
		.find_type = FIND_KEYNUM,
		.find.keynum = { .number = 0, .first = 1, .step = 1 },
	};
	struct key_spec target = {
		.flags = KEY_OW | KEY_UPDATE,
		.begin_type = BEGIN_KEYWORD,
		.begin.keyword = { .keyword = "INTO", .start = 3 },
		.find_type = FIND_RANGE,
		.find.range = { .last = 0, .step = 1, .limit = 0 },
	};
	struct key_spec reads[] = { sources, { 0 } };
	struct key_spec writes[] = { sources, target, { 0 } };
	struct info sum = { .version = &VERSION, .arity = -3, .key_specs = reads };
	struct info store = { .version = &VERSION, .arity = -5, .key_specs = writes };
	struct command *family;

	if (create_command(ctx, "inv.family", NULL, "", 0, 0, 0) != 0)
		return 1;
	family = get_command(ctx, "inv.family");
	return create_subcommand(family, "prepare", run_family_prepare, "deny-script", 0, 0, 0) ||
	       create_subcommand(family, "put", run_family_put, "write deny-oom", 2, 2, 1) ||
	       set_command_info(get_command(ctx, "inv.sum"), &sum) ||
	       set_command_info(get_command(ctx, "inv.store"), &store);
}

static const struct {
	const char *name;
	void *function;
} FUNCTIONS[] = {
	{ "RedisModule_SetModuleAttribs", &set_attributes },
	{ "RedisModule_CreateCommand", &create_command },
	{ "RedisModule_Call", &call },
	{ "RedisModule_CallReplyType", &call_reply_type },
	{ "RedisModule_CallReplyInteger", &call_reply_integer },
	{ "RedisModule_CallReplyLength", &call_reply_length },
	{ "RedisModule_CallReplyArrayElement", &call_reply_element },
	{ "RedisModule_CreateStringFromCallReply", &string_of_reply },
	{ "RedisModule_FreeCallReply", &free_reply },
	{ "RedisModule_ReplyWithCallReply", &reply_with_reply },
	{ "RedisModule_ReplyWithLongLong", &reply_with_integer },
	{ "RedisModule_ReplyWithSimpleString", &reply_with_status },
	{ "RedisModule_ReplyWithError", &reply_with_error },
	{ "RedisModule_WrongArity", &wrong_arity },
	{ "RedisModule_StringPtrLen", &string_bytes },
	{ "RedisModule_CreateStringPrintf", &string_printf },
	{ "RedisModule_StringToLongLong", &string_to_integer },
	{ "RedisModule_GetClientId", &client_id },
	{ "RedisModule_AutoMemory", &auto_memory },
	{ "RedisModule_ReplyWithString", &reply_with_string },
};

static const struct {
	const char *name;
	handler run;
	const char *flags;
	int keys[3];
} COMMANDS[] = {
	{ "inv.len", run_len, "readonly fast", { 1, 1, 1 } },
	{ "inv.add", run_add, "write deny-oom", { 1, 1, 1 } },
	{ "inv.sum", run_sum, "readonly", { 0, 0, 0 } },
	{ "inv.store", run_store, "write deny-oom", { 0, 0, 0 } },
	{ "inv.prepare", run_prepare, "deny-script", { 0, 0, 0 } },
	{ "inv.put", run_put, "write deny-oom", { 1, 1, 1 } },
	{ "inv.slow", run_slow, "write deny-oom", { 1, 1, 1 } },
	{ "inv.wipe", run_wipe, "write", { 0, 0, 0 } },
	{ "inv.user", run_user, "readonly", { 0, 0, 0 } },
};

int RedisModule_OnLoad(struct ctx *ctx, struct string **argv, int argc)
{
	(void)argv;
	(void)argc;
	get_api = ((void **)ctx)[0];
	for (size_t i = 0; i < sizeof(FUNCTIONS) / sizeof(FUNCTIONS[0]); i++) {
		if (get_api(FUNCTIONS[i].name, FUNCTIONS[i].function) != 0)
			return 1;
	}
	set_attributes(ctx, "invented", 1, 1);
	for (size_t i = 0; i < sizeof(COMMANDS) / sizeof(COMMANDS[0]); i++) {
		const int *keys = COMMANDS[i].keys;

		if (create_command(ctx, COMMANDS[i].name, COMMANDS[i].run, COMMANDS[i].flags,
				   keys[0], keys[1], keys[2]) != 0)
			return 1;
	}
	get_api("RedisModule_GetCurrentUserName", &user_name);
	/* Before Redis 7, a module cannot describe keys in more detail, and cannot have subcommands. */
	if (get_api("RedisModule_GetCommand", &get_command) != 0 ||
	    get_api("RedisModule_CreateSubcommand", &create_subcommand) != 0 ||
	    get_api("RedisModule_SetCommandInfo", &set_command_info) != 0)
		return 0;
	return describe(ctx);
}

/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libpmnet: writes that are durable in the network, and the server that they go to.
 * The page docs/use/programs.md explains it; pmnet(3) lists the functions.
 *
 * Every function that can fail returns an int: 0 or more is success, less is one of the PMNET_E_
 * codes. pmnet_error_text() has a sentence for each code, and pmnet_last_error() one about the last
 * failure in this thread.
 *
 * Threads: a client or a server is used by one thread at a time; a second one gets PMNET_E_THREAD.
 * Two objects have nothing to do with each other. No function calls back into the program.
 *
 * fork(): what was opened before belongs to the parent. In the child every function refuses it with
 * PMNET_E_FORK. The child may open its own.
 *
 * Memory: results are the library's, and valid as long as their comments say; only a
 * struct pmnet_bytes is the caller's, who frees it with pmnet_bytes_free(). Arguments are copied, or
 * not looked at after the call.
 */

#ifndef PMNET_H
#define PMNET_H

#include <stddef.h>
#include <stdint.h>

/**
 * Success.
 */
#define PMNET_OK 0

/**
 * Nothing has come within the time, or a signal came: no error, try again.
 */
#define PMNET_AGAIN 1

/**
 * An argument is NULL or makes no sense.
 */
#define PMNET_E_ARGUMENT -1

/**
 * The object is none: closed, never opened, or of the other kind.
 */
#define PMNET_E_HANDLE -2

/**
 * Another thread is using the object at this moment.
 */
#define PMNET_E_THREAD -3

/**
 * The object was opened before a fork, in another process.
 */
#define PMNET_E_FORK -4

/**
 * The system refused: a socket, memory, a thread.
 */
#define PMNET_E_SYSTEM -5

/**
 * Too many calls are under way: take the results of some first.
 */
#define PMNET_E_FULL -6

/**
 * A payload or a reply is longer than 16 MiB, or all rows are longer than fits one blob.
 */
#define PMNET_E_LENGTH -7

/**
 * The session is closed: the device does not know it any more. Open another one.
 */
#define PMNET_E_CLOSED -8

/**
 * Updates that were acknowledged are lost. The text says which.
 */
#define PMNET_E_DATA_LOSS -9

/**
 * Fewer devices hold the updates than were asked for.
 */
#define PMNET_E_COPIES -10

/**
 * The call has no effect, and never will.
 */
#define PMNET_E_FAILED -11

/**
 * The outcome is unknown: the call takes effect at most once, or not at all.
 */
#define PMNET_E_UNKNOWN -12

/**
 * The server refused the request. The text is the server's.
 */
#define PMNET_E_REFUSED -13

/**
 * A read was asked for while calls of the session were under way.
 */
#define PMNET_E_PENDING -14

/**
 * No device has answered a read in time: ask by a bypass.
 */
#define PMNET_E_NO_ANSWER -15

/**
 * The stored rows are damaged, or do not belong together.
 */
#define PMNET_E_ROWS -16

/**
 * The stored rows are those of another shard.
 */
#define PMNET_E_SHARD -17

/**
 * A batch was confirmed twice, or another one is the present one.
 */
#define PMNET_E_ORDER -18

/**
 * A reply is missing, was given twice, or is for an update, which takes none.
 */
#define PMNET_E_REPLY -19

/**
 * The server has ended. The text says why, and what to do.
 */
#define PMNET_E_STOPPED -20

/**
 * A fault of the library. Please report it.
 */
#define PMNET_E_BUG -21

/**
 * A bypass only reads: the server may run it at any time, and more than once.
 */
#define PMNET_READ_ONLY 1

/**
 * A read was answered with the newest update of the key.
 */
#define PMNET_HIT 1

/**
 * A read was answered with the order that a server must have applied to know the key.
 */
#define PMNET_MISS 2

/**
 * An update: its client knows that it is durable, and waits for no reply.
 */
#define PMNET_UPDATE 1

/**
 * A bypass that may change the program's data. It wants a reply, which is stored with the rows.
 */
#define PMNET_BYPASS 2

/**
 * A bypass that must not change anything. It wants a reply.
 */
#define PMNET_READ 3

/**
 * Bytes that the caller owns. {NULL, 0} has none.
 */
struct pmnet_bytes {
        /**
         * The bytes; NULL if there are none.
         */
        uint8_t *data;
        /**
         * How many.
         */
        size_t len;
};

/**
 * How a client is opened. Begin with all zeros; a field that is 0 or NULL has its default.
 */
struct pmnet_client_options {
        /**
         * sizeof(struct pmnet_client_options).
         */
        uint32_t size;
        /**
         * Number of the shard.
         */
        uint32_t shard;
        /**
         * The devices of the chain, "HOST:PORT" with commas between them, the head first. No default.
         */
        const char *devices;
        /**
         * An acknowledgement by fewer devices than this closes the session with PMNET_E_COPIES. Default: 1.
         */
        uint32_t copies_min;
        /**
         * Each call ends within this many milliseconds. Default: 10,000.
         */
        uint32_t timeout_ms;
        /**
         * Calls that may be under way at once. Default: 4,096.
         */
        uint32_t calls_max;
        /**
         * 0.
         */
        uint32_t reserved;
        /**
         * File of the program's key (pmnet key front). Default: none; the devices must have none either then.
         */
        const char *key_file;
};

/**
 * A client: one session of a shard. {0} is none.
 */
struct pmnet_client {
        /**
         * Its number.
         */
        uint64_t id;
};

/**
 * A call that was started and has ended.
 */
struct pmnet_event {
        /**
         * The caller's name of it.
         */
        uint64_t token;
        /**
         * Of an update: how many devices hold it (0: the server itself). Of a bypass: 0. Or a code PMNET_E_.
         */
        int result;
        /**
         * 0.
         */
        uint32_t reserved;
        /**
         * The reply to a bypass; the caller's, to be freed with pmnet_bytes_free().
         */
        struct pmnet_bytes reply;
};

/**
 * The answer to a read.
 */
struct pmnet_reading {
        /**
         * PMNET_HIT or PMNET_MISS.
         */
        uint32_t kind;
        /**
         * The epoch of the chain.
         */
        uint32_t epoch;
        /**
         * Of a hit the update's order, of a miss the order that a server must have applied.
         */
        uint64_t order;
        /**
         * Of a hit the update's payload; the caller's, to be freed with pmnet_bytes_free().
         */
        struct pmnet_bytes payload;
};

/**
 * A row that the program stores for the library: a key of at most 32 bytes, and a value.
 */
struct pmnet_row {
        /**
         * The key, of any bytes.
         */
        const void *key;
        /**
         * Its length in bytes.
         */
        size_t key_len;
        /**
         * The value; NULL: the row is to be deleted.
         */
        const void *value;
        /**
         * Its length in bytes.
         */
        size_t value_len;
};

/**
 * How a server is opened. Begin with all zeros; a field that is 0 or NULL has its default.
 */
struct pmnet_server_options {
        /**
         * sizeof(struct pmnet_server_options).
         */
        uint32_t size;
        /**
         * Number of the shard.
         */
        uint32_t shard;
        /**
         * "HOST:PORT", UDP: where the last device of the chain sends to. No default.
         */
        const char *listen;
        /**
         * Entries of the log in one batch, at most. Default: 1,024.
         */
        uint32_t batch_entries_max;
        /**
         * Bytes of payloads in one batch, at most; a batch of one entry may have more. Default: 4 MiB.
         */
        uint32_t batch_bytes_max;
        /**
         * All rows that the program has stored; NULL if it has never stored one, or hands over a watermark.
         */
        const struct pmnet_row *rows;
        /**
         * How many.
         */
        size_t rows_count;
        /**
         * The result of pmnet_server_watermark() for the last batch that was stored; NULL, or zeros, if there was none. NULL if the program
         * hands over rows.
         */
        const void *watermark;
        /**
         * Its length in bytes, or more: the rest does not count.
         */
        size_t watermark_len;
        /**
         * File of the cluster's key (pmnet key new). Default: none; the devices must have none either then.
         */
        const char *key_file;
};

/**
 * A server. {0} is none.
 */
struct pmnet_server {
        /**
         * Its number.
         */
        uint64_t id;
};

/**
 * One update or bypass.
 */
struct pmnet_item {
        /**
         * PMNET_UPDATE, PMNET_BYPASS or PMNET_READ.
         */
        uint32_t kind;
        /**
         * 0.
         */
        uint32_t reserved;
        /**
         * The client's session.
         */
        uint64_t session;
        /**
         * Of an update its number in the session, of a bypass the request's id. Each rises within a session.
         */
        uint64_t number;
        /**
         * The place in the log. Of a bypass, and of an update that found the log full: how far the log was applied before it.
         */
        uint64_t order;
        /**
         * The client's bytes; the library's, and valid until the batch is confirmed or given back.
         */
        const void *payload;
        /**
         * How many.
         */
        size_t len;
};

/**
 * The program's next work, in one transaction: either updates or bypasses, in the order in which they take effect.
 */
struct pmnet_batch {
        /**
         * Its number, for pmnet_server_done().
         */
        uint64_t number;
        /**
         * The items; the library's, and valid until the batch is confirmed or given back.
         */
        const struct pmnet_item *items;
        /**
         * How many. There may be none: then there are only rows to store.
         */
        size_t count;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns a sentence for a code. The text is constant, and not to be freed.
 */
const char *pmnet_error_text(int code);

/**
 * Returns a sentence about the last failure of a function in this thread; an empty one if there was none. The text is the
 * library's, and valid until the next failure in this thread.
 */
const char *pmnet_last_error(void);

/**
 * Returns the version of the library, as in "0.1.0". The text is constant, and not to be freed.
 */
const char *pmnet_version(void);

/**
 * Frees bytes that a function of pmnet has filled in, and empties the struct: freeing it again does nothing.
 * NULL is allowed.
 */
void pmnet_bytes_free(struct pmnet_bytes *bytes);

/**
 * Says where the library's warnings go: the descriptor of a file, 2 (stderr) if this function is not called, or -1 for nowhere. Each is one line.
 * The library does not close the descriptor. May be called at any time, by any thread.
 */
void pmnet_log_to(int fd);

/**
 * Opens a client, without waiting for a device: the first call shows whether one is there.
 *
 * Fills in *client, which is to be closed with pmnet_client_close(). The options, and what they point at, are copied.
 */
int pmnet_client_open(const struct pmnet_client_options *options,
                      struct pmnet_client *client);

/**
 * Ends the session after everything that was started, and closes the client: it is none any more, also if this fails.
 *
 * Waits for the device until the time for one call has passed; the results of calls that are under way are lost. PMNET_E_DATA_LOSS or
 * PMNET_E_COPIES: the session has ended with that.
 */
int pmnet_client_close(struct pmnet_client client);

/**
 * Returns the hash of a key, for the functions that want one.
 *
 * NULL with len 0 is the empty key; NULL with another len has no hash, and 0 is returned.
 */
uint64_t pmnet_key_hash(const void *key, size_t len);

/**
 * Sends an update, and waits until it is durable in the devices: from then on it is neither lost nor applied twice.
 *
 * Returns how many devices hold it; 0: the server has applied it, because the log was full. key_hash is the hash of the key that it
 * changes, 0 if it changes several. The payload is copied: up to 16 MiB, of any kind.
 */
int pmnet_update(struct pmnet_client client,
                 uint64_t key_hash,
                 const void *payload,
                 size_t len);

/**
 * Starts an update, as pmnet_update() does, and does not wait. It ends as an event with this token. It is sent by the next call of
 * pmnet_client_next(), together with all else that was started.
 */
int pmnet_update_start(struct pmnet_client client,
                       uint64_t token,
                       uint64_t key_hash,
                       const void *payload,
                       size_t len);

/**
 * Sends a request to the server, and waits for its reply. The server runs it after every update that was acknowledged before, of
 * whatever client; once, unless flags has PMNET_READ_ONLY.
 *
 * Fills in *reply, which is the caller's, to be freed with pmnet_bytes_free(). The payload is copied.
 */
int pmnet_bypass(struct pmnet_client client,
                 uint64_t key_hash,
                 uint32_t flags,
                 const void *payload,
                 size_t len,
                 struct pmnet_bytes *reply);

/**
 * Starts a request, as pmnet_bypass() does, and does not wait. It ends as an event with this token and the reply.
 */
int pmnet_bypass_start(struct pmnet_client client,
                       uint64_t token,
                       uint64_t key_hash,
                       uint32_t flags,
                       const void *payload,
                       size_t len);

/**
 * Returns a descriptor for poll(): it is readable while pmnet_client_next() has something to do, for example to send what was
 * started. It is the library's, stays the same, and is closed with the client. When it is readable, call pmnet_client_next()
 * until that returns PMNET_AGAIN.
 */
int pmnet_client_fd(struct pmnet_client client);

/**
 * Sends what was started, and returns the next call that has ended; waits up to wait_ms milliseconds for it, for ever if that is
 * negative.
 *
 * Returns PMNET_OK and fills in *event, whose reply is the caller's; or PMNET_AGAIN: none has ended within the time, or a signal came. An
 * error is one of the session; each call that was started has had its event before.
 */
int pmnet_client_next(struct pmnet_client client,
                      int wait_ms,
                      struct pmnet_event *event);

/**
 * Asks the device, without the server: for the newest update of the key with this hash (PMNET_HIT), or for the order that a server
 * must have applied to know the key (PMNET_MISS; it is always a possible answer). Other keys may have the same hash: compare.
 *
 * Only while no call of this client is under way. Fills in *reading, whose payload is the caller's, to be freed with
 * pmnet_bytes_free().
 */
int pmnet_read(struct pmnet_client client,
               uint64_t key_hash,
               struct pmnet_reading *reading);

/**
 * Opens a server, with what the program has stored of it. A thread of the library begins, which gets no signals.
 *
 * Refuses rows that are damaged, incomplete or another shard's: then nothing was begun. Fills in *server, which is to be closed with
 * pmnet_server_close(). The options, and what they point at, are copied.
 */
int pmnet_server_open(const struct pmnet_server_options *options,
                      struct pmnet_server *server);

/**
 * Closes the server. A batch that is not confirmed comes again after the next start, unless the program has stored it with its rows.
 */
int pmnet_server_close(struct pmnet_server server);

/**
 * Returns the UDP port at which the server listens, for one that was opened with port 0.
 */
int pmnet_server_port(struct pmnet_server server);

/**
 * Returns a descriptor for poll(): it is readable while pmnet_server_next() has something to return. It is the library's, and is
 * closed with the server.
 */
int pmnet_server_fd(struct pmnet_server server);

/**
 * Takes the next batch; waits up to wait_ms milliseconds for it, for ever if that is negative.
 *
 * Returns PMNET_OK and fills in *batch, whose items are the library's until the batch is confirmed; or PMNET_AGAIN: none has come within
 * the time, or a signal came. While a batch is not confirmed there is no next one: PMNET_E_ORDER.
 */
int pmnet_server_next(struct pmnet_server server,
                      int wait_ms,
                      struct pmnet_batch *batch);

/**
 * Gives the reply to a bypass of the present batch: item is its place in the batch, from 0. The reply is copied: up to 16 MiB, of any
 * kind. Every bypass wants one, before the rows are asked for; an update wants none.
 */
int pmnet_server_reply(struct pmnet_server server,
                       size_t item,
                       const void *reply,
                       size_t len);

/**
 * Fills in the rows that the program is to store in the same transaction as the batch: put each under its key, in place of what is
 * there, or delete it if its value is NULL. A key occurs once. There are none if the batch only reads.
 *
 * The rows, and what they point at, are the library's, and valid until the batch is confirmed or given back.
 */
int pmnet_server_rows(struct pmnet_server server,
                      const struct pmnet_row **rows,
                      size_t *count);

/**
 * Fills in all rows in one piece, as they are with the present batch, for a program that stores one value only, in place of the
 * one before, in the same transaction as the batch. That takes time and room for all sessions at each batch: some 100 bytes for each
 * session, and its last reply. 64 MiB at most; beyond it PMNET_E_LENGTH: store rows.
 *
 * The bytes are the library's, and valid until the batch is confirmed or given back.
 */
int pmnet_server_watermark(struct pmnet_server server,
                           const void **watermark,
                           size_t *len);

/**
 * Confirms the present batch: it is durable at the program's, together with its rows or its watermark. Devices may forget it, and
 * clients get their replies.
 *
 * Refuses, with PMNET_E_ORDER, a batch that was confirmed before, that is not the present one, or whose rows were not asked for; with
 * PMNET_E_REPLY one with a bypass that has no reply.
 */
int pmnet_server_done(struct pmnet_server server,
                      uint64_t batch);

/**
 * Gives the present batch back: the program has done nothing of it, and will not. It comes again after a pause, perhaps with more. A
 * program that does not know whether its transaction took place must not call this: it closes the server, and opens it with
 * what it finds stored.
 */
int pmnet_server_undone(struct pmnet_server server,
                        uint64_t batch);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PMNET_H */

/* Written by cbindgen from crates/capi/src. */

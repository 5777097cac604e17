/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libpmnet: writes that are durable in the network, and the server that they go to.
 * The page docs/use/programs.md explains it; pmnet(3) lists the functions.
 *
 * Every function that can fail returns an int: 0 or more is success, a negative value is one of the
 * PMNET_E_ codes. pmnet_error_text() returns a text for each code, and pmnet_last_error() a text about
 * the last failure in this thread.
 *
 * Threads: one thread at a time may use a client or a server; a second thread gets PMNET_E_THREAD.
 * Different objects may be used at once. No function calls back into the program.
 *
 * fork(): objects that were opened before belong to the parent process. In the child every function
 * refuses them with PMNET_E_FORK. The child may open objects of its own.
 *
 * Memory: results belong to the library, and are valid as long as their comments say. Only a
 * struct pmnet_bytes belongs to the caller, who frees it with pmnet_bytes_free(). Arguments are copied,
 * or not read after the call.
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
 * Nothing has come within the time, or a signal came. This is no error: try again.
 */
#define PMNET_AGAIN 1

/**
 * An argument is NULL or invalid.
 */
#define PMNET_E_ARGUMENT -1

/**
 * The handle is invalid: its object is closed, was never opened, or is of the other kind.
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
 * The operating system refused a socket, memory or a thread.
 */
#define PMNET_E_SYSTEM -5

/**
 * Too many calls are under way: first take the results of some.
 */
#define PMNET_E_FULL -6

/**
 * A payload or a reply is longer than 16 MiB, or all rows together do not fit into one blob.
 */
#define PMNET_E_LENGTH -7

/**
 * The session is closed: the device no longer knows it. Open another one.
 */
#define PMNET_E_CLOSED -8

/**
 * Acknowledged updates are lost. The text says which.
 */
#define PMNET_E_DATA_LOSS -9

/**
 * Fewer devices hold the updates than required.
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
 * The server refused the request, or takes no payloads of programs. The text says why.
 */
#define PMNET_E_REFUSED -13

/**
 * A read was requested while calls of the session were under way.
 */
#define PMNET_E_PENDING -14

/**
 * No device answered a read in time: ask the server by a bypass.
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
 * A batch was confirmed twice, or is not the present one.
 */
#define PMNET_E_ORDER -18

/**
 * A reply is missing, was given twice, or is for an update, which gets none.
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
 * A bypass only reads: the server may execute it at any time, and more than once.
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
 * An update. Its client knows that it is durable, and gets no reply.
 */
#define PMNET_UPDATE 1

/**
 * A bypass that may change the program's data. It gets a reply, which is stored with the rows.
 */
#define PMNET_BYPASS 2

/**
 * A bypass that must not change anything. It gets a reply.
 */
#define PMNET_READ 3

/**
 * Bytes that the caller owns. {NULL, 0} has no bytes.
 */
struct pmnet_bytes {
        /**
         * The bytes; NULL if there are none.
         */
        uint8_t *data;
        /**
         * Number of the bytes.
         */
        size_t len;
};

/**
 * Options of a client. Begin with all zeros; a field that is 0 or NULL has its default.
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
         * Addresses of the chain's devices, "HOST:PORT" with commas between them, the head first. No default.
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
         * Most calls that may be under way at once. Default: 4,096.
         */
        uint32_t calls_max;
        /**
         * Must be 0.
         */
        uint32_t reserved;
        /**
         * File of the program's key (pmnet key front). Default: no key, and then the devices must have none
         * either.
         */
        const char *key_file;
};

/**
 * A client: one session of a shard. The handle {0} is invalid.
 */
struct pmnet_client {
        /**
         * Number of the client's object.
         */
        uint64_t id;
};

/**
 * A call that was started and has ended.
 */
struct pmnet_event {
        /**
         * The caller's name for the call.
         */
        uint64_t token;
        /**
         * For an update: how many devices hold it (0: the server has applied it). For a bypass: 0. On failure: a
         * code PMNET_E_.
         */
        int result;
        /**
         * Always 0.
         */
        uint32_t reserved;
        /**
         * The reply to a bypass. The caller owns it and frees it with pmnet_bytes_free().
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
         * For a hit: the update's order. For a miss: the order that a server must have applied.
         */
        uint64_t order;
        /**
         * For a hit: the update's payload. The caller owns it and frees it with pmnet_bytes_free().
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
         * Length of the key in bytes.
         */
        size_t key_len;
        /**
         * The value; NULL: the row must be deleted.
         */
        const void *value;
        /**
         * Length of the value in bytes.
         */
        size_t value_len;
};

/**
 * Options of a server. Begin with all zeros; a field that is 0 or NULL has its default.
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
         * UDP address "HOST:PORT" to which the last device of the chain sends. No default.
         */
        const char *listen;
        /**
         * Most entries of the log in one batch. Default: 1,024.
         */
        uint32_t batch_entries_max;
        /**
         * Most bytes of payloads in one batch. A batch of one entry may have more. Default: 4 MiB.
         */
        uint32_t batch_bytes_max;
        /**
         * All rows that the program has stored. NULL if it has never stored one, or if it passes a watermark.
         */
        const struct pmnet_row *rows;
        /**
         * Number of the rows.
         */
        size_t rows_count;
        /**
         * The result of pmnet_server_watermark() for the last batch that was stored. NULL, or zeros, if there
         * was no batch. NULL if the program passes rows.
         */
        const void *watermark;
        /**
         * Length of the watermark in bytes. It may be longer: the bytes after the watermark are ignored.
         */
        size_t watermark_len;
        /**
         * File of the cluster's key (pmnet key new). Default: no key, and then the devices must have none
         * either.
         */
        const char *key_file;
};

/**
 * A server. The handle {0} is invalid.
 */
struct pmnet_server {
        /**
         * Number of the server's object.
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
         * Always 0.
         */
        uint32_t reserved;
        /**
         * Number of the client's session.
         */
        uint64_t session;
        /**
         * For an update: its number in the session. For a bypass: the request's id. Both rise within a session.
         */
        uint64_t number;
        /**
         * For an update: its order in the log. For a bypass, and for an update that found the log full: the
         * order up to which the log was applied before.
         */
        uint64_t order;
        /**
         * The client's bytes. They belong to the library, and are valid until the batch is confirmed or given
         * back.
         */
        const void *payload;
        /**
         * Length of the payload in bytes.
         */
        size_t len;
};

/**
 * The program's next work, in one transaction: either updates or bypasses, in the order in which they take
 * effect.
 */
struct pmnet_batch {
        /**
         * Number of the batch, for pmnet_server_done().
         */
        uint64_t number;
        /**
         * The items. They belong to the library, and are valid until the batch is confirmed or given back.
         */
        const struct pmnet_item *items;
        /**
         * Number of the items. With none, the program only stores rows.
         */
        size_t count;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns a text for a code. The text is constant, and must not be freed.
 */
const char *pmnet_error_text(int code);

/**
 * Returns a text about the last failure of a function in this thread; an empty one if there was none. The
 * text belongs to the library, and is valid until the next failure in this thread.
 */
const char *pmnet_last_error(void);

/**
 * Returns the version of the library, as in "0.1.0". The text is constant, and must not be freed.
 */
const char *pmnet_version(void);

/**
 * Frees bytes that a function of pmnet has filled in, and empties the struct, so a second call has no
 * effect. NULL is allowed.
 */
void pmnet_bytes_free(struct pmnet_bytes *bytes);

/**
 * Sets the file descriptor to which the library writes its warnings, one in each line. Without this call it
 * is 2 (stderr); -1: warnings are dropped. The library does not close the descriptor. May be called at any
 * time, by any thread.
 */
void pmnet_log_to(int fd);

/**
 * Opens a client, without waiting for a device: the first call shows whether one can be reached.
 *
 * Fills in *client, which must be closed with pmnet_client_close(). The options, and the texts to which they
 * point, are copied.
 */
int pmnet_client_open(const struct pmnet_client_options *options,
                      struct pmnet_client *client);

/**
 * Ends the session after all calls that were started, and closes the client. The handle is invalid
 * afterwards, even if this fails.
 *
 * Waits for the device at most for the time of one call. The results of calls that are under way are lost.
 * PMNET_E_DATA_LOSS or PMNET_E_COPIES: the session has ended with that error.
 */
int pmnet_client_close(struct pmnet_client client);

/**
 * Returns the hash of a key, for functions with an argument key_hash.
 *
 * NULL with len 0 is the empty key. NULL with another len has no hash, and the result is 0.
 */
uint64_t pmnet_key_hash(const void *key, size_t len);

/**
 * Sends an update, and waits until it is durable in the devices. From then on it is neither lost nor applied
 * twice.
 *
 * Returns how many devices hold the update; 0: the server has applied it, because the log was full. key_hash
 * is the hash of the key that the update changes; 0 if it changes several keys. The payload is copied. It
 * may have up to 16 MiB of any bytes.
 */
int pmnet_update(struct pmnet_client client,
                 uint64_t key_hash,
                 const void *payload,
                 size_t len);

/**
 * Starts an update like pmnet_update(), and does not wait. The update ends as an event with this token. The
 * next call of pmnet_client_next() sends it, together with all other calls that were started.
 */
int pmnet_update_start(struct pmnet_client client,
                       uint64_t token,
                       uint64_t key_hash,
                       const void *payload,
                       size_t len);

/**
 * Sends a request to the server, and waits for its reply. The server executes the request after every update
 * of any client that was acknowledged before. It executes the request once, unless flags has
 * PMNET_READ_ONLY.
 *
 * Fills in *reply. The caller owns it and frees it with pmnet_bytes_free(). The payload is copied.
 */
int pmnet_bypass(struct pmnet_client client,
                 uint64_t key_hash,
                 uint32_t flags,
                 const void *payload,
                 size_t len,
                 struct pmnet_bytes *reply);

/**
 * Starts a request like pmnet_bypass(), and does not wait. The request ends as an event with this token and
 * the reply.
 */
int pmnet_bypass_start(struct pmnet_client client,
                       uint64_t token,
                       uint64_t key_hash,
                       uint32_t flags,
                       const void *payload,
                       size_t len);

/**
 * Returns a descriptor for poll(). It is readable while pmnet_client_next() has something to do, for example
 * to send calls that were started. The descriptor belongs to the library, stays the same, and is closed with
 * the client. When it is readable, call pmnet_client_next() until that returns PMNET_AGAIN.
 */
int pmnet_client_fd(struct pmnet_client client);

/**
 * Sends all calls that were started, and returns the next call that has ended. Waits for it at most wait_ms
 * milliseconds; if wait_ms is negative, without limit.
 *
 * Returns PMNET_OK and fills in *event, whose reply the caller owns. Returns PMNET_AGAIN if no call has
 * ended within the time, or a signal came. An error is one of the session: each call that was started has
 * had its event before.
 */
int pmnet_client_next(struct pmnet_client client,
                      int wait_ms,
                      struct pmnet_event *event);

/**
 * Asks the device, not the server, for the newest update of the key with this hash (PMNET_HIT), or for the
 * order that a server must have applied to know the key (PMNET_MISS). PMNET_MISS is always a possible
 * answer. Other keys may have the same hash, so the program must compare the key.
 *
 * Allowed only while no call of this client is under way. Fills in *reading. The caller owns its payload and
 * frees it with pmnet_bytes_free().
 */
int pmnet_read(struct pmnet_client client,
               uint64_t key_hash,
               struct pmnet_reading *reading);

/**
 * Opens a server with the rows that the program has stored. Starts a thread of the library, which gets no
 * signals.
 *
 * Refuses rows that are damaged, incomplete or of another shard; then nothing was begun. Fills in *server,
 * which must be closed with pmnet_server_close(). The options, and the data to which they point, are copied.
 */
int pmnet_server_open(const struct pmnet_server_options *options,
                      struct pmnet_server *server);

/**
 * Closes the server. An unconfirmed batch comes again after the next start, unless the program has stored it
 * with its rows.
 */
int pmnet_server_close(struct pmnet_server server);

/**
 * Returns the UDP port at which the server listens. Useful if it was opened with port 0.
 */
int pmnet_server_port(struct pmnet_server server);

/**
 * Returns a descriptor for poll(). It is readable while pmnet_server_next() has something to return. The
 * descriptor belongs to the library, and is closed with the server.
 */
int pmnet_server_fd(struct pmnet_server server);

/**
 * Takes the next batch. Waits for it at most wait_ms milliseconds; if wait_ms is negative, without limit.
 *
 * Returns PMNET_OK and fills in *batch. Its items belong to the library until the batch is confirmed.
 * Returns PMNET_AGAIN if no batch has come within the time, or a signal came. While a batch is not confirmed
 * there is no next one: PMNET_E_ORDER.
 */
int pmnet_server_next(struct pmnet_server server,
                      int wait_ms,
                      struct pmnet_batch *batch);

/**
 * Gives the reply to a bypass of the present batch. item is the bypass's index in the batch, from 0. The
 * reply is copied. It may have up to 16 MiB of any bytes. Every bypass needs a reply before the rows are
 * requested; an update gets none.
 */
int pmnet_server_reply(struct pmnet_server server,
                       size_t item,
                       const void *reply,
                       size_t len);

/**
 * Fills in the rows that the program must store in the same transaction as the batch. A row with a value
 * replaces the row with the same key. A row whose value is NULL must be deleted. Each key occurs once. If
 * the batch only reads there are no rows.
 *
 * The rows, and the bytes to which they point, belong to the library, and are valid until the batch is
 * confirmed or given back.
 */
int pmnet_server_rows(struct pmnet_server server,
                      const struct pmnet_row **rows,
                      size_t *count);

/**
 * Fills in all rows in one piece (the watermark), as they are after the present batch. It is for a program
 * that stores a single value, which replaces the previous one in the same transaction as the batch. Each
 * batch then takes time and space for all sessions: about 100 bytes for each session, and its last reply.
 * The maximum is 64 MiB; above that the result is PMNET_E_LENGTH, and the program must store rows.
 *
 * The bytes belong to the library, and are valid until the batch is confirmed or given back.
 */
int pmnet_server_watermark(struct pmnet_server server,
                           const void **watermark,
                           size_t *len);

/**
 * Confirms the present batch: the program has stored it durably, together with its rows or its watermark.
 * Devices may forget it, and clients get their replies.
 *
 * Fails with PMNET_E_ORDER if the batch was confirmed before, is not the present one, or its rows were not
 * requested. Fails with PMNET_E_REPLY if a bypass has no reply.
 */
int pmnet_server_done(struct pmnet_server server,
                      uint64_t batch);

/**
 * Gives the present batch back: the program has executed no part of it, and will not. The batch comes again
 * after a pause, perhaps with more items. A program that does not know whether its transaction took place
 * must not call this. It must close the server, and open it with the rows that it finds stored.
 */
int pmnet_server_undone(struct pmnet_server server,
                        uint64_t batch);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PMNET_H */

/* Written by cbindgen from crates/capi/src. */

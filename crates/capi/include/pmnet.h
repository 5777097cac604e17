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
 * No result is available yet: the time has passed, or a signal arrived. This is not an error; call again.
 */
#define PMNET_AGAIN 1

/**
 * An argument is NULL or invalid.
 */
#define PMNET_E_ARGUMENT -1

/**
 * The handle is invalid: its object was closed, was never opened, or is of the other kind.
 */
#define PMNET_E_HANDLE -2

/**
 * Another thread is using the object at this moment.
 */
#define PMNET_E_THREAD -3

/**
 * The object was opened in another process, before a fork.
 */
#define PMNET_E_FORK -4

/**
 * The operating system refused a socket, memory or a thread.
 */
#define PMNET_E_SYSTEM -5

/**
 * Too many calls are in flight: take the results of some first.
 */
#define PMNET_E_FULL -6

/**
 * A payload or a reply is longer than 16 MiB, or all rows together are too long for one blob.
 */
#define PMNET_E_LENGTH -7

/**
 * The session is closed, because the device no longer knows it. Open another client.
 */
#define PMNET_E_CLOSED -8

/**
 * Acknowledged updates are lost. The error text says which.
 */
#define PMNET_E_DATA_LOSS -9

/**
 * Fewer devices hold the updates than copies_min requires.
 */
#define PMNET_E_COPIES -10

/**
 * The call has no effect, and will never have one.
 */
#define PMNET_E_FAILED -11

/**
 * The outcome is unknown: the call takes effect once or not at all.
 */
#define PMNET_E_UNKNOWN -12

/**
 * The server refused the request, or does not accept payloads of programs. The error text has the reason.
 */
#define PMNET_E_REFUSED -13

/**
 * A read was requested while other calls of the session were in flight.
 */
#define PMNET_E_PENDING -14

/**
 * No device answered a read in time. Ask the server with a bypass.
 */
#define PMNET_E_NO_ANSWER -15

/**
 * The stored rows are damaged, or come from different moments.
 */
#define PMNET_E_ROWS -16

/**
 * The stored rows belong to another shard.
 */
#define PMNET_E_SHARD -17

/**
 * The batch was confirmed before, or is not the present batch.
 */
#define PMNET_E_ORDER -18

/**
 * A reply is missing, was given twice, or was given for an update.
 */
#define PMNET_E_REPLY -19

/**
 * The server has ended. The error text has the reason and advice.
 */
#define PMNET_E_STOPPED -20

/**
 * The library has a bug. Please report it.
 */
#define PMNET_E_BUG -21

/**
 * Flag of a bypass that only reads: the server may execute it at any time, and more than once.
 */
#define PMNET_READ_ONLY 1

/**
 * The read was answered with the newest update of the key.
 */
#define PMNET_HIT 1

/**
 * The read was answered with the order up to which a server must have applied the log to know the key.
 */
#define PMNET_MISS 2

/**
 * An update. The client that sent the update already knows that the update is durable, and gets no reply.
 */
#define PMNET_UPDATE 1

/**
 * A bypass that may change the program's data. The client that sent the bypass gets a reply, which is stored with the
 * rows.
 */
#define PMNET_BYPASS 2

/**
 * A bypass that must not change anything. The client that sent the bypass gets a reply.
 */
#define PMNET_READ 3

/**
 * Bytes that the caller owns. {NULL, 0} means no bytes.
 */
struct pmnet_bytes {
        /**
         * The bytes; NULL if there are none.
         */
        uint8_t *data;
        /**
         * Number of bytes.
         */
        size_t len;
};

/**
 * Options of a client. Set all bytes to zero first; a field that is 0 or NULL has its default.
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
         * Addresses of the chain's devices, head first: "HOST:PORT", with commas between them. No default.
         */
        const char *devices;
        /**
         * Minimum number of devices that must hold an update. If an acknowledgement states fewer devices, the session is
         * closed with PMNET_E_COPIES. Default: 1.
         */
        uint32_t copies_min;
        /**
         * Time limit of each call, in milliseconds. Default: 10,000.
         */
        uint32_t timeout_ms;
        /**
         * Maximum number of calls in flight. Default: 4,096.
         */
        uint32_t calls_max;
        /**
         * Must be 0.
         */
        uint32_t reserved;
        /**
         * Path of the program's key file (pmnet key front). Default: no key; then the devices must have no keys either.
         */
        const char *key_file;
};

/**
 * A client, which is one session of a shard. The handle {0} is invalid.
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
         * The token by which the caller knows the call.
         */
        uint64_t token;
        /**
         * For an update: the number of devices that hold it; 0: the log was full, and the server has applied the update.
         * For a bypass: 0. For a failed call: a code PMNET_E_.
         */
        int result;
        /**
         * Always 0.
         */
        uint32_t reserved;
        /**
         * The reply to a bypass. The caller owns the reply, and must free it with pmnet_bytes_free().
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
         * The epoch of the device's chain.
         */
        uint32_t epoch;
        /**
         * For PMNET_HIT: the order of the update. For PMNET_MISS: the order up to which a server must have applied the
         * log.
         */
        uint64_t order;
        /**
         * For PMNET_HIT: the payload of the update. The caller owns the payload, and must free it with pmnet_bytes_free().
         */
        struct pmnet_bytes payload;
};

/**
 * A row that the program stores for the library. The row has a key of at most 32 bytes, and a value.
 */
struct pmnet_row {
        /**
         * The key. The key may contain any bytes.
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
 * Options of a server. Set all bytes to zero first; a field that is 0 or NULL has its default.
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
         * UDP address "HOST:PORT" of the server. The last device of the chain sends to this address. No default.
         */
        const char *listen;
        /**
         * Maximum number of log entries in one batch. Default: 1,024.
         */
        uint32_t batch_entries_max;
        /**
         * Maximum number of bytes of payloads in one batch. A batch with a single entry may exceed this size. Default: 4
         * MiB.
         */
        uint32_t batch_bytes_max;
        /**
         * All rows that the program has stored. NULL if the program has never stored rows, or passes a watermark.
         */
        const struct pmnet_row *rows;
        /**
         * Number of rows.
         */
        size_t rows_count;
        /**
         * The result of pmnet_server_watermark() for the last stored batch. NULL or zeros if no batch was stored. NULL if
         * the program passes rows.
         */
        const void *watermark;
        /**
         * Length of the memory at watermark in bytes. Bytes after the watermark itself are ignored.
         */
        size_t watermark_len;
        /**
         * Path of the cluster's key file (pmnet key new). Default: no key; then the devices must have no keys either.
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
         * For an update: its number in the session. For a bypass: the request's id. Both numbers rise within a session.
         */
        uint64_t number;
        /**
         * For an update: its order in the log. For a bypass, and for an update for which the log was full: the order up to
         * which the log was applied before it.
         */
        uint64_t order;
        /**
         * The client's bytes. The bytes belong to the library, and are valid until the batch is confirmed or given back.
         */
        const void *payload;
        /**
         * Length of the payload in bytes.
         */
        size_t len;
};

/**
 * The program's next work, which it must store in one transaction. The items are either updates or bypasses, in the
 * order in which they take effect.
 */
struct pmnet_batch {
        /**
         * Number of the batch. pmnet_server_done() needs it.
         */
        uint64_t number;
        /**
         * The items. The items belong to the library, and are valid until the batch is confirmed or given back.
         */
        const struct pmnet_item *items;
        /**
         * Number of items. If the number is 0, the program must only store rows.
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
 * Returns a text about the last failure in this thread; an empty text if there was none. The text belongs to the
 * library, and is valid until the next failure in this thread.
 */
const char *pmnet_last_error(void);

/**
 * Returns the version of the library, as in "0.1.0". The text is constant, and must not be freed.
 */
const char *pmnet_version(void);

/**
 * Frees bytes that a function of the library has filled in, and sets the struct to {NULL, 0}. So a second call has no
 * effect. NULL is allowed.
 */
void pmnet_bytes_free(struct pmnet_bytes *bytes);

/**
 * Sets the file descriptor to which the library writes its warnings, one warning a line. The default is 2 (stderr).
 * With -1, warnings are dropped. The library does not close the descriptor. May be called at any time, by any thread.
 */
void pmnet_log_to(int fd);

/**
 * Opens a client. Does not wait for a device: only the first call shows whether a device can be reached.
 *
 * Fills in *client, which the caller must close with pmnet_client_close(). The options, and the texts to which they
 * point, are copied.
 */
int pmnet_client_open(const struct pmnet_client_options *options,
                      struct pmnet_client *client);

/**
 * Ends the session after all started calls, and closes the client. Afterwards the handle is invalid, even if the
 * function fails.
 *
 * Waits for the devices at most for the time limit of one call. The results of calls in flight are lost.
 * PMNET_E_DATA_LOSS and PMNET_E_COPIES: the session has ended with this error.
 */
int pmnet_client_close(struct pmnet_client client);

/**
 * Returns the hash of a key, for the argument key_hash of other functions.
 *
 * A key of NULL with len 0 is the empty key. If key is NULL and len is not 0, the result is 0.
 */
uint64_t pmnet_key_hash(const void *key, size_t len);

/**
 * Sends an update, and waits until it is durable in the devices. After a success the update is not lost and not
 * applied twice.
 *
 * Returns the number of devices that hold the update; 0: the log was full, and the server has applied the update.
 * key_hash is the hash of the key that the update changes; 0 if it changes several keys. The payload is copied. The
 * payload may have up to 16 MiB of any bytes.
 */
int pmnet_update(struct pmnet_client client,
                 uint64_t key_hash,
                 const void *payload,
                 size_t len);

/**
 * Starts an update, as pmnet_update() does, and does not wait. The next call of pmnet_client_next() sends the update,
 * together with all other started calls. When the update has ended, pmnet_client_next() returns an event with this
 * token.
 */
int pmnet_update_start(struct pmnet_client client,
                       uint64_t token,
                       uint64_t key_hash,
                       const void *payload,
                       size_t len);

/**
 * Sends a request to the server, and waits for its reply. The server first applies every update that was acknowledged
 * before, of any client. The server executes the request once; with PMNET_READ_ONLY in flags, the server may execute
 * the request more than once.
 *
 * Fills in *reply. The caller owns the reply, and must free it with pmnet_bytes_free(). The payload is copied.
 */
int pmnet_bypass(struct pmnet_client client,
                 uint64_t key_hash,
                 uint32_t flags,
                 const void *payload,
                 size_t len,
                 struct pmnet_bytes *reply);

/**
 * Starts a request, as pmnet_bypass() does, and does not wait. When the request has ended, pmnet_client_next() returns
 * an event with this token and the reply.
 */
int pmnet_bypass_start(struct pmnet_client client,
                       uint64_t token,
                       uint64_t key_hash,
                       uint32_t flags,
                       const void *payload,
                       size_t len);

/**
 * Returns a descriptor for poll(). The descriptor is readable while pmnet_client_next() has work, for example started
 * calls to send. When the descriptor is readable, call pmnet_client_next() until this function returns PMNET_AGAIN.
 * The descriptor belongs to the library. The descriptor stays the same, and is closed with the client.
 */
int pmnet_client_fd(struct pmnet_client client);

/**
 * Sends all started calls, and returns the next call that has ended. Waits at most wait_ms milliseconds; if wait_ms is
 * negative, without limit.
 *
 * Returns PMNET_OK and fills in *event, whose reply the caller owns. Returns PMNET_AGAIN if no call has ended within
 * wait_ms, or if a signal arrived. An error means that the session has ended. Before the error, each started call has
 * had its event.
 */
int pmnet_client_next(struct pmnet_client client,
                      int wait_ms,
                      struct pmnet_event *event);

/**
 * Asks the head device, not the server, about the key with this hash. The answer is either the newest update of the
 * key (PMNET_HIT), or the order up to which a server must have applied the log to know the key (PMNET_MISS).
 * PMNET_MISS is always possible. Another key may have the same hash, so the program must compare the key.
 *
 * Allowed only while no call of this client is in flight. Fills in *reading. The caller owns the payload of the
 * reading, and must free it with pmnet_bytes_free().
 */
int pmnet_read(struct pmnet_client client,
               uint64_t key_hash,
               struct pmnet_reading *reading);

/**
 * Opens a server with the rows that the program has stored. Starts a thread of the library, in which all signals are
 * blocked.
 *
 * Refuses rows that are damaged, incomplete or of another shard; in this case nothing has changed. Fills in *server,
 * which the caller must close with pmnet_server_close(). The options, and the data to which they point, are copied.
 */
int pmnet_server_open(const struct pmnet_server_options *options,
                      struct pmnet_server *server);

/**
 * Closes the server. If a batch is not confirmed and its rows are not stored, the next server gets the batch again.
 */
int pmnet_server_close(struct pmnet_server server);

/**
 * Returns the UDP port of the server. If the server was opened with port 0, the system has chosen the port.
 */
int pmnet_server_port(struct pmnet_server server);

/**
 * Returns a descriptor for poll(). The descriptor is readable while pmnet_server_next() has a result. The descriptor
 * belongs to the library, and is closed with the server.
 */
int pmnet_server_fd(struct pmnet_server server);

/**
 * Takes the next batch. Waits at most wait_ms milliseconds; if wait_ms is negative, without limit.
 *
 * Returns PMNET_OK and fills in *batch. The items of the batch belong to the library until the batch is confirmed or
 * given back. Returns PMNET_AGAIN if no batch has arrived within wait_ms, or if a signal arrived. Fails with
 * PMNET_E_ORDER if the batch before is not confirmed yet.
 */
int pmnet_server_next(struct pmnet_server server,
                      int wait_ms,
                      struct pmnet_batch *batch);

/**
 * Sets the reply to a bypass of the present batch. item is the index of the bypass in the batch, counted from 0. The
 * reply is copied. The reply may have up to 16 MiB of any bytes. Set the replies of all bypasses of the batch before you
 * ask for its rows. An update has no reply.
 */
int pmnet_server_reply(struct pmnet_server server,
                       size_t item,
                       const void *reply,
                       size_t len);

/**
 * Fills in the rows that the program must store in the same transaction as the batch. A row with a value replaces the
 * row with this key. If the value of a row is NULL, the row must be deleted. Each key occurs once. If the batch only
 * reads, there are no rows.
 *
 * The rows, and the bytes to which they point, belong to the library. Rows and bytes are valid until the batch is
 * confirmed or given back.
 */
int pmnet_server_rows(struct pmnet_server server,
                      const struct pmnet_row **rows,
                      size_t *count);

/**
 * Fills in all rows, as they are after the present batch, in one blob (the watermark). The watermark is for a program
 * that stores a single value: the new value replaces the old value in the same transaction as the batch. The watermark
 * takes time and space for all sessions at each batch: about 100 bytes for each session, and its last reply. If the
 * watermark is longer than 64 MiB, the result is PMNET_E_LENGTH, and the program must store rows.
 *
 * The bytes belong to the library. The bytes are valid until the batch is confirmed or given back.
 */
int pmnet_server_watermark(struct pmnet_server server,
                           const void **watermark,
                           size_t *len);

/**
 * Confirms the present batch: the program has stored it durably, together with its rows or its watermark. The devices
 * may then drop its entries, and clients get their replies.
 *
 * Fails with PMNET_E_ORDER if the batch was confirmed before, if it is not the present batch, or if its rows were not
 * requested. Fails with PMNET_E_REPLY if a bypass has no reply.
 */
int pmnet_server_done(struct pmnet_server server,
                      uint64_t batch);

/**
 * Gives the present batch back. The program must have executed no part of the batch, and must not execute it later.
 * The batch is offered again after a pause, perhaps with more items. If a program does not know whether its
 * transaction took place, it must not call this function. Instead, the program must close the server, and open it with
 * the rows that it finds stored.
 */
int pmnet_server_undone(struct pmnet_server server,
                        uint64_t batch);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PMNET_H */

/* Written by cbindgen from crates/capi/src. */

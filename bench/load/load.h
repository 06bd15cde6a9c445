/* The load generator: one process, one epoll, NSQ's TCP protocol V2 and HTTP. `python -m bench` starts and reads it.
 *
 *     load WORK name=value ...        works: publish, consume, late, request, churn, bystander
 *
 *     stdout   ready                  connected; everything to be sent is prepared
 *     stdin              go           the clock starts
 *     stdout                  {...}   one line of JSON: what was done, how long it took, the generator's own CPU
 *
 * Some works stay for an event: they say `held` and go on when they read another line. A failure is a line of JSON
 * too, {"error": ...}, and exit code 1.
 *
 *     main        the settings, the conversation with the caller, the result
 *     net         connections and the loop
 *     codec       TLS, deflate and snappy on a connection
 *     body        bodies of mixed sizes, the same ones in every run
 *     publish     PUB, MPUB and DPUB
 *     consume     RDY, FIN, REQ; late FINs
 *     http        requests over connections that are kept alive
 *     churn       connections that come and go
 *     bystander   one PUB after the other, its round trips timed
 */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* settings (main.c) */

const char *text_setting(const char *name, const char *otherwise);
int64_t number_setting(const char *name, int64_t otherwise);
void settings_are_read(void); /* Any that no work asked for is a mistake. */

/* the conversation (main.c) */

_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say(const char *word);
void await_line(void); /* The caller's next line; its absence ends this process. */
bool line_waits(void); /* Whether the caller has said something. */
void get_ready(void);  /* Say `ready`, wait for `go`, start the clock. */
int64_t now_ns(void);
void *grown(void *memory, size_t size);
uint64_t next_random(void); /* One fixed sequence. */

/* What was done. `timed` messages were done from `started_ns` to `timed_until_ns`. */
struct result {
    int64_t published, delivered, finished, requeued, refused, body_bytes;
    int64_t timed, started_ns, timed_until_ns;
};
extern struct result result;

void note_latency(int64_t ns);
size_t noted_latencies(void);
void keep_latencies(size_t first, size_t end); /* Only these count. */

/* connections and the loop (net.c) */

struct bytes {
    char *data;
    size_t start, end, capacity; /* What is to be taken lies from start to end. */
};
void append(struct bytes *bytes, const void *data, size_t size);
char *reserve(struct bytes *bytes, size_t size); /* Room for so many more. */

enum { RESPONSE = 0, ERROR = 1, MESSAGE = 2 };
enum { MOST_PIECES = 64 }; /* Prepared bytes that wait to be written: a window of commands. */

struct codec;
struct conn;

/* What a work does with what arrives. */
struct handler {
    size_t (*digest)(struct conn *conn, char *data, size_t size); /* Returns how much it took. */
    void (*frame)(struct conn *conn, int type, char *data, size_t size);
    void (*packet_end)(struct conn *conn); /* Everything that one read brought was handed over. */
};

struct conn {
    int fd;
    const struct handler *handler;
    struct codec *codec;
    struct bytes in;     /* a part of a frame */
    size_t needed;       /* the whole of that frame, as far as it is known */
    struct bytes plain;  /* bytes of our own that the codec has not seen */
    struct bytes out;    /* bytes of our own, to be written */
    struct iovec pieces[MOST_PIECES]; /* prepared bytes, to be written without being copied */
    int first_piece, piece_count;
    bool waits_to_write;
    void *lane; /* of the work */
};

/* Connects, sends the magic and IDENTIFY with `more` (JSON members, each ended by a comma), and upgrades as the
 * settings tls, deflate and snappy say. Blocking until `join_loop`. */
struct conn *identified(int index, const char *more);
struct conn *connected(int index);
void subscribe(struct conn *conn, const char *topic, const char *channel);
void close_conn(struct conn *conn);
size_t await_frame(struct conn *conn, int *type, char *data, size_t capacity); /* Blocking. */

void join_loop(struct conn *conn, const struct handler *handler);
void leave_loop(struct conn *conn);
void loop_until(bool (*done)(void)); /* Fails when nothing happens for too long. */
void loop_once(int timeout_ms);
void send_bytes(struct conn *conn, const void *data, size_t size); /* Copied; leaves with `flush`. */
void send_prepared(struct conn *conn, const struct iovec *pieces, int count); /* As they are, whatever the codec. */
void flush(struct conn *conn);
size_t frames(struct conn *conn, char *data, size_t size); /* A digest that hands over frames. */
bool is_heartbeat(int type, const char *data, size_t size);
_Noreturn void unexpected(int type, const char *data, size_t size);
uint32_t be32(const char *data);
void put_be32(char *data, uint32_t value);

/* codecs (codec.c) */

/* tls, deflate or snappy, on top of `below`; blocking where it has a handshake of its own. */
struct codec *new_codec(const char *name, struct codec *below, int fd);
void encode(struct codec *codec, const char *data, size_t size, struct bytes *out);
void decode(struct codec *codec, const char *data, size_t size, struct bytes *out);
void decode_top(struct codec *codec, const char *data, size_t size, struct bytes *out); /* What the codec below gave. */
void free_codec(struct codec *codec);
/* Compressed so that it can be sent at any time, and again: it refers to nothing that was sent before. */
void compress_alone(const char *name, const char *data, size_t size, struct bytes *out);

/* bodies (body.c) */

struct payload {
    char *data; /* the sizes and the bodies, as they stand behind the command's line */
    size_t size;
    int messages;
    int64_t body_bytes;
};
/* As the settings min, max and content say. */
struct payload *prepared_payloads(int messages_each, bool counted, int *count);
size_t fill_body(char *data); /* Returns its size. */
size_t largest_body(void);

/* works */

void publish(void);
void consume(void);
void late(void);
void request(void);
void churn(void);
void bystander(void);

#endif

/* PUB, MPUB and DPUB.
 *
 *     topic, topics        one topic, or topic_0 to topic_N-1 by turns
 *     messages, batch      how many in all, and in each MPUB; batch=0 is a PUB
 *     connections, window  commands of a connection that may be unanswered; 1: the next only after the answer
 *     defer_ms             DPUB so much later
 *     due_in_ms            DPUB of everything to one moment, so long after the start
 *     rate                 commands a second on one connection, not waiting; a PUB has its time of sending in its body
 */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_TOPICS = 1024, MOST_WINDOW = 32 };

struct lane {
    int64_t sent_ns[MOST_WINDOW]; /* of the unanswered commands, a ring */
    int first, unanswered;
};

static struct payload *payloads;
static int payload_count, window;
static struct iovec heads[MOST_TOPICS];
static int topic_count;
static int64_t commands, sent, answered, defer_ms, due_ns;
static char verb[8];
static bool is_compressed; /* the payloads, with their heads */
static const char *base_topic;

static void send_deferred(struct conn *conn, const struct payload *payload) {
    int64_t left_ms = due_ns ? (due_ns - now_ns()) / 1000000 : defer_ms;
    if (left_ms <= 0) fail("the messages were due before all of them were published");
    char head[256];
    int size = snprintf(head, sizeof head, "DPUB %s %lld\n", base_topic, (long long)left_ms);
    send_bytes(conn, head, (size_t)size);
    send_bytes(conn, payload->data, payload->size);
}

static void send_command(struct conn *conn) {
    struct lane *lane = conn->lane;
    const struct payload *payload = &payloads[sent % payload_count];
    lane->sent_ns[(lane->first + lane->unanswered++) % MOST_WINDOW] = now_ns();
    if (defer_ms || due_ns) {
        send_deferred(conn, payload);
    } else if (conn->codec && !is_compressed) {
        send_bytes(conn, heads[sent % topic_count].iov_base, heads[sent % topic_count].iov_len);
        send_bytes(conn, payload->data, payload->size);
    } else {
        struct iovec pieces[] = {heads[sent % topic_count], {payload->data, payload->size}};
        send_prepared(conn, pieces, 2);
    }
    sent++;
    result.published += payload->messages;
    result.body_bytes += payload->body_bytes;
}

static void go_on(struct conn *conn) {
    struct lane *lane = conn->lane;
    while (lane->unanswered < window && sent < commands) send_command(conn);
    flush(conn);
}

/* False for a heartbeat: a connection that keeps publishing need not answer it. */
static bool is_ok(int type, const char *data, size_t size) {
    if (is_heartbeat(type, data, size)) return false;
    if (type != RESPONSE || size != 2 || memcmp(data, "OK", 2) != 0) unexpected(type, data, size);
    return true;
}

static void take_frame(struct conn *conn, int type, char *data, size_t size) {
    struct lane *lane = conn->lane;
    if (!is_ok(type, data, size)) return;
    if (lane->unanswered == 0) unexpected(type, data, size);
    note_latency(now_ns() - lane->sent_ns[lane->first]);
    lane->first = (lane->first + 1) % MOST_WINDOW;
    lane->unanswered--;
    answered++;
}

static const struct handler publishing = {.digest = frames, .frame = take_frame, .packet_end = go_on};

static void count_frame(struct conn *conn, int type, char *data, size_t size) {
    (void)conn;
    if (is_ok(type, data, size)) answered++;
}

static const struct handler paced = {.digest = frames, .frame = count_frame};

static bool is_over(void) { return answered == commands; }

/* Open loop: message n is due at n / rate, whatever the server does, so that its pauses show in the latency of all that
 * was due meanwhile. The time in the body is that of the sending: what the sleep oversleeps is not the server's. */
static void publish_paced(struct conn *conn, int64_t rate) {
    int64_t start_ns = now_ns();
    while (sent < commands) {
        int64_t due = start_ns + sent * 1000000000 / rate;
        struct timespec until = {.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        const struct payload *payload = &payloads[sent % payload_count];
        if (strcmp(verb, "PUB") == 0) {
            int64_t now = now_ns();
            memcpy(payload->data + 4, &now, sizeof now); /* behind the size */
        }
        send_bytes(conn, heads[0].iov_base, heads[0].iov_len);
        send_bytes(conn, payload->data, payload->size);
        flush(conn);
        result.published += payload->messages;
        result.body_bytes += payload->body_bytes;
        if (++sent % 64 == 0) loop_once(0); /* OKs are small: now and then is often enough to keep the socket empty */
    }
}

static void name_topics(void) {
    base_topic = text_setting("topic", NULL);
    topic_count = (int)number_setting("topics", 1);
    if (topic_count > MOST_TOPICS) fail("more than %d topics", MOST_TOPICS);
    for (int index = 0; index < topic_count; index++) {
        char head[256];
        int size = topic_count == 1 ? snprintf(head, sizeof head, "%s %s\n", verb, base_topic)
                                    : snprintf(head, sizeof head, "%s %s_%d\n", verb, base_topic, index);
        heads[index] = (struct iovec){strdup(head), (size_t)size};
    }
}

/* Compressing takes longer than what the server does with it, so it is done before the clock starts. */
static void compress_payloads(const char *codec) {
    for (int index = 0; index < payload_count; index++) {
        struct bytes plain = {0}, compressed = {0};
        append(&plain, heads[0].iov_base, heads[0].iov_len);
        append(&plain, payloads[index].data, payloads[index].size);
        compress_alone(codec, plain.data, plain.end, &compressed);
        free(plain.data);
        free(payloads[index].data);
        payloads[index].data = compressed.data;
        payloads[index].size = compressed.end;
    }
    heads[0].iov_len = 0;
    is_compressed = true;
}

void publish(void) {
    int batch = (int)number_setting("batch", 0), connections = (int)number_setting("connections", 1);
    int64_t messages = number_setting("messages", 0), rate = number_setting("rate", 0);
    int64_t due_in_ms = number_setting("due_in_ms", 0);
    defer_ms = number_setting("defer_ms", 0);
    window = (int)number_setting("window", 1);
    if (window < 1 || window > MOST_WINDOW) fail("a window of 1 to %d commands, please", MOST_WINDOW);
    snprintf(verb, sizeof verb, batch ? "MPUB" : "PUB");
    name_topics();
    commands = batch ? (messages + batch - 1) / batch : messages;
    payloads = prepared_payloads(batch ? batch : 1, batch > 0, &payload_count);
    bool is_alone = topic_count == 1 && !rate && !defer_ms && !due_in_ms && !number_setting("tls", 0);
    if (is_alone && number_setting("snappy", 0)) compress_payloads("snappy");
    if (is_alone && number_setting("deflate", 0)) compress_payloads("deflate");
    struct conn **conns = grown(NULL, (size_t)connections * sizeof *conns);
    for (int index = 0; index < connections; index++) {
        conns[index] = identified(index, "");
        conns[index]->lane = calloc(1, sizeof(struct lane));
        join_loop(conns[index], rate ? &paced : &publishing);
    }
    get_ready();
    if (due_in_ms) due_ns = result.started_ns + due_in_ms * 1000000;
    if (rate) publish_paced(conns[0], rate);
    else
        for (int index = 0; index < connections; index++) go_on(conns[index]);
    loop_until(is_over);
    result.timed = result.published;
}

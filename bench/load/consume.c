/* RDY, and an answer to every delivery.
 *
 *     topic, channels      names, separated by commas
 *     messages             that each channel has to finish
 *     connections          for each channel
 *     rdy, msg_timeout_ms, buffer_bytes (the server's output buffer; -1: none)
 *     fin                  packet: all FINs for what one read brought in one write
 *                          each: a write for each FIN, as client libraries with a handler do
 *                          shuffled: held back and let go in another order
 *     think_us             before each FIN the processor is kept busy for so long, as a handler would
 *     requeue_percent      of all deliveries are answered with REQ 0
 *     keep_every           of so many messages one is not answered; with them in flight the work holds
 *     timed                bodies begin with their time of sending
 *     from_first           the clock starts at the first delivery
 *
 * A channel is over when it has finished what was published to it. Then each connection sends CLS, and since commands
 * are executed in order, CLOSE_WAIT proves that every FIN was accepted; what is delivered twice shows up before it.
 *
 * The rate is taken when 95 % have come: a server may hold the last, half full output buffer back for its
 * output_buffer_timeout (250 ms), which says nothing about how fast it is. */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ID_BYTES = 16,
    MESSAGE_HEAD = 8 + 2 + ID_BYTES, /* the time, the attempts, the id */
    FIN_BYTES = 4 + ID_BYTES + 1,
    HELD_FINS = 1000, /* to be mixed: well below RDY 2500, so that the server never runs dry */
    MOST_CHANNELS = 64,
    TIMED_PERCENT = 95,
    FIRST_TIMED_PERCENT = 10, /* latencies: not the cold start */
};

struct channel {
    const char *name;
    int64_t finished, kept;
};

struct lane {
    struct channel *channel;
    char (*held)[ID_BYTES];
    int held_count, held_limit;
    bool is_closed;
};

static struct channel channels[MOST_CHANNELS];
static struct conn **conns;
static int channel_count, conn_count, closed_count;
static int64_t expected, timed_goal, keep_every, kept, think_us;
static uint64_t requeue_percent;
static bool fins_each, fins_shuffled, is_timed, is_from_first;

static void think(void) {
    for (int64_t until_ns = now_ns() + think_us * 1000; now_ns() < until_ns;) continue;
}

static void send_fin(struct conn *conn, const char *id) {
    if (think_us) think();
    char command[FIN_BYTES] = "FIN ";
    memcpy(command + 4, id, ID_BYTES);
    command[FIN_BYTES - 1] = '\n';
    send_bytes(conn, command, FIN_BYTES);
    if (fins_each) flush(conn);
}

static void let_go(struct conn *conn, int remaining) {
    struct lane *lane = conn->lane;
    while (lane->held_count > remaining) {
        int chosen = (int)(next_random() % (uint64_t)lane->held_count);
        send_fin(conn, lane->held[chosen]);
        memcpy(lane->held[chosen], lane->held[--lane->held_count], ID_BYTES);
    }
}

static void hold_back(struct conn *conn, const char *id) {
    struct lane *lane = conn->lane;
    memcpy(lane->held[lane->held_count++], id, ID_BYTES);
    if (lane->held_count == lane->held_limit) let_go(conn, lane->held_limit / 2);
}

static void take_message(struct conn *conn, const char *data, size_t size) {
    struct lane *lane = conn->lane;
    const char *id = data + 10;
    if (size < MESSAGE_HEAD) fail("nsqd sent a message of %zu bytes", size);
    if (result.delivered++ == 0 && is_from_first) result.started_ns = now_ns();
    if (requeue_percent && next_random() % 100 < requeue_percent) {
        char command[] = "REQ ................ 0\n";
        memcpy(command + 4, id, ID_BYTES);
        send_bytes(conn, command, sizeof command - 1);
        result.requeued++;
        return;
    }
    if (requeue_percent == 0 && (data[8] != 0 || data[9] != 1)) fail("a message did not come for the first time");
    if (is_timed) {
        int64_t sent_ns;
        memcpy(&sent_ns, data + MESSAGE_HEAD, sizeof sent_ns);
        note_latency(now_ns() - sent_ns);
    }
    result.finished++;
    result.body_bytes += (int64_t)(size - MESSAGE_HEAD);
    if (++lane->channel->finished > expected) fail("channel %s delivered more than was published", lane->channel->name);
    if (keep_every && lane->channel->finished % keep_every == 0) kept++;
    else if (fins_shuffled) hold_back(conn, id);
    else send_fin(conn, id);
    if (result.finished == timed_goal) {
        result.timed = result.delivered;
        result.timed_until_ns = now_ns();
    }
}

static void take_frame(struct conn *conn, int type, char *data, size_t size) {
    struct lane *lane = conn->lane;
    if (type == MESSAGE) {
        take_message(conn, data, size);
    } else if (is_heartbeat(type, data, size)) {
        send_bytes(conn, "NOP\n", 4);
    } else if (type == RESPONSE && size == 10 && memcmp(data, "CLOSE_WAIT", 10) == 0 && !lane->is_closed) {
        lane->is_closed = true;
        closed_count++;
    } else {
        unexpected(type, data, size);
    }
}

static const struct handler consuming = {.digest = frames, .frame = take_frame, .packet_end = flush};

static bool all_finished(void) { return result.finished == expected * channel_count; }
static bool all_closed(void) { return closed_count == conn_count; }

static void name_channels(void) {
    char *names = strdup(text_setting("channels", NULL));
    for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
        if (channel_count == MOST_CHANNELS) fail("more than %d channels", MOST_CHANNELS);
        channels[channel_count++].name = name;
    }
}

static void connect_all(int rdy, const struct handler *handler) {
    const char *topic = text_setting("topic", NULL);
    int each = (int)number_setting("connections", 1);
    int64_t timeout_ms = number_setting("msg_timeout_ms", 0), buffer_bytes = number_setting("buffer_bytes", 0);
    char more[128] = "";
    int size = 0;
    if (timeout_ms) size += snprintf(more, sizeof more, "\"msg_timeout\": %lld, ", (long long)timeout_ms);
    if (buffer_bytes)
        snprintf(more + size, sizeof more - (size_t)size, "\"output_buffer_size\": %lld, ", (long long)buffer_bytes);
    name_channels();
    conn_count = channel_count * each;
    conns = grown(NULL, (size_t)conn_count * sizeof *conns);
    for (int index = 0; index < conn_count; index++) {
        struct lane *lane = calloc(1, sizeof *lane);
        lane->channel = &channels[index % channel_count];
        if (fins_shuffled) {
            lane->held_limit = rdy / 2 < HELD_FINS ? rdy / 2 + 1 : HELD_FINS;
            lane->held = grown(NULL, (size_t)lane->held_limit * ID_BYTES);
        }
        conns[index] = identified(index, more);
        conns[index]->lane = lane;
        subscribe(conns[index], topic, lane->channel->name);
        join_loop(conns[index], handler);
    }
}

static void send_to_all(const char *command) {
    for (int index = 0; index < conn_count; index++) {
        let_go(conns[index], 0);
        send_bytes(conns[index], command, strlen(command));
        flush(conns[index]);
    }
}

static void send_rdy(int rdy) {
    char command[32];
    snprintf(command, sizeof command, "RDY %d\n", rdy);
    send_to_all(command);
}

void consume(void) {
    int rdy = (int)number_setting("rdy", 2500);
    const char *fin = text_setting("fin", "packet");
    fins_each = strcmp(fin, "each") == 0;
    fins_shuffled = strcmp(fin, "shuffled") == 0;
    requeue_percent = (uint64_t)number_setting("requeue_percent", 0);
    keep_every = number_setting("keep_every", 0);
    think_us = number_setting("think_us", 0);
    is_timed = number_setting("timed", 0) != 0;
    is_from_first = number_setting("from_first", 0) != 0;
    expected = number_setting("messages", 0);
    connect_all(rdy, &consuming);
    timed_goal = expected * channel_count * TIMED_PERCENT / 100;
    if (timed_goal == 0) timed_goal = 1;
    get_ready();
    send_rdy(rdy);
    loop_until(all_finished);
    if (keep_every) {
        say("held");
        while (!line_waits()) loop_once(50);
        await_line();
        result.finished -= kept;
        return; /* what was kept is still in flight */
    }
    send_to_all("CLS\n");
    loop_until(all_closed);
    if (is_timed) {
        size_t count = noted_latencies();
        keep_latencies(count * FIRST_TIMED_PERCENT / 100, count * TIMED_PERCENT / 100);
    }
}

/* ---- late FINs ---- */

static char (*late_ids)[ID_BYTES]; /* of the first deliveries; a lane points to its own */
static int64_t first_deliveries;

static void take_late_frame(struct conn *conn, int type, char *data, size_t size) {
    struct lane *lane = conn->lane;
    if (type == MESSAGE && size >= MESSAGE_HEAD) {
        result.delivered++;
        if (data[8] == 0 && data[9] == 1 && lane->held == NULL && first_deliveries < expected) {
            lane->held = &late_ids[first_deliveries++];
            memcpy(lane->held, data + 10, ID_BYTES);
        }
    } else if (is_heartbeat(type, data, size)) {
        send_bytes(conn, "NOP\n", 4);
    } else if (type == ERROR && size > 12 && memcmp(data, "E_FIN_FAILED", 12) == 0) {
        result.refused++;
    } else {
        unexpected(type, data, size);
    }
}

static const struct handler being_late = {.digest = frames, .frame = take_late_frame, .packet_end = flush};

static bool all_delivered(void) { return first_deliveries >= expected; }

static void serve_for(int64_t ms) {
    int64_t until_ns = now_ns() + ms * 1000000;
    while (now_ns() < until_ns) loop_once(20);
}

/* Each of many consumers has RDY 1 and lets its message time out; the messages go to others, which answer none either.
 * Then all FINs for the first deliveries are sent at once: none of those consumers has the message that it finishes. */
void late(void) {
    expected = number_setting("messages", 0);
    int64_t timeout_ms = number_setting("msg_timeout_ms", 1000);
    late_ids = calloc((size_t)expected + 1, ID_BYTES);
    connect_all(1, &being_late);
    if (expected > conn_count) fail("more messages than consumers with RDY 1");
    get_ready();
    send_rdy(1);
    loop_until(all_delivered);
    serve_for(timeout_ms * 3 / 2);
    say("held");
    await_line();
    for (int index = 0; index < conn_count; index++) {
        struct lane *lane = conns[index]->lane;
        if (lane->held == NULL) continue;
        send_fin(conns[index], *lane->held);
        flush(conns[index]);
    }
    serve_for(1000); /* the answers, and one more round of timeouts */
    result.timed = result.refused;
}

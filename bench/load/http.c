/* Requests over connections that are kept alive, each waiting for its answer before its next.
 *
 *     target               # stands for the number of the request
 *     requests, connections
 *     post                 0: GET; 1: POST
 *     batch                bodies of messages in each POST; 0: none
 *     records              1: as binary=true takes them; 0: a single body, or lines
 */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LARGEST_HEAD = 8192 }; /* far above what any nsqd sends; anything longer means that we lost our place */

static struct payload *requests;
static int request_count, batch;
static int64_t total, sent, answered;
static const char *target, *numbered;
static bool is_post;

static int print_head(char *head, size_t capacity, const char *path, size_t body_bytes) {
    if (!is_post)
        return snprintf(head, capacity, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: emberq-bench\r\n\r\n", path,
                        text_setting("address", NULL));
    return snprintf(head, capacity,
                    "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: emberq-bench\r\nContent-Length: %zu\r\n"
                    "Content-Type: application/octet-stream\r\nAccept-Encoding: gzip\r\n\r\n",
                    path, text_setting("address", NULL), body_bytes);
}

/* What was prepared for an MPUB or a PUB becomes a body of HTTP: without the size in front, as lines if wanted. */
static void make_request(struct payload *payload, bool as_records) {
    char *body = payload->data + 4, head[1024];
    size_t size = payload->size - 4;
    if (!as_records && batch > 1) {
        size_t from = 8, to = 4; /* behind the size of all and the number of messages */
        for (int index = 0; index < payload->messages; index++) {
            size_t length = be32(payload->data + from);
            memmove(payload->data + to, payload->data + from + 4, length);
            for (size_t at = to; at < to + length; at++)
                if (payload->data[at] == '\n') payload->data[at] = ' ';
            to += length;
            payload->data[to++] = '\n';
            from += 4 + length;
        }
        size = to - 4 - 1;
    }
    int head_size = print_head(head, sizeof head, target, size);
    char *whole = grown(NULL, (size_t)head_size + size);
    memcpy(whole, head, (size_t)head_size);
    memcpy(whole + head_size, body, size);
    free(payload->data);
    payload->data = whole;
    payload->size = (size_t)head_size + size;
}

static void send_numbered(struct conn *conn) {
    char path[512], head[1024];
    snprintf(path, sizeof path, "%.*s%lld%s", (int)(numbered - target), target, (long long)sent, numbered + 1);
    send_bytes(conn, head, (size_t)print_head(head, sizeof head, path, 0));
}

static void send_request(struct conn *conn) {
    if (sent == total) return;
    *(int64_t *)conn->lane = now_ns();
    if (numbered) {
        send_numbered(conn);
    } else {
        struct payload *payload = &requests[sent % request_count];
        struct iovec piece = {payload->data, payload->size};
        send_prepared(conn, &piece, 1);
        result.published += payload->messages;
        result.body_bytes += payload->body_bytes;
    }
    sent++;
    flush(conn);
}

/* Where the chunks from `at` on end; 0 while they are not complete. */
static size_t end_of_chunks(const char *data, size_t at, size_t size) {
    while (true) {
        const char *line_end = memmem(data + at, size - at, "\r\n", 2);
        if (line_end == NULL) return 0;
        size_t length = strtoul(data + at, NULL, 16);
        at = (size_t)(line_end - data) + 2 + length + 2;
        if (at > size) return 0;
        if (length == 0) return at;
    }
}

/* Where the answer at the beginning of `data` ends; 0 while it is not complete. */
static size_t end_of_answer(struct conn *conn, const char *data, size_t size) {
    const char *head_end = memmem(data, size, "\r\n\r\n", 4);
    if (head_end == NULL) {
        if (size > LARGEST_HEAD) fail("nsqd sent a head of more than %d bytes", LARGEST_HEAD);
        return 0;
    }
    size_t body = (size_t)(head_end - data) + 4, end = body;
    char head[LARGEST_HEAD + 1];
    if (body > LARGEST_HEAD) fail("nsqd sent a head of %zu bytes", body);
    memcpy(head, data, body);
    head[body] = '\0';
    const char *length = strcasestr(head, "\r\nContent-Length:");
    if (length) {
        end = body + strtoul(length + 17, NULL, 10);
        conn->needed = end;
        if (end > size) return 0;
    } else if (strcasestr(head, "\r\nTransfer-Encoding: chunked")) {
        end = end_of_chunks(data, body, size);
        if (end == 0) return 0;
    } else {
        fail("nsqd sent an answer that is none of ours: %.200s", head);
    }
    if (strncmp(head, "HTTP/1.1 200 ", 13) != 0)
        fail("nsqd answered %.3s %.*s", head + 9, end - body < 200 ? (int)(end - body) : 200, data + body);
    return end;
}

static size_t take_answer(struct conn *conn, char *data, size_t size) {
    conn->needed = 0;
    size_t end = end_of_answer(conn, data, size);
    if (end == 0) return 0;
    if (end != size) fail("nsqd gave more than the one answer that was due");
    conn->needed = 0;
    note_latency(now_ns() - *(int64_t *)conn->lane);
    answered++;
    return end;
}

static void go_on(struct conn *conn) {
    if (conn->in.end == conn->in.start) send_request(conn); /* else the answer is not complete */
}

static const struct handler requesting = {.digest = take_answer, .packet_end = go_on};

static bool is_over(void) { return answered == total; }

void request(void) {
    int connections = (int)number_setting("connections", 1);
    bool as_records = number_setting("records", 0) != 0;
    target = text_setting("target", NULL);
    numbered = strchr(target, '#');
    total = number_setting("requests", 1);
    is_post = number_setting("post", 0) != 0;
    batch = (int)number_setting("batch", 0);
    if (batch) {
        requests = prepared_payloads(batch, batch > 1, &request_count);
        for (int index = 0; index < request_count; index++) make_request(&requests[index], as_records);
    } else {
        char head[1024];
        static struct payload only;
        only.size = (size_t)print_head(head, sizeof head, target, 0);
        only.data = strdup(head);
        requests = &only;
        request_count = 1;
    }
    struct conn **conns = grown(NULL, (size_t)connections * sizeof *conns);
    for (int index = 0; index < connections; index++) {
        conns[index] = connected(index);
        conns[index]->lane = calloc(1, sizeof(int64_t));
        join_loop(conns[index], &requesting);
    }
    get_ready();
    for (int index = 0; index < connections; index++) send_request(conns[index]);
    loop_until(is_over);
    result.timed = batch ? result.published : answered;
}

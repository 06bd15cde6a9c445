/* Connections and the loop.
 *
 * A connection is blocking for its handshake and not blocking after `join_loop`. What arrives is read into one buffer
 * that all connections share and handed over there; only a part of a frame at its end is kept with its connection. So
 * 5,000 connections cost little, and a frame of 1 MB is read to where it stays. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SILENCE_LIMIT_S = 30,          /* no work lets a healthy server be silent for so long */
    READ_BYTES = 1 << 20,          /* more than a whole RDY window of small frames */
    LEAST_ROOM = 1 << 16,          /* to read into behind a part of a frame */
    LARGEST_FRAME = 64 << 20,      /* anything above means that we lost our place */
    MOST_EVENTS = 256,
    PER_SOURCE_ADDRESS = 5000,     /* well below the number of ports that one source address has for one server */
    SOURCE_ADDRESSES = 200,
};

static int epoll_fd = -1;
static char *shared;

uint32_t be32(const char *data) {
    uint32_t value;
    memcpy(&value, data, 4);
    return ntohl(value);
}

void put_be32(char *data, uint32_t value) {
    value = htonl(value);
    memcpy(data, &value, 4);
}

char *reserve(struct bytes *bytes, size_t size) {
    if (bytes->start == bytes->end) bytes->start = bytes->end = 0;
    if (bytes->capacity - bytes->end < size && bytes->start > 0) {
        memmove(bytes->data, bytes->data + bytes->start, bytes->end - bytes->start);
        bytes->end -= bytes->start;
        bytes->start = 0;
    }
    if (bytes->capacity - bytes->end < size) {
        bytes->capacity = (bytes->end + size) * 2;
        bytes->data = grown(bytes->data, bytes->capacity);
    }
    return bytes->data + bytes->end;
}

void append(struct bytes *bytes, const void *data, size_t size) {
    memcpy(reserve(bytes, size), data, size);
    bytes->end += size;
}

/* ---- connecting ---- */

static struct sockaddr_in server_address(void) {
    static struct sockaddr_in address;
    if (address.sin_port == 0) {
        char host[64];
        int port;
        if (sscanf(text_setting("address", NULL), "%63[^:]:%d", host, &port) != 2) fail("address is not HOST:PORT");
        address.sin_family = AF_INET;
        address.sin_port = htons((uint16_t)port);
        if (inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("%s is not an IPv4 address", host);
    }
    return address;
}

struct conn *connected(int index) {
    struct sockaddr_in address = server_address();
    struct conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL) fail("there is no memory for a connection");
    conn->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (conn->fd < 0) fail("no socket: %s", strerror(errno));
    int yes = 1;
    struct timeval limit = {.tv_sec = SILENCE_LIMIT_S};
    setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(conn->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(conn->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (index >= PER_SOURCE_ADDRESS && ntohl(address.sin_addr.s_addr) >> 24 == 127) {
        /* Loopback has 2**24 addresses: each takes a part of the crowd, and of what is left in TIME_WAIT. */
        int number = index / PER_SOURCE_ADDRESS % SOURCE_ADDRESSES + 1;
        struct sockaddr_in source = {.sin_family = AF_INET, .sin_addr = {htonl(0x7f000100u + (uint32_t)number)}};
        setsockopt(conn->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
        if (bind(conn->fd, (struct sockaddr *)&source, sizeof source) < 0) fail("bind: %s", strerror(errno));
    }
    if (connect(conn->fd, (struct sockaddr *)&address, sizeof address) < 0) fail("connect: %s", strerror(errno));
    return conn;
}

void close_conn(struct conn *conn) {
    close(conn->fd);
    if (conn->codec) free_codec(conn->codec);
    free(conn->in.data);
    free(conn->plain.data);
    free(conn->out.data);
    free(conn);
}

static void receive_some(struct conn *conn) {
    static char chunk[4096];
    ssize_t count = read(conn->fd, chunk, sizeof chunk);
    if (count < 0 && errno == EAGAIN) fail("nsqd was silent for %d s", SILENCE_LIMIT_S);
    if (count < 0) fail("read: %s", strerror(errno));
    if (count == 0) fail("nsqd closed the connection");
    if (conn->codec) decode(conn->codec, chunk, (size_t)count, &conn->in);
    else append(&conn->in, chunk, (size_t)count);
}

size_t await_frame(struct conn *conn, int *type, char *data, size_t capacity) {
    struct bytes *in = &conn->in;
    while (in->end - in->start < 4 || in->end - in->start - 4 < be32(in->data + in->start)) receive_some(conn);
    size_t size = be32(in->data + in->start);
    if (size < 4 || size - 4 >= capacity) fail("nsqd sent a frame of %zu bytes", size);
    *type = (int)be32(in->data + in->start + 4);
    memcpy(data, in->data + in->start + 8, size - 4);
    data[size - 4] = '\0';
    in->start += 4 + size;
    return size - 4;
}

static void await_ok(struct conn *conn) {
    char answer[4096];
    int type;
    size_t size = await_frame(conn, &type, answer, sizeof answer);
    if (type != RESPONSE || strcmp(answer, "OK") != 0) unexpected(type, answer, size);
}

static void upgrade(struct conn *conn, const char *name) {
    if (number_setting(name, 0) == 0) return;
    conn->codec = new_codec(name, conn->codec, conn->fd);
    struct bytes early = conn->in; /* the codec's first bytes may have come together with what was said before */
    conn->in = (struct bytes){0};
    if (early.end > early.start) decode_top(conn->codec, early.data + early.start, early.end - early.start, &conn->in);
    free(early.data);
    await_ok(conn);
}

struct conn *identified(int index, const char *more) {
    struct conn *conn = connected(index);
    char command[1024];
    const char *yes_no[] = {"false", "true"};
    char body[768];
    int size = snprintf(body, sizeof body,
                        "{%s\"client_id\": \"bench\", \"hostname\": \"bench\", \"user_agent\": \"emberq-bench\", "
                        "\"feature_negotiation\": true, \"tls_v1\": %s, \"snappy\": %s, \"deflate\": %s}",
                        more, yes_no[number_setting("tls", 0) != 0], yes_no[number_setting("snappy", 0) != 0],
                        yes_no[number_setting("deflate", 0) != 0]);
    int head = snprintf(command, sizeof command, "  V2IDENTIFY\n");
    put_be32(command + head, (uint32_t)size);
    memcpy(command + head + 4, body, (size_t)size);
    send_bytes(conn, command, (size_t)(head + 4 + size));
    flush(conn);
    char answer[4096];
    int type;
    size_t answered = await_frame(conn, &type, answer, sizeof answer);
    if (type != RESPONSE) unexpected(type, answer, answered);
    upgrade(conn, "tls");
    upgrade(conn, "snappy");
    upgrade(conn, "deflate");
    return conn;
}

void subscribe(struct conn *conn, const char *topic, const char *channel) {
    char command[256];
    int size = snprintf(command, sizeof command, "SUB %s %s\n", topic, channel);
    send_bytes(conn, command, (size_t)size);
    flush(conn);
    await_ok(conn);
}

/* ---- writing ---- */

void send_bytes(struct conn *conn, const void *data, size_t size) {
    append(conn->codec ? &conn->plain : &conn->out, data, size);
}

void send_prepared(struct conn *conn, const struct iovec *pieces, int count) {
    if (conn->piece_count + count > MOST_PIECES) fail("a window of more than %d commands", MOST_PIECES / 2);
    for (int index = 0; index < count; index++)
        conn->pieces[(conn->first_piece + conn->piece_count++) % MOST_PIECES] = pieces[index];
}

static void want_write(struct conn *conn, bool wanted) {
    if (conn->waits_to_write == wanted || conn->handler == NULL) return;
    conn->waits_to_write = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data = {.ptr = conn}};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, conn->fd, &event);
}

/* True when the socket is full. */
static bool write_failed(ssize_t written) {
    if (written >= 0) return false;
    if (errno != EAGAIN) fail("write: %s", strerror(errno));
    return true;
}

static bool flush_out(struct conn *conn) {
    struct bytes *out = &conn->out;
    while (out->start < out->end) {
        ssize_t written = write(conn->fd, out->data + out->start, out->end - out->start);
        if (write_failed(written)) return false;
        out->start += (size_t)written;
    }
    out->start = out->end = 0;
    return true;
}

static bool flush_pieces(struct conn *conn) {
    while (conn->piece_count > 0) {
        int straight = MOST_PIECES - conn->first_piece; /* the ring's pieces up to its end */
        int count = conn->piece_count < straight ? conn->piece_count : straight;
        ssize_t written = writev(conn->fd, conn->pieces + conn->first_piece, count);
        if (write_failed(written)) return false;
        for (size_t left = (size_t)written; left > 0;) {
            struct iovec *piece = &conn->pieces[conn->first_piece];
            size_t taken = left < piece->iov_len ? left : piece->iov_len;
            piece->iov_base = (char *)piece->iov_base + taken;
            piece->iov_len -= taken;
            left -= taken;
            if (piece->iov_len > 0) break;
            conn->first_piece = (conn->first_piece + 1) % MOST_PIECES;
            conn->piece_count--;
        }
    }
    return true;
}

void flush(struct conn *conn) {
    struct bytes *plain = &conn->plain;
    if (plain->end > plain->start) {
        encode(conn->codec, plain->data + plain->start, plain->end - plain->start, &conn->out);
        plain->start = plain->end = 0;
    }
    want_write(conn, !(flush_out(conn) && flush_pieces(conn)));
}

/* ---- reading ---- */

bool is_heartbeat(int type, const char *data, size_t size) {
    return type == RESPONSE && size == 11 && memcmp(data, "_heartbeat_", 11) == 0;
}

void unexpected(int type, const char *data, size_t size) {
    int shown = size < 200 ? (int)size : 200;
    if (type == ERROR) fail("nsqd answered %.*s", shown, data);
    if (type == MESSAGE) fail("nsqd sent a message of %zu bytes where none was due", size);
    fail("nsqd sent an unexpected frame of type %d: %.*s", type, shown, data);
}

size_t frames(struct conn *conn, char *data, size_t size) {
    size_t at = 0;
    conn->needed = 0;
    while (size - at >= 8) {
        size_t length = be32(data + at);
        if (length < 4 || length > LARGEST_FRAME) fail("nsqd sent a frame of %zu bytes", length);
        if (size - at - 4 < length) {
            conn->needed = 4 + length;
            break;
        }
        conn->handler->frame(conn, (int)be32(data + at + 4), data + at + 8, length - 4);
        at += 4 + length;
    }
    return at;
}

static void digest_in(struct conn *conn) {
    conn->in.start += conn->handler->digest(conn, conn->in.data + conn->in.start, conn->in.end - conn->in.start);
}

/* Returns what read() gave. */
static ssize_t receive_behind_part(struct conn *conn) {
    size_t have = conn->in.end - conn->in.start;
    size_t room = conn->needed > have + LEAST_ROOM ? conn->needed - have : LEAST_ROOM;
    ssize_t count = read(conn->fd, reserve(&conn->in, room), room);
    if (count > 0) {
        conn->in.end += (size_t)count;
        digest_in(conn);
    }
    return count;
}

static ssize_t receive_fresh(struct conn *conn) {
    ssize_t count = read(conn->fd, shared, READ_BYTES);
    if (count <= 0) return count;
    if (conn->codec) {
        decode(conn->codec, shared, (size_t)count, &conn->in);
        digest_in(conn);
    } else {
        size_t taken = conn->handler->digest(conn, shared, (size_t)count);
        append(&conn->in, shared + taken, (size_t)count - taken);
    }
    return count;
}

static void receive(struct conn *conn) {
    bool has_part = conn->in.end > conn->in.start && conn->codec == NULL;
    ssize_t count = has_part ? receive_behind_part(conn) : receive_fresh(conn);
    if (count == 0) fail("nsqd closed the connection");
    if (count < 0) {
        if (errno != EAGAIN) fail("read: %s", strerror(errno));
        return;
    }
    if (conn->handler->packet_end) conn->handler->packet_end(conn);
}

/* ---- the loop ---- */

void join_loop(struct conn *conn, const struct handler *handler) {
    if (epoll_fd < 0) {
        epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        shared = grown(NULL, READ_BYTES);
    }
    conn->handler = handler;
    fcntl(conn->fd, F_SETFL, fcntl(conn->fd, F_GETFL) | O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = conn}};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, conn->fd, &event) < 0) fail("epoll: %s", strerror(errno));
}

static int serve(int timeout_ms) {
    struct epoll_event events[MOST_EVENTS];
    int count = epoll_wait(epoll_fd, events, MOST_EVENTS, timeout_ms);
    if (count < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
    for (int index = 0; index < count; index++) {
        struct conn *conn = events[index].data.ptr;
        if (events[index].events & EPOLLOUT) flush(conn);
        if (events[index].events & ~(uint32_t)EPOLLOUT) receive(conn);
    }
    return count;
}

void loop_once(int timeout_ms) { serve(timeout_ms); }

/* Heartbeats are no progress. */
void loop_until(bool (*done)(void)) {
    int64_t latest_ns = now_ns(), latest = -1;
    while (!done()) {
        serve(1000);
        int64_t progress = result.published + result.delivered + (int64_t)noted_latencies();
        if (progress != latest) {
            latest = progress;
            latest_ns = now_ns();
        } else if (now_ns() - latest_ns > (int64_t)SILENCE_LIMIT_S * 1000000000) {
            fail("nothing arrived for %d s; so far %lld messages were published, %lld delivered and %lld finished",
                 SILENCE_LIMIT_S, (long long)result.published, (long long)result.delivered, (long long)result.finished);
        }
    }
}

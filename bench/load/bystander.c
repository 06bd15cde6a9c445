/* One PUB after the other on a connection and a topic of its own, a moment between them, until the caller says a word.
 * What keeps the server from its other clients shows in the longest of these round trips. */
#include "load.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PAUSE_US = 500, BODY_BYTES = 100 };

void bystander(void) {
    struct conn *conn = identified(0, "");
    char command[512], answer[256];
    int head = snprintf(command, sizeof command - BODY_BYTES - 4, "PUB %s\n", text_setting("topic", NULL));
    put_be32(command + head, BODY_BYTES);
    memset(command + head + 4, 'b', BODY_BYTES);
    get_ready();
    while (!line_waits()) {
        int type;
        int64_t sent_ns = now_ns();
        send_bytes(conn, command, (size_t)head + 4 + BODY_BYTES);
        flush(conn);
        size_t size = await_frame(conn, &type, answer, sizeof answer);
        if (is_heartbeat(type, answer, size)) size = await_frame(conn, &type, answer, sizeof answer);
        if (type != RESPONSE || strcmp(answer, "OK") != 0) unexpected(type, answer, size);
        note_latency(now_ns() - sent_ns);
        result.published++;
        struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
        nanosleep(&pause, NULL);
    }
    await_line();
    result.timed = result.published;
}

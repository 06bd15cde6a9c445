/* Connections that come and go: each is identified and upgraded, says something and leaves a little later, so that some
 * hundreds are there at any time.
 *
 *     messages             how many connections in all
 *     connections          how many at a time
 *     cut                  1: each leaves in the middle of an MPUB
 */
#include "load.h"

#include <stdlib.h>
#include <string.h>

enum { CUT_BYTES = 20000 }; /* the half of an MPUB that is sent */

static void speak(struct conn *conn, bool is_cut, const char *topic) {
    if (is_cut) {
        static char half[CUT_BYTES];
        send_bytes(conn, "MPUB ", 5);
        send_bytes(conn, topic, strlen(topic));
        put_be32(half, 2 * CUT_BYTES);
        put_be32(half + 4, 2);
        put_be32(half + 8, CUT_BYTES - 6); /* the first of two messages: (2 * CUT_BYTES - 4) / 2 - 4 bytes */
        send_bytes(conn, "\n", 1);
        send_bytes(conn, half, sizeof half);
    } else {
        send_bytes(conn, "NOP\n", 4);
    }
    flush(conn);
}

void churn(void) {
    int64_t total = number_setting("messages", 0);
    int64_t at_a_time = number_setting("connections", 200);
    bool is_cut = number_setting("cut", 0) != 0;
    const char *topic = text_setting("topic", NULL);
    struct conn **conns = calloc((size_t)at_a_time, sizeof *conns);
    conns[0] = identified(0, ""); /* every setting is asked for before the start */
    get_ready();
    for (int64_t index = 0; index < total; index++) {
        struct conn **place = &conns[index % at_a_time];
        if (*place) close_conn(*place);
        *place = identified((int)index, "");
        speak(*place, is_cut, topic);
    }
    for (int64_t index = 0; index < at_a_time; index++)
        if (conns[index]) close_conn(conns[index]);
    result.timed = result.finished = total;
}

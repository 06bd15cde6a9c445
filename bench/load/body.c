/* Bodies of mixed sizes, the same ones in every run: `min` to `max` bytes, each size as likely as any other.
 *
 * Random bytes, of which no server may profit; with content=text words, which compress about as logs do. The bodies of
 * a run are prepared before the clock starts and sent again and again, so many that they do not stay in the processor's
 * cache. */
#include "load.h"

#include <string.h>

enum {
    PREPARED_BYTES = 16 << 20,
    LEAST_PAYLOADS = 4,
    MOST_PAYLOADS = 1024,
};

static size_t random_size(void) {
    uint64_t least = (uint64_t)number_setting("min", 20), most = (uint64_t)number_setting("max", 2000);
    return (size_t)(least + next_random() % (most - least + 1));
}

size_t largest_body(void) { return (size_t)number_setting("max", 2000); }

static void fill_words(char *data, size_t size) {
    static const char *const words[] = {
        "order",       "customer", "created",   "\"status\":", "shipped", "2026-01-", "10.0.0.", "==",
        "GET /items/", "200",      "warehouse", "{\"id\":",    "}, ",     "error",    "retry",   "eu-west",
    };
    for (size_t at = 0; at < size;) {
        uint64_t random = next_random();
        const char *word = words[random % 16];
        size_t length = strlen(word);
        for (size_t index = 0; index < length && at < size; index++) data[at++] = word[index];
        for (int digit = 1; digit <= 3 && at < size; digit++) data[at++] = (char)('0' + (random >> 8 * digit) % 10);
    }
}

size_t fill_body(char *data) {
    size_t size = random_size();
    if (strcmp(text_setting("content", "random"), "text") == 0) {
        fill_words(data, size);
        return size;
    }
    for (size_t at = 0; at < size; at += 8) {
        uint64_t random = next_random();
        memcpy(data + at, &random, size - at < 8 ? size - at : 8);
    }
    return size;
}

static struct payload prepared(int messages, bool counted) {
    size_t head = counted ? 8 : 0; /* an MPUB: the size of all, the number of messages */
    size_t most = head + (size_t)messages * (4 + largest_body() + 8); /* a body is filled in steps of 8 bytes */
    struct payload payload = {.data = grown(NULL, most), .messages = messages};
    size_t at = head;
    for (int index = 0; index < messages; index++) {
        size_t size = fill_body(payload.data + at + 4);
        put_be32(payload.data + at, (uint32_t)size);
        at += 4 + size;
        payload.body_bytes += (int64_t)size;
    }
    if (counted) {
        put_be32(payload.data, (uint32_t)(at - 4));
        put_be32(payload.data + 4, (uint32_t)messages);
    }
    payload.size = at;
    payload.data = grown(payload.data, at);
    return payload;
}

struct payload *prepared_payloads(int messages_each, bool counted, int *count) {
    size_t usual = (size_t)(number_setting("min", 20) + number_setting("max", 2000)) / 2 * (size_t)messages_each;
    size_t fitting = PREPARED_BYTES / (usual + 1);
    *count = (int)(fitting < LEAST_PAYLOADS ? LEAST_PAYLOADS : fitting > MOST_PAYLOADS ? MOST_PAYLOADS : fitting);
    struct payload *payloads = grown(NULL, (size_t)*count * sizeof *payloads);
    for (int index = 0; index < *count; index++) payloads[index] = prepared(messages_each, counted);
    return payloads;
}

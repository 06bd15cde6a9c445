/* The settings, the conversation with the caller, the result. */
#include "load.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SETTINGS = 64 };

static char **settings;
static int setting_count;
static bool is_read[MOST_SETTINGS];

struct result result;

static int64_t *latencies_ns; /* one for each round trip or delivery: a run has some millions at most */
static size_t latency_count, latency_capacity, first_latency;

static double cpu_before_s;

const char *text_setting(const char *name, const char *otherwise) {
    size_t length = strlen(name);
    for (int index = 0; index < setting_count; index++) {
        if (strncmp(settings[index], name, length) == 0 && settings[index][length] == '=') {
            is_read[index] = true;
            return settings[index] + length + 1;
        }
    }
    if (otherwise == NULL) fail("the setting %s is missing", name);
    return otherwise;
}

int64_t number_setting(const char *name, int64_t otherwise) {
    const char *text = text_setting(name, "");
    if (*text == '\0') return otherwise;
    char *end;
    int64_t value = strtoll(text, &end, 10);
    if (*end != '\0') fail("%s=%s is not a number", name, text);
    return value;
}

void settings_are_read(void) {
    for (int index = 0; index < setting_count; index++)
        if (!is_read[index]) fail("this work has no setting %s", settings[index]);
}

static void print_quoted(const char *text) {
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') printf("\\%c", c);
        else if (c < 32 || c > 126) printf("\\u%04x", c);
        else putchar(c);
    }
    putchar('"');
}

void fail(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("{\"error\": ");
    print_quoted(text);
    printf("}\n");
    fflush(stdout);
    _exit(1);
}

void say(const char *word) {
    printf("%s\n", word);
    fflush(stdout);
}

bool line_waits(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, 0) > 0;
}

void await_line(void) {
    char character;
    do {
        ssize_t count = read(STDIN_FILENO, &character, 1);
        if (count == 0 || (count < 0 && errno != EINTR)) _exit(1); /* the caller gave up */
    } while (character != '\n');
}

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void get_ready(void) {
    settings_are_read();
    say("ready");
    await_line();
    cpu_before_s = cpu_s();
    result.started_ns = now_ns();
}

void *grown(void *memory, size_t size) {
    void *larger = realloc(memory, size);
    if (larger == NULL) fail("there is no memory for %zu bytes", size);
    return larger;
}

uint64_t next_random(void) {
    static uint64_t state = 0x9e3779b97f4a7c15; /* xorshift64*: any start but 0 */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1d;
}

void note_latency(int64_t ns) {
    if (latency_count == latency_capacity) {
        latency_capacity = latency_capacity ? latency_capacity * 2 : 65536;
        latencies_ns = grown(latencies_ns, latency_capacity * sizeof *latencies_ns);
    }
    latencies_ns[latency_count++] = ns;
}

size_t noted_latencies(void) { return latency_count; }

void keep_latencies(size_t first, size_t end) {
    first_latency = first;
    latency_count = end;
}

static int compare(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

static void print_latencies(void) {
    size_t count = latency_count - first_latency;
    if (count == 0) return;
    int64_t *ranked = latencies_ns + first_latency;
    qsort(ranked, count, sizeof *ranked, compare);
    printf(", \"latency_ms\": {\"count\": %zu", count);
    static const struct { const char *name; int per_mille; } ranks[] = {
        {"p50", 500}, {"p90", 900}, {"p99", 990}, {"p999", 999},
    };
    for (size_t index = 0; index < sizeof ranks / sizeof *ranks; index++) {
        size_t rank = (count * (size_t)ranks[index].per_mille + 999) / 1000; /* the nearest rank */
        printf(", \"%s\": %.6f", ranks[index].name, (double)ranked[rank ? rank - 1 : 0] / 1e6);
    }
    printf(", \"max\": %.6f}", (double)ranked[count - 1] / 1e6);
}

static void print_result(void) {
    int64_t ended_ns = now_ns();
    if (result.timed_until_ns == 0) result.timed_until_ns = ended_ns;
    printf("{\"published\": %lld, \"delivered\": %lld, \"finished\": %lld, \"requeued\": %lld, \"refused\": %lld",
           (long long)result.published, (long long)result.delivered, (long long)result.finished,
           (long long)result.requeued, (long long)result.refused);
    printf(", \"body_bytes\": %lld, \"timed\": %lld", (long long)result.body_bytes, (long long)result.timed);
    printf(", \"started_s\": %.9f, \"timed_until_s\": %.9f", (double)result.started_ns / 1e9,
           (double)result.timed_until_ns / 1e9);
    printf(", \"cpu_s\": %.6f", cpu_s() - cpu_before_s);
    print_latencies();
    say("}");
}

int main(int count, char **arguments) {
    static const struct { const char *name; void (*run)(void); } works[] = {
        {"publish", publish}, {"consume", consume}, {"late", late},
        {"request", request}, {"churn", churn}, {"bystander", bystander},
    };
    signal(SIGPIPE, SIG_IGN); /* a closed connection is an error of its write */
    signal(SIGINT, SIG_IGN);  /* Ctrl-C reaches the whole group; the caller ends us */
    if (count < 2 || count - 2 > MOST_SETTINGS) fail("usage: load WORK name=value ...");
    settings = arguments + 2;
    setting_count = count - 2;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (size_t index = 0; index < sizeof works / sizeof *works; index++) {
        if (strcmp(arguments[1], works[index].name) == 0) {
            works[index].run();
            print_result();
            return 0;
        }
    }
    fail("there is no work %s", arguments[1]);
}

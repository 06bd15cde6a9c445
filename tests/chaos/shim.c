/* Faults of the operating system, put between a program and libc by LD_PRELOAD: errors of files below one path, and a wall
 * clock that is wrong. What is to fail is read from a file of shared memory that tests/chaos/shim.py writes, whose name is
 * in EMBERQ_SHIM, so faults come and go while the program runs.
 *
 *     cc -shared -fPIC -O2 -o shim.so shim.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Laid out as struct.pack("<qiiiiqq256s") does it. */
struct control {
    int64_t clock_offset_ns;
    int32_t read_errno;
    int32_t write_errno;
    int32_t sync_errno;
    int32_t change_errno; /* creating, renaming and removing files */
    int64_t read_from;    /* reads that touch these positions fail */
    int64_t read_to;
    char path[256]; /* only names that contain this are concerned */
};

static const struct control nothing;
static const volatile struct control *control = &nothing;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REAL(name)                              \
    static __typeof__(&name) real;              \
    if (!real)                                  \
        real = NEXT(name)

__attribute__((constructor)) static void attach(void) {
    const char *name = getenv("EMBERQ_SHIM");
    if (!name)
        return;
    int fd = NEXT(open)(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    void *shared = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED)
        control = shared;
    NEXT(close)(fd);
}

static int concerns_name(const char *name) {
    return name && control->path[0] && strstr(name, (const char *)control->path) != NULL;
}

static int concerns(int fd) {
    char link[32], name[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, name, sizeof name - 1);
    if (size < 0)
        return 0;
    name[size] = 0;
    return concerns_name(name);
}

static int fail(int error) {
    errno = error;
    return -1;
}

/* Reads. */

static int read_fails(int fd, off_t position, size_t size) {
    return control->read_errno && position < control->read_to && (int64_t)(position + size) > control->read_from && concerns(fd);
}

ssize_t pread(int fd, void *buffer, size_t size, off_t position) {
    REAL(pread);
    return read_fails(fd, position, size) ? fail(control->read_errno) : real(fd, buffer, size, position);
}

ssize_t pread64(int fd, void *buffer, size_t size, off64_t position) {
    REAL(pread64);
    return read_fails(fd, position, size) ? fail(control->read_errno) : real(fd, buffer, size, position);
}

ssize_t read(int fd, void *buffer, size_t size) {
    REAL(read);
    return control->read_errno && read_fails(fd, lseek(fd, 0, SEEK_CUR), size) ? fail(control->read_errno) : real(fd, buffer, size);
}

/* Writes. */

#define WRITE_FAILS(fd) (control->write_errno && concerns(fd))

ssize_t write(int fd, const void *buffer, size_t size) {
    REAL(write);
    return WRITE_FAILS(fd) ? fail(control->write_errno) : real(fd, buffer, size);
}

ssize_t pwrite(int fd, const void *buffer, size_t size, off_t position) {
    REAL(pwrite);
    return WRITE_FAILS(fd) ? fail(control->write_errno) : real(fd, buffer, size, position);
}

ssize_t pwrite64(int fd, const void *buffer, size_t size, off64_t position) {
    REAL(pwrite64);
    return WRITE_FAILS(fd) ? fail(control->write_errno) : real(fd, buffer, size, position);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t position) {
    REAL(pwritev);
    return WRITE_FAILS(fd) ? fail(control->write_errno) : real(fd, parts, count, position);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t position) {
    REAL(pwritev64);
    return WRITE_FAILS(fd) ? fail(control->write_errno) : real(fd, parts, count, position);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t position, int flags) {
    REAL(pwritev2);
    return WRITE_FAILS(fd) ? fail(control->write_errno) : real(fd, parts, count, position, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t position, int flags) {
    REAL(pwritev64v2);
    return WRITE_FAILS(fd) ? fail(control->write_errno) : real(fd, parts, count, position, flags);
}

/* Syncs. */

int fsync(int fd) {
    REAL(fsync);
    return control->sync_errno && concerns(fd) ? fail(control->sync_errno) : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return control->sync_errno && concerns(fd) ? fail(control->sync_errno) : real(fd);
}

/* Names. */

#define CHANGE_FAILS(name) (control->change_errno && concerns_name(name))
#define IS_CHANGE(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & O_CREAT))

#define OPEN(function)                                              \
    int function(const char *name, int flags, ...) {                \
        REAL(function);                                             \
        va_list more;                                               \
        va_start(more, flags);                                      \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                               \
        if (IS_CHANGE(flags) && CHANGE_FAILS(name))                 \
            return fail(control->change_errno);                     \
        return real(name, flags, mode);                             \
    }

OPEN(open)
OPEN(open64)

int rename(const char *from, const char *to) {
    REAL(rename);
    return CHANGE_FAILS(to) ? fail(control->change_errno) : real(from, to);
}

int unlink(const char *name) {
    REAL(unlink);
    return CHANGE_FAILS(name) ? fail(control->change_errno) : real(name);
}

int mkdir(const char *name, mode_t mode) {
    REAL(mkdir);
    return CHANGE_FAILS(name) ? fail(control->change_errno) : real(name, mode);
}

/* The wall clock. */

static void shift(struct timespec *now) {
    int64_t total_ns = now->tv_sec * 1000000000LL + now->tv_nsec + control->clock_offset_ns;
    now->tv_sec = total_ns / 1000000000LL;
    now->tv_nsec = total_ns % 1000000000LL;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && control->clock_offset_ns)
        shift(now);
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result)
        *result = exact.tv_sec;
    return exact.tv_sec;
}

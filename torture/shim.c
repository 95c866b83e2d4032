/* Between a process and its disk: fail the n-th write, or write down every step in order.

   Only what happens below one folder is looked at. Preloaded; see shim.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); \
    if (!real) real = dlsym(RTLD_NEXT, name)

static char below[PATH_MAX];
static int trace = -1, fail_with = 0, stays_full = 0;
static long fail_at = 0, writes = 0;

void torture_watch(const char *folder, int log, long nth, int error, int for_good) {
    strncpy(below, folder, sizeof below - 1);
    trace = log, fail_at = nth, fail_with = error, stays_full = for_good, writes = 0;
}

long torture_writes(void) { return writes; }

static int inside(const char *path) {
    return below[0] && path && strncmp(path, below, strlen(below)) == 0;
}

static int open_inside(int fd, char *path) {
    char link[64];
    if (!below[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return inside(path);
}

static int fails(void) {
    writes++;
    if (!fail_at || writes < fail_at || (writes > fail_at && !stays_full)) return 0;
    errno = fail_with;
    return 1;
}

static void note(char kind, const char *a, const char *b, int64_t offset, const void *data,
                 int64_t size) {
    if (trace < 0) return;
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    int32_t sizes[2] = {strlen(a), strlen(b)};
    struct iovec parts[] = {{&kind, 1}, {sizes, 8}, {&offset, 8}, {&size, 8},
                            {(void *)a, sizes[0]}, {(void *)b, sizes[1]},
                            {(void *)data, data ? size : 0}};
    int was = errno;
    real(trace, parts, 7);
    errno = was;
}

static int64_t place(int fd) {
    struct stat found;
    if ((fcntl(fd, F_GETFL) & O_APPEND) && fstat(fd, &found) == 0) return found.st_size;
    return lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    char path[PATH_MAX];
    if (fd == trace || !open_inside(fd, path)) return real(fd, data, size);
    if (fails()) return -1;
    int64_t offset = place(fd);
    ssize_t done = real(fd, data, size);
    if (done > 0) note('W', path, "", offset, data, done);
    return done;
}

static ssize_t at(ssize_t (*real)(int, const void *, size_t, off64_t), int fd, const void *data,
                  size_t size, off64_t offset) {
    char path[PATH_MAX];
    if (!open_inside(fd, path)) return real(fd, data, size, offset);
    if (fails()) return -1;
    ssize_t done = real(fd, data, size, offset);
    if (done > 0) note('W', path, "", offset, data, done);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off64_t);
    return at(real, fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return at(real, fd, data, size, offset);
}

static int synced(int (*real)(int), int fd) {
    char path[PATH_MAX];
    if (!open_inside(fd, path)) return real(fd);
    if (fails()) return -1;
    int done = real(fd);
    if (!done) note('S', path, "", 0, NULL, 0);
    return done;
}
int fsync(int fd) { REAL(int, "fsync", int); return synced(real, fd); }
int fdatasync(int fd) { REAL(int, "fdatasync", int); return synced(real, fd); }

static int cut(int (*real)(int, off64_t), int fd, off64_t size) {
    char path[PATH_MAX];
    int done = real(fd, size);
    if (!done && open_inside(fd, path)) note('T', path, "", size, NULL, 0);
    return done;
}
int ftruncate(int fd, off_t size) { REAL(int, "ftruncate", int, off64_t); return cut(real, fd, size); }
int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    return cut(real, fd, size);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    if (!inside(from)) return real(from, to);
    if (fails()) return -1;
    int done = real(from, to);
    if (!done) note('R', from, to, 0, NULL, 0);
    return done;
}
int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    int done = real(path);
    if (!done && inside(path)) note('U', path, "", 0, NULL, 0);
    return done;
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    if (inside(path) && fails()) return -1;
    int done = real(path, mode);
    if (!done && inside(path)) note('M', path, "", 0, NULL, 0);
    return done;
}

static int opened(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode) {
    struct stat found;
    int makes = (flags & O_CREAT) && inside(path) && stat(path, &found) != 0;
    if (makes && fails()) return -1;
    int fd = real(path, flags, mode);
    if (fd >= 0 && makes) note('C', path, "", 0, NULL, 0);
    if (fd >= 0 && !makes && (flags & O_TRUNC) && inside(path)) note('T', path, "", 0, NULL, 0);
    return fd;
}
#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        va_list more; va_start(more, flags); \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return opened(real, path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

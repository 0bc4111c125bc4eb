/* Lets an operation on files of one folder fail. Loaded by LD_PRELOAD; failing_disk_arm() starts to count. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long fails_at, counted;
static int failure;

/* From now on: the operation with this number, counted from 1, fails with `code`; with ENOSPC all later ones, too. */
void failing_disk_arm(const char *path, long number, int code) {
    strncpy(folder, path, sizeof folder - 1);
    fails_at = number;
    failure = code;
    counted = 0;
}

long failing_disk_counted(void) { return counted; }

static int fails(const char *path) {
    if (!folder[0] || strncmp(path, folder, strlen(folder))) return 0;
    counted++;
    if (!fails_at || counted < fails_at || (counted > fails_at && failure != ENOSPC)) return 0;
    errno = failure;
    return 1;
}

static int fails_fd(int fd) {
    char link[64], path[PATH_MAX];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return fails(path);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size) { REAL(write); return fails_fd(fd) ? -1 : real(fd, data, size); }
ssize_t writev(int fd, const struct iovec *parts, int n) { REAL(writev); return fails_fd(fd) ? -1 : real(fd, parts, n); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { REAL(pwrite); return fails_fd(fd) ? -1 : real(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { REAL(pwrite64); return fails_fd(fd) ? -1 : real(fd, data, size, at); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); return fails_fd(fd) ? -1 : real(fd, size); }
int fsync(int fd) { REAL(fsync); return fails_fd(fd) ? -1 : real(fd); }
int rename(const char *from, const char *to) { REAL(rename); return fails(to) ? -1 : real(from, to); }

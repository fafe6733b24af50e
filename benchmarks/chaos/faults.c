/* Faults that strace cannot make, because the call has to happen for them to be real: the Nth write
   writes less than it was asked, or the Nth close closes, and says that it failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

static long until;

void postroom_short_write_at(long number) { until = number; }

static long closes;
static int close_error;

void postroom_close_fails_at(long number, int error) { closes = number; close_error = error; }

int close(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "close");
    int result = real(fd);
    if (closes > 0 && --closes == 0) {
        errno = close_error;
        return -1;
    }
    return result;
}

static size_t cut(size_t size) {
    if (until > 0 && --until == 0 && size > 1) return size / 2;
    return size;
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    return real(fd, data, cut(size));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    return real(fd, data, cut(size), offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t (*real)(int, const struct iovec *, int) = dlsym(RTLD_NEXT, "writev");
    if (count > 0) {
        struct iovec first = parts[0];
        first.iov_len = cut(first.iov_len);
        if (first.iov_len != parts[0].iov_len) return real(fd, &first, 1);
    }
    return real(fd, parts, count);
}

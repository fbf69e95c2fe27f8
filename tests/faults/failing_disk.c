/* Loaded before the C library: writes to a store fail with EIO while the file is there that FAILING_DISK names. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd) {
    char link[64], name[4096];
    const char *flag = getenv("FAILING_DISK");
    if (!flag || access(flag, F_OK)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0) return 0;
    name[length] = 0;
    return strstr(name, "store.db") != NULL;
}
#define WRITES(name, offset) \
    ssize_t name(int fd, const void *data, size_t size, offset at) { \
        static ssize_t (*real)(int, const void *, size_t, offset); \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        if (fails(fd)) { errno = EIO; return -1; } \
        return real(fd, data, size, at); \
    }
#define SYNCS(name) \
    int name(int fd) { \
        static int (*real)(int); \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        if (fails(fd)) { errno = EIO; return -1; } \
        return real(fd); \
    }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)
SYNCS(fsync)
SYNCS(fdatasync)

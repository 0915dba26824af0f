/* A wall clock that a test sets: this preloaded library adds the nanoseconds in the file $SHMCAST_TEST_CLOCK to the wall clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("SHMCAST_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *map = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED)
        offset = map;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = time->tv_nsec + *offset % 1000000000;
        time->tv_sec += *offset / 1000000000 + ns / 1000000000;
        ns %= 1000000000;
        if (ns < 0) {
            ns += 1000000000;
            time->tv_sec -= 1;
        }
        time->tv_nsec = ns;
    }
    return result;
}

/* A preloaded library that shifts the time of day by the seconds in CLOCK_OFFSET_FILE. Durations and file times stay the
   same, as when somebody sets the clock. libfaketime does more, but breaks Python's time.sleep when it is configured to
   keep durations. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *offset_s;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset_s = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = syscall(SYS_clock_gettime, clock, now);
    if (!status && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset_s;
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int status = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return status;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

/* A wait until a time of day ends by the kernel's clock. A condition may go by the other clock, which counts from the
   start of the machine: those are small numbers. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec end = *until;
    if (end.tv_sec < 1000000000) return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &end);
    if (offset_s) end.tv_sec -= *offset_s;
    return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &end);
}

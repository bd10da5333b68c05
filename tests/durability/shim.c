/* A disk and a clock that fail when they are told to, for processes that are started with this in LD_PRELOAD.

   What is told is in a small file that all of them have mapped (HOURGLASS_SHIM_CONTROL; its layout is `struct control`, and
   `shim.py` knows the same). Files whose path begins with HOURGLASS_SHIM_PREFIX are the disk: what is written to them
   fails, waits or is torn; all other files and all sockets are left alone. What was written since the last fsync of a file is
   remembered with what it replaced: at a power cut some of its sectors are taken back before the process is killed, as a disk
   does that had them in its cache only.

   Must not know SQLite: it sees writes, syncs and truncations of files. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define FILES 64
enum { FULL, WRITE_ERROR, SYNC_ERROR, SLOW_SYNC, TORN_WRITE, POWER_CUT, KINDS };

struct control {
    _Atomic int64_t clock_offset_ns;
    _Atomic int64_t seed;
    _Atomic int64_t left[KINDS];   /* how often it shall still happen; FULL: whether; POWER_CUT: the number of the cut */
    _Atomic int64_t hits[KINDS];   /* how often it has happened */
    _Atomic int64_t synced_at[FILES]; /* by inode: when the last sync of a file began, whichever process asked for it */
};

#define FDS 4096
#define SECTOR 512

struct write { struct write *before; dev_t device; ino_t inode; char path[512]; off_t at, old_size; int64_t when; size_t size, kept; char old[]; };

static struct control *control;
static char prefix[512];
static unsigned char is_disk[FDS];
static char *paths[FDS];
static struct write *unsynced;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t watched;              /* the process that has a watcher */
static int64_t cuts_seen;
static unsigned random_state;

#define REAL(name) (real_##name ? real_##name : (real_##name = dlsym(RTLD_NEXT, #name)))
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_gettimeofday)(struct timeval *, void *);
static int (*real_open)(const char *, int, ...);
static int (*real_open64)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_openat64)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_ftruncate)(int, off_t);

static void child(void) {
    /* The parent's writes are the parent's to lose; its lock may have been held by a thread that is not here. */
    pthread_mutex_init(&lock, NULL);
    unsynced = NULL;
    watched = 0;
    if (control) cuts_seen = control->left[POWER_CUT];
}

__attribute__((constructor)) static void begin(void) {
    const char *place = getenv("HOURGLASS_SHIM_CONTROL"), *files = getenv("HOURGLASS_SHIM_PREFIX");
    if (!place || !files) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, place, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (found == MAP_FAILED) return;
    snprintf(prefix, sizeof prefix, "%s", files);
    control = found;
    cuts_seen = control->left[POWER_CUT];
    pthread_atfork(NULL, NULL, child);
}

static unsigned chance(void) { return (unsigned)rand_r(&random_state); }

static int takes(int kind) {
    int64_t left = control->left[kind];
    while (left > 0)
        if (atomic_compare_exchange_weak(&control->left[kind], &left, left - 1)) {
            control->hits[kind]++;
            return 1;
        }
    return 0;
}

/* --- the clock -------------------------------------------------------------------------------------------- */

int clock_gettime(clockid_t which, struct timespec *now) {
    int done = REAL(clock_gettime)(which, now);
    if (done == 0 && control && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + control->clock_offset_ns;
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return done;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    if (!control) return REAL(gettimeofday)(now, zone);
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (where) *where = found.tv_sec;
    return found.tv_sec;
}

/* --- which descriptors are the disk ------------------------------------------------------------------------- */

static int opened(int fd, const char *path) {
    size_t length = strlen(path);
    if (!control || fd < 0 || fd >= FDS || strncmp(path, prefix, strlen(prefix)) != 0) return fd;
    if (length > 5 && (!strcmp(path + length - 5, "-lock") || !strcmp(path + length - 4, "-shm"))) return fd;
    free(paths[fd]);
    paths[fd] = strdup(path);
    is_disk[fd] = 1;
    return fd;
}

#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *path, int flags, ...) { MODE(flags) return opened(REAL(open)(path, flags, mode), path); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(REAL(open64)(path, flags, mode), path); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(REAL(openat)(at, path, flags, mode), path); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(REAL(openat64)(at, path, flags, mode), path); }

int close(int fd) {
    if (fd >= 0 && fd < FDS) is_disk[fd] = 0;
    return REAL(close)(fd);
}

static int on_disk(int fd) { return control && fd >= 0 && fd < FDS && is_disk[fd]; }

/* --- a power cut ---------------------------------------------------------------------------------------------- */

static int64_t monotonic(void) {
    struct timespec now;
    REAL(clock_gettime)(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void take_back(struct write *one, unsigned manner) {
    struct stat now;
    if (one->when < control->synced_at[one->inode % FILES]) return; /* another process has synced it */
    int fd = (int)syscall(SYS_openat, AT_FDCWD, one->path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    if (fstat(fd, &now) == 0 && now.st_ino == one->inode && now.st_dev == one->device) {
        for (size_t place = 0; place < one->size; place += SECTOR) {
            char lost[SECTOR] = {0};
            size_t part = one->size - place < SECTOR ? one->size - place : SECTOR;
            if (manner == 1 && chance() % 2) continue; /* this sector had reached the disk */
            if (place < one->kept) memcpy(lost, one->old + place, one->kept - place < part ? one->kept - place : part);
            if (one->at + (off_t)place < now.st_size) syscall(SYS_pwrite64, fd, lost, part, one->at + place);
        }
        if (manner == 0 && one->old_size < now.st_size) syscall(SYS_ftruncate, fd, one->old_size);
    }
    syscall(SYS_close, fd);
}

static void *watch(void *nothing) {
    for (;;) {
        struct timespec pause = {0, 500000};
        nanosleep(&pause, NULL);
        int64_t cut = control->left[POWER_CUT];
        if (cut == cuts_seen) continue;
        pthread_mutex_lock(&lock);
        random_state = (unsigned)(control->seed + cut * 7919 + getpid());
        unsigned manner = chance() % 3; /* nothing of it had reached the disk, some sectors, or all of it */
        for (struct write *one = unsynced; one && manner < 2; one = one->before) take_back(one, manner);
        control->hits[POWER_CUT]++;
        kill(getpid(), SIGKILL);
    }
    return nothing;
}

static void be_watched(void) { /* the lock is held */
    pthread_t thread;
    if (watched == getpid()) return;
    watched = getpid();
    random_state = (unsigned)(control->seed + watched);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    if (pthread_create(&thread, NULL, watch, NULL) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void remember(int fd, size_t size, off_t at) { /* the lock is held */
    struct stat now;
    if (fstat(fd, &now) != 0) return;
    struct write *one = malloc(sizeof *one + size);
    if (!one) return;
    ssize_t kept = pread(fd, one->old, size, at);
    one->kept = kept > 0 ? (size_t)kept : 0;
    one->device = now.st_dev; one->inode = now.st_ino; one->old_size = now.st_size;
    one->at = at; one->size = size; one->before = unsynced; one->when = monotonic();
    snprintf(one->path, sizeof one->path, "%s", paths[fd]);
    unsynced = one;
}

static void forget(int fd, off_t from) { /* what was written to this file from there on is past losing */
    struct stat now;
    if (fstat(fd, &now) != 0) return;
    for (struct write **link = &unsynced; *link;) {
        struct write *one = *link;
        if (one->inode == now.st_ino && one->device == now.st_dev && one->at >= from) { *link = one->before; free(one); }
        else link = &one->before;
    }
}

/* --- the disk --------------------------------------------------------------------------------------------------- */

static ssize_t write_at(int fd, const void *data, size_t size, off_t at) {
    if (control->left[FULL]) { control->hits[FULL]++; errno = ENOSPC; return -1; }
    if (takes(WRITE_ERROR)) { errno = EIO; return -1; }
    pthread_mutex_lock(&lock);
    be_watched();
    if (size > 1 && takes(TORN_WRITE)) { /* some of it reaches the file, and the process dies */
        REAL(pwrite)(fd, data, 1 + chance() % (size - 1), at);
        kill(getpid(), SIGKILL);
    }
    remember(fd, size, at);
    ssize_t done = REAL(pwrite)(fd, data, size, at);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return on_disk(fd) ? write_at(fd, data, size, at) : REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return pwrite(fd, data, size, at); }

ssize_t write(int fd, const void *data, size_t size) {
    if (!on_disk(fd)) return REAL(write)(fd, data, size);
    off_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t done = write_at(fd, data, size, at);
    if (done > 0) lseek(fd, at + done, SEEK_SET);
    return done;
}

static int synced(int fd, int (*sync)(int)) {
    if (!on_disk(fd)) return sync(fd);
    if (control->left[FULL]) { control->hits[FULL]++; errno = ENOSPC; return -1; }
    if (takes(SYNC_ERROR)) { errno = EIO; return -1; }
    if (takes(SLOW_SYNC)) usleep(150000);
    struct stat now;
    pthread_mutex_lock(&lock);
    int64_t began = monotonic();
    int done = sync(fd);
    if (done == 0 && fstat(fd, &now) == 0) {
        control->synced_at[now.st_ino % FILES] = began;
        forget(fd, 0);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

static int truncated(int fd, off_t size) {
    if (!on_disk(fd)) return REAL(ftruncate)(fd, size);
    pthread_mutex_lock(&lock);
    int done = REAL(ftruncate)(fd, size);
    if (done == 0) forget(fd, size);
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncated(fd, size); }

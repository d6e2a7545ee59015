/* SPDX-License-Identifier: Apache-2.0 */
/* Device times: a pair of events around each launch, read later by a thread of ours.
 *
 *   pair:   free[device] -> begin: start recorded -> end: end recorded -> submit: queue of launches
 *           -> reader: both have happened -> free[device]. Cancelled pairs go straight back.
 *   entry:  free -> add: a record waits for its times in a launch's list -> reader: written -> free
 *
 * Rules towards the trainer: an error of its own that CUDA still holds is left alone (no timing
 * then), an error that we caused is taken back; nothing is recorded into a stream that is being
 * captured; the reader's queries run in relaxed capture mode, since in another thread's global
 * capture they would break it; nothing ever waits for the device.
 */
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "sched/status.h"
#include "shim/interpose/internal.h"
#include "shim/interpose/queue.h"

enum {
    DEVICES = 16,
    /* Both are powers of two. A host that is further ahead of the device than this many launches
     * gets no device times until the device has caught up. */
    PAIRS = 4096, /* per device */
    ENTRIES = 1 << 16,
    BLOCKED = 16, /* streams that a look skips when it has found them busy */
    NOT_READY = 600,
    CAPTURE_IMPLICIT = 906, /* cudaErrorStreamCaptureImplicit */
    CAPTURE_RELAXED = 2,
    NON_BLOCKING = 1, /* flag of a stream */
    BUSY_PAUSE_NS = 1000 * 1000,
    IDLE_PAUSE_NS = 20 * 1000 * 1000,
    LAST_LOOKS = 10, /* when the process ends */
    EXIT_PATIENCE_NS = 200 * 1000 * 1000
};
static const uint64_t ANCHOR_AGE_NS = 1000 * 1000 * 1000;

typedef struct pair {
    void *start, *end, *stream;
    int device;
    bool restore; /* begin changed the current device; end must too */
    int head;
} pair;

typedef struct entry {
    brg_rec rec; /* with the times of the call on the host */
    int next;
} entry;

/* Ties a device's clock to the host's: an event known to have happened between two readings. */
typedef struct anchor {
    void *stream, *events[2];
    int current; /* which event holds */
    uint64_t ns; /* 0: none yet */
} anchor;

static struct {
    _Atomic bool on;
    pair pairs[DEVICES * PAIRS];
    entry entries[ENTRIES];
    shim_queue free_pairs[DEVICES], free_entries, launches;
    _Atomic int made[DEVICES], entries_made;
    anchor anchors[DEVICES];
    int waiting[DEVICES * PAIRS], num_waiting; /* launches that the reader has seen; its own */
    pthread_mutex_t reader_lock;               /* held by whoever reads: never waited for */
    _Atomic bool started;
    sem_t stop;
    pthread_t thread;
} * timing;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool wanted = true, insisted;

static void settings_read(void)
{
    const char *text = getenv("BRIGADE_SHIM_TIMING");
    if (!text || !*text || !strcasecmp(text, "auto"))
        return;
    insisted = !strcasecmp(text, "events");
    wanted = insisted;
    if (!insisted && strcasecmp(text, "none") != 0)
        brg_log(BRG_LOG_WARN, "environment: BRIGADE_SHIM_TIMING=%s: expected auto, events or none",
                text);
}

static bool queue_make(shim_queue *queue, uint64_t capacity)
{
    queue->cells = calloc(capacity, sizeof *queue->cells);
    queue->mask = capacity - 1;
    return queue->cells != NULL;
}

static void pools_make(void)
{
    settings_read();
    if (!wanted)
        return;
    typeof(timing) fresh = calloc(1, sizeof *fresh);
    bool made = fresh && queue_make(&fresh->free_entries, ENTRIES) &&
                queue_make(&fresh->launches, DEVICES * PAIRS);
    for (int i = 0; i < DEVICES && made; i++)
        made = queue_make(&fresh->free_pairs[i], PAIRS);
    if (!made) {
        shim_complain("no memory for device times");
        return; /* what was allocated stays: this happens once */
    }
    pthread_mutex_init(&fresh->reader_lock, NULL);
    sem_init(&fresh->stop, 0, 0);
    timing = fresh;
}

void shim_timing_open(void)
{
    static atomic_flag settled = ATOMIC_FLAG_INIT;
    pthread_once(&once, pools_make);
    bool found = shim_runtime_load(insisted);
    if ((wanted && !found) || atomic_flag_test_and_set(&settled))
        return;
    if (timing)
        atomic_store(&timing->on, true);
    brg_ring_add_info(shim_ring, "timing", timing ? "events" : "none");
}

static bool ready(void)
{
    return atomic_load_explicit(&shim_rt_ready, memory_order_acquire);
}

/* Takes back an error that a call of ours has left. */
static void drain(void)
{
    if (shim_rt.last_error)
        shim_rt.last_error();
}

/* The next of `count` places that nobody had before; -1: there are no more. */
static int place_take(_Atomic int *made, int count)
{
    int place = atomic_load_explicit(made, memory_order_relaxed);
    do
        if (place == count)
            return -1;
    while (!atomic_compare_exchange_weak(made, &place, place + 1));
    return place;
}

static int pair_take(int device)
{
    int index = shim_queue_take(&timing->free_pairs[device]);
    if (index >= 0)
        return index;
    int place = place_take(&timing->made[device], PAIRS);
    if (place < 0) {
        static atomic_flag said = ATOMIC_FLAG_INIT;
        if (!atomic_flag_test_and_set(&said))
            brg_log(BRG_LOG_WARN,
                    "shim: %d collectives are under way on device %d: those that follow have no "
                    "device times until some have ended",
                    PAIRS, device);
        return -1;
    }
    pair *fresh = &timing->pairs[device * PAIRS + place];
    fresh->device = device;
    if (shim_rt.event_create(&fresh->start, 0) || shim_rt.event_create(&fresh->end, 0)) {
        drain();
        return -1; /* the place is lost; so is the device, most likely */
    }
    return device * PAIRS + place;
}

void shim_timing_cancel(int index)
{
    shim_queue_put(&timing->free_pairs[timing->pairs[index].device], index);
}

int shim_timing_begin(int device, void *stream, bool *captured)
{
    int current = -1, state = 0, index = -1;
    if (!ready() || (shim_rt.peek_error && shim_rt.peek_error()))
        return -1;
    int error = shim_rt.get_device(&current);
    bool elsewhere = !error && device >= 0 && device != current;
    if (elsewhere)
        error = shim_rt.set_device(device);
    if (!error)
        error = shim_rt.is_capturing(stream, &state);
    *captured = error == CAPTURE_IMPLICIT || (!error && state != 0);
    if (device < 0)
        device = current;
    if (!error && !*captured && timing && atomic_load_explicit(&timing->on, memory_order_relaxed) &&
        device >= 0 && device < DEVICES && (index = pair_take(device)) >= 0) {
        timing->pairs[index].restore = elsewhere;
        timing->pairs[index].stream = stream;
        error = shim_rt.event_record(timing->pairs[index].start, stream);
        if (error) {
            shim_timing_cancel(index);
            index = -1;
        }
    }
    if (error)
        drain();
    if (elsewhere)
        shim_rt.set_device(current);
    return index;
}

bool shim_timing_end(int index, void *stream)
{
    pair *p = &timing->pairs[index];
    int current = -1, error = shim_rt.peek_error ? shim_rt.peek_error() : 0;
    if (error) { /* NCCL's or the trainer's */
        shim_timing_cancel(index);
        return false;
    }
    if (p->restore) {
        error = shim_rt.get_device(&current);
        if (!error)
            error = shim_rt.set_device(p->device);
    }
    if (!error)
        error = shim_rt.event_record(p->end, stream);
    if (p->restore && current >= 0)
        shim_rt.set_device(current);
    if (error) {
        drain();
        shim_timing_cancel(index);
    }
    return !error;
}

bool shim_timing_add(int *head, const brg_rec *untimed)
{
    int index = shim_queue_take(&timing->free_entries);
    if (index < 0 && (index = place_take(&timing->entries_made, ENTRIES)) < 0)
        return false;
    timing->entries[index].rec = *untimed;
    timing->entries[index].next = *head;
    *head = index;
    return true;
}

/* Writes a launch's records, with their device times if there are any, in the order of the calls.
 */
static void launch_write(int index, uint64_t t0_ns, uint64_t t1_ns)
{
    int first = -1, at = timing->pairs[index].head;
    while (at >= 0) { /* the list was built from the front */
        int next = timing->entries[at].next;
        timing->entries[at].next = first;
        first = at;
        at = next;
    }
    for (at = first; at >= 0;) {
        entry *e = &timing->entries[at];
        int next = e->next;
        if (t1_ns) {
            brg_rec rec = e->rec;
            rec.t0_ns = t0_ns;
            rec.t1_ns = t1_ns;
            rec.flags &= (uint16_t)~BRG_REC_UNTIMED;
            brg_ring_put(shim_ring, &rec);
            e->rec.kind = BRG_REC_CALL;
            e->rec.flags = rec.flags;
        }
        brg_ring_put(shim_ring, &e->rec);
        shim_queue_put(&timing->free_entries, at);
        at = next;
    }
    shim_timing_cancel(index);
}

/* True if the launch is over, one way or the other. */
static bool launch_read(int index)
{
    pair *p = &timing->pairs[index];
    anchor *a = &timing->anchors[p->device];
    float since = 0, took = 0;
    int error = shim_rt.event_query(p->end);
    if (error)
        drain();
    if (error == NOT_READY || (!error && !a->ns))
        return false;
    if (!error)
        error = shim_rt.event_elapsed(&since, a->events[a->current], p->start);
    if (!error)
        error = shim_rt.event_elapsed(&took, p->start, p->end);
    if (error) {
        drain();
        launch_write(index, 0, 0);
        return true;
    }
    uint64_t t0 = a->ns + (uint64_t)(int64_t)((double)since * 1e6);
    uint64_t length = (uint64_t)((double)took * 1e6);
    launch_write(index, t0, t0 + (length ? length : 1));
    return true;
}

static bool event_await(void *event)
{
    enum { LOOKS = 2000 };
    for (int looks = 0; looks < LOOKS; looks++) {
        int error = shim_rt.event_query(event);
        if (!error)
            return true;
        drain();
        if (error != NOT_READY)
            return false;
        sched_yield();
    }
    return false;
}

/* The reader's thread only: it records into a stream of its own and looks until that is done. */
static void anchor_renew(int device)
{
    enum { TRIES = 3, GOOD_NS = 30 * 1000 };
    anchor *a = &timing->anchors[device];
    if (a->ns && brg_now_ns() - a->ns < ANCHOR_AGE_NS)
        return;
    if (shim_rt.set_device(device) ||
        (!a->stream &&
         (shim_rt.stream_create(&a->stream, NON_BLOCKING) ||
          shim_rt.event_create(&a->events[0], 0) || shim_rt.event_create(&a->events[1], 0)))) {
        drain();
        return;
    }
    void *event = a->events[!a->current];
    for (int i = 1; i <= TRIES; i++) {
        uint64_t before = brg_now_ns();
        if (shim_rt.event_record(event, a->stream) || !event_await(event)) {
            drain();
            return;
        }
        uint64_t after = brg_now_ns();
        if (after - before > GOOD_NS && i < TRIES)
            continue;
        a->current = !a->current;
        a->ns = before + (after - before) / 2;
        return;
    }
}

/* A stream's launches end in the order in which they were put there: behind one that is under way
 * there is nothing to ask for, and asking costs the driver's lock. */
typedef struct busy_streams {
    void *stream[BLOCKED];
    int device[BLOCKED], count;
} busy_streams;

static bool is_busy(const busy_streams *busy, const pair *p)
{
    for (int i = 0; i < busy->count; i++)
        if (busy->stream[i] == p->stream && busy->device[i] == p->device)
            return true;
    return false;
}

static void busy_add(busy_streams *busy, const pair *p)
{
    if (busy->count == BLOCKED)
        return;
    busy->stream[busy->count] = p->stream;
    busy->device[busy->count++] = p->device;
}

static void read_locked(bool own_thread)
{
    int index, kept = 0;
    busy_streams busy = {.count = 0};
    while ((index = shim_queue_take(&timing->launches)) >= 0)
        timing->waiting[timing->num_waiting++] = index;
    for (int i = 0; i < timing->num_waiting; i++) {
        index = timing->waiting[i];
        const pair *p = &timing->pairs[index];
        if (own_thread)
            anchor_renew(p->device);
        if (is_busy(&busy, p)) {
            timing->waiting[kept++] = index;
        } else if (!launch_read(index)) {
            timing->waiting[kept++] = index;
            busy_add(&busy, p);
        }
    }
    timing->num_waiting = kept;
}

void shim_timing_harvest(void)
{
    int mode = CAPTURE_RELAXED;
    if (!shim_on() || !ready() || !timing || !atomic_load(&timing->started) ||
        (shim_rt.peek_error && shim_rt.peek_error()) || pthread_mutex_trylock(&timing->reader_lock))
        return;
    if (!shim_rt.exchange_capture_mode(&mode)) {
        read_locked(false);
        shim_rt.exchange_capture_mode(&mode);
    } else {
        drain();
    }
    pthread_mutex_unlock(&timing->reader_lock);
}

static struct timespec in_future(long ns)
{
    enum { SECOND = 1000 * 1000 * 1000 };
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += ns;
    at.tv_sec += at.tv_nsec / SECOND;
    at.tv_nsec %= SECOND;
    return at;
}

/* Waits for the next look; true if the process ends. */
static bool stopped(bool busy)
{
    const struct timespec until = in_future(busy ? BUSY_PAUSE_NS : IDLE_PAUSE_NS);
    return !sem_timedwait(&timing->stop, &until);
}

static void *reader(void *unused)
{
    int mode = CAPTURE_RELAXED;
    if (shim_rt.exchange_capture_mode(&mode))
        drain();
    int looks_left = LAST_LOOKS;
    bool last = false;
    while (looks_left) {
        bool busy = true;
        if (!pthread_mutex_trylock(&timing->reader_lock)) {
            read_locked(true);
            busy = timing->num_waiting > 0;
            pthread_mutex_unlock(&timing->reader_lock);
        }
        shim_kernels_flush();
        if (last)
            looks_left = busy ? looks_left - 1 : 0;
        if (last && looks_left)
            nanosleep(&(struct timespec){.tv_nsec = BUSY_PAUSE_NS}, NULL);
        last = last || stopped(busy);
    }
    return NULL;
}

/* Runs before CUDA's own end, which was set up earlier. The reader looks a few times more; what is
 * still under way then is written without device times. */
static void at_exit(void)
{
    if (!shim_on())
        return;
    sem_post(&timing->stop);
    const struct timespec until = in_future(EXIT_PATIENCE_NS);
    if (pthread_timedjoin_np(timing->thread, NULL, &until))
        return; /* it hangs in CUDA; nothing of ours may touch its list */
    int index;
    while ((index = shim_queue_take(&timing->launches)) >= 0)
        timing->waiting[timing->num_waiting++] = index;
    for (int i = 0; i < timing->num_waiting; i++)
        launch_write(timing->waiting[i], 0, 0);
    timing->num_waiting = 0;
}

/* With all signals blocked: they are the trainer's. */
static void reader_start(void)
{
    sigset_t all, before;
    bool started = false;
    if (atomic_exchange(&timing->started, true))
        return;
    sigfillset(&all);
    if (!pthread_sigmask(SIG_SETMASK, &all, &before)) {
        started = !pthread_create(&timing->thread, NULL, reader, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (started) {
        pthread_setname_np(timing->thread, "brigade-shim");
        atexit(at_exit);
    } else {
        atomic_store(&timing->on, false);
        shim_complain("cannot start a thread; there are no device times");
    }
}

void shim_timing_submit(int index, int head)
{
    timing->pairs[index].head = head;
    if (!shim_queue_put(&timing->launches, index))
        launch_write(index, 0, 0);
    if (!atomic_load_explicit(&timing->started, memory_order_relaxed))
        reader_start();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels, from CUPTI's activity records, when BRIGADE_SHIM_KERNELS=cupti asks for them.
 *
 * CUPTI fills buffers of ours and hands them back, on a thread of its own or in a flush: once a
 * second on the thread that reads events, and when the process ends. Kernels of a stream that
 * follow each other closely become one record, or the ring would hold a few steps only.
 *
 * CUPTI has one pair of callbacks. A profiler in the program (torch.profiler) that registers its
 * own later has the buffers from then on: there are no kernels of later steps, which the reader
 * notices step by step. Buffers of one that was there before come to us, and are left alone.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "brigade/context.h"
#include "sched/status.h"
#include "shim/interpose/cupti.h"
#include "shim/interpose/internal.h"

enum {
    BUFFERS = 64,
    BUFFER_BYTES = 1 << 20,
    BUFFER_ALIGN = 8,
    RUNS = 32,              /* streams whose kernels are joined, in one buffer */
    GAP_NS = 2000,          /* kernels that are further apart stay apart */
    RUN_NS = 100 * 1000,    /* no longer by joining than this */
    DEVICE_STREAMS = 10000, /* numbers for the streams of a device */
    NAME_BYTES = 128,
    CAPTURE_RELAXED = 2
};
static const uint64_t FLUSH_PERIOD_NS = 1000 * 1000 * 1000;

typedef struct pool_buffer {
    _Atomic(uint8_t *) memory; /* NULL until it is needed first */
    _Atomic bool taken;        /* CUPTI has it */
} pool_buffer;

static shim_cupti cupti;
static _Atomic bool on;
static pool_buffer pool[BUFFERS];
static _Atomic int64_t to_monotonic_ns; /* what CUPTI's clock is behind */
static _Atomic uint64_t kernels_seen;
static atomic_flag flushing = ATOMIC_FLAG_INIT;
static uint64_t last_flush_ns; /* of whoever flushes */

bool shim_kernels_wanted(void)
{
    const char *text = getenv("BRIGADE_SHIM_KERNELS");
    return text && !strcasecmp(text, "cupti");
}

/* ---- From activities to records ---- */

/* Kernels of one stream as one record. */
typedef struct run {
    brg_rec rec;
    uint64_t longest_ns; /* whose name it has */
} run;

typedef struct runs {
    run at[RUNS];
    int count;
} runs;

/* The qualified name out of a mangled one, without template arguments and parameters: they can be
 * thousands of characters. Other names are taken as they are. */
static void name_shorten(const char *name, char out[NAME_BYTES])
{
    size_t used = 0;
    const char *at = name;
    out[0] = 0;
    if (!strncmp(at, "_Z", 2)) {
        at += 2;
        if (*at == 'N')
            at++;
        while (*at && strchr("KVrL", *at))
            at++;
        if (!strncmp(at, "St", 2))
            at += 2;
        while (*at >= '1' && *at <= '9') {
            char *part;
            size_t length = strtoul(at, &part, 10);
            if (length > strlen(part))
                break;
            if (strncmp(part, "_GLOBAL__N_", 11) != 0) /* of a namespace without a name */
                used += (size_t)snprintf(out + used, NAME_BYTES - used, "%s%.*s", used ? "::" : "",
                                         (int)length, part);
            if (used >= NAME_BYTES)
                return;
            at = part + length;
            if (name[2] != 'N')
                break;
        }
    }
    if (!used)
        snprintf(out, NAME_BYTES, "%s", name);
}

static bool is_nccl(const char *name)
{
    static const char *const begins[] = {"ncclDevKernel", "ncclKernel", "ncclSymk"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (!strncmp(name, begins[i], strlen(begins[i])))
            return true;
    return false;
}

static bool run_join(run *r, const brg_rec *rec)
{
    uint64_t end = rec->t1_ns > r->rec.t1_ns ? rec->t1_ns : r->rec.t1_ns;
    uint64_t length = rec->t1_ns - rec->t0_ns;
    if (rec->t0_ns < r->rec.t0_ns || rec->t0_ns > r->rec.t1_ns + GAP_NS ||
        end - r->rec.t0_ns > RUN_NS)
        return false;
    r->rec.t1_ns = end;
    r->rec.bytes++;
    if (length > r->longest_ns) {
        r->longest_ns = length;
        r->rec.aux = rec->aux;
    }
    return true;
}

static void runs_add(runs *all, const brg_rec *rec)
{
    int i = 0;
    while (i < all->count && all->at[i].rec.stream != rec->stream)
        i++;
    if (i < all->count && run_join(&all->at[i], rec))
        return;
    if (i < all->count)
        brg_ring_put(shim_ring, &all->at[i].rec);
    else if (all->count < RUNS)
        all->count++;
    else
        i = -1;
    if (i < 0)
        brg_ring_put(shim_ring, rec);
    else
        all->at[i] = (run){.rec = *rec, .longest_ns = rec->t1_ns - rec->t0_ns};
}

static void kernel_see(runs *all, const cupti_kernel *kernel)
{
    char name[NAME_BYTES];
    if (!kernel->start || kernel->end < kernel->start) {
        brg_ring_drop(shim_ring, 1);
        return;
    }
    name_shorten(kernel->name ? kernel->name : "?", name);
    uint64_t shift = (uint64_t)atomic_load_explicit(&to_monotonic_ns, memory_order_relaxed);
    brg_rec rec = {.t0_ns = kernel->start + shift,
                   .t1_ns = kernel->end + shift,
                   .bytes = 1,
                   .bucket = BRG_NO_BUCKET,
                   .stream =
                       (kernel->device + 1) * DEVICE_STREAMS + kernel->stream % DEVICE_STREAMS,
                   .aux = brg_ring_add_name(shim_ring, name)};
    atomic_fetch_add_explicit(&kernels_seen, 1, memory_order_relaxed);
    if (is_nccl(name)) {
        rec.kind = BRG_REC_NCCL_KERNEL;
        brg_ring_put(shim_ring, &rec);
    } else {
        rec.kind = BRG_REC_COMPUTE;
        rec.flags = BRG_COMPUTE_OTHER;
        runs_add(all, &rec);
    }
}

static void buffer_read(uint8_t *buffer, size_t valid)
{
    runs all = {.count = 0};
    cupti_record *record = NULL;
    size_t dropped = 0;
    while (!cupti.cuptiActivityGetNextRecord(buffer, valid, &record)) {
        const cupti_kernel *kernel = record;
        if (kernel->kind == CUPTI_KIND_CONCURRENT_KERNEL)
            kernel_see(&all, kernel);
    }
    for (int i = 0; i < all.count; i++)
        brg_ring_put(shim_ring, &all.at[i].rec);
    if (!cupti.cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped) && dropped)
        brg_ring_drop(shim_ring, dropped);
}

/* ---- Buffers ---- */

/* In the middle of a launch. Without a buffer CUPTI drops records, and counts them. */
static void requested(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = NULL;
    *size = 0;
    *max_records = 0; /* as many as fit */
    for (int i = 0; i < BUFFERS && shim_on(); i++) {
        if (atomic_exchange(&pool[i].taken, true))
            continue;
        uint8_t *memory = atomic_load(&pool[i].memory);
        if (!memory) {
            memory = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
            atomic_store(&pool[i].memory, memory);
        }
        if (!memory) {
            atomic_store(&pool[i].taken, false);
            return;
        }
        *buffer = memory;
        *size = BUFFER_BYTES;
        return;
    }
}

static void completed(cupti_context context, uint32_t stream, uint8_t *buffer, size_t size,
                      size_t valid)
{
    int i = 0;
    while (i < BUFFERS && atomic_load(&pool[i].memory) != buffer)
        i++;
    if (i == BUFFERS || !buffer)
        return;
    if (shim_on() && valid)
        buffer_read(buffer, valid);
    atomic_store(&pool[i].taken, false);
}

/* ---- Begin, flush, end ---- */

/* CUPTI's clock is CLOCK_REALTIME, or what another user of CUPTI has set. */
static bool clock_read(void)
{
    enum { TRIES = 5 };
    uint64_t best = UINT64_MAX, cupti_ns;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before = brg_now_ns();
        if (cupti.cuptiGetTimestamp(&cupti_ns))
            return false;
        uint64_t took = brg_now_ns() - before;
        if (took >= best)
            continue;
        best = took;
        atomic_store(&to_monotonic_ns, (int64_t)(before + took / 2 - cupti_ns));
    }
    return true;
}

/* One at a time: who comes while another is at it, or hangs in it, goes on. */
static void flush(uint32_t flag)
{
    if (atomic_flag_test_and_set(&flushing))
        return;
    last_flush_ns = brg_now_ns();
    clock_read();
    cupti.cuptiActivityFlushAll(flag);
    atomic_flag_clear(&flushing);
}

void shim_kernels_flush(void)
{
    if (atomic_load_explicit(&on, memory_order_acquire) && shim_on() &&
        brg_now_ns() - last_flush_ns >= FLUSH_PERIOD_NS)
        flush(0);
}

static void give_up(const char *why)
{
    brg_log(BRG_LOG_WARN, "shim: no kernels are recorded: %s", why);
    brg_ring_add_info(shim_ring, "kernels_missing", why);
}

static void at_exit(void)
{
    if (!shim_on())
        return;
    flush(CUPTI_FLUSH_FORCED);
    if (!atomic_load(&kernels_seen))
        give_up("CUPTI delivered none; a profiler in the program may have them");
}

static bool call_failed(cupti_result result, const char *name, char *why, size_t why_bytes)
{
    const char *text = NULL;
    if (!result)
        return false;
    if (cupti.cuptiGetResultString(result, &text) || !text)
        text = "unknown error";
    snprintf(why, why_bytes, "%s: %s (%d)", name, text, result);
    return true;
}

static bool begin(char *why, size_t why_bytes)
{
    if (!shim_cupti_load(&cupti, why, why_bytes))
        return false;
    if (!clock_read()) {
        snprintf(why, why_bytes, "%s: cuptiGetTimestamp fails", cupti.path);
        return false;
    }
    last_flush_ns = brg_now_ns();
    return !call_failed(cupti.cuptiActivityRegisterCallbacks(requested, completed),
                        "cuptiActivityRegisterCallbacks", why, why_bytes) &&
           !call_failed(cupti.cuptiActivityEnable(CUPTI_KIND_CONCURRENT_KERNEL),
                        "cuptiActivityEnable", why, why_bytes) &&
           !atexit(at_exit);
}

void shim_kernels_open(void)
{
    static atomic_flag settled = ATOMIC_FLAG_INIT;
    char text[1024] = "cannot register an exit handler";
    int mode = CAPTURE_RELAXED;
    if (!atomic_load(&shim_rt_ready) || atomic_flag_test_and_set(&settled))
        return;
    if (!shim_kernels_wanted()) {
        const char *value = getenv("BRIGADE_SHIM_KERNELS");
        if (value && *value && strcasecmp(value, "none") != 0)
            brg_log(BRG_LOG_WARN, "environment: BRIGADE_SHIM_KERNELS=%s: expected cupti or none",
                    value);
        return;
    }
    /* What CUPTI allocates would break a capture under way in another thread. */
    bool relaxed = !shim_rt.exchange_capture_mode(&mode);
    bool begun = begin(text, sizeof text);
    if (relaxed)
        shim_rt.exchange_capture_mode(&mode);
    if (!begun) {
        give_up(text);
        return;
    }
    snprintf(text, sizeof text, "cupti %" PRIu32 " %s", cupti.version, cupti.path);
    brg_ring_add_info(shim_ring, "kernels", text);
    brg_log(BRG_LOG_INFO, "shim: kernels from %s", text);
    atomic_store_explicit(&on, true, memory_order_release);
}

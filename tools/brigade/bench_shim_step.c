/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/bench_shim_step.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "sched/trace/ring.h"
#include "shim/interpose/nccl_api.h"
#include "tools/brigade/bench.h"

enum {
    RANKS = 2,
    BLOCK = BENCH_SHIM_BLOCK, /* steps: longer than the 20 ms after which the shim's reader looks
                                 again */
    ELEMS = 16 * 1024,        /* of a bucket */
    PASSES = 64,              /* of a bucket's computation: about 0.2 ms */
    NON_BLOCKING = 1,         /* flag of a stream */
    NO_TIMING = 2             /* flag of an event */
};

typedef struct functions {
    typeof(int(void **, size_t)) *allocate;
    typeof(int(cudaStream_t *, unsigned)) *stream_create;
    typeof(int(cudaStream_t)) *synchronize;
    typeof(int(void **, unsigned)) *event_create;
    typeof(int(void *, cudaStream_t)) *event_record;
    typeof(int(cudaStream_t, void *, unsigned)) *wait;
    typeof(ncclResult_t(ncclUniqueId *)) *unique_id;
    typeof(ncclResult_t(ncclComm_t *, int, ncclUniqueId, int)) *init;
    typeof(ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                        cudaStream_t)) *all_reduce[2]; /* past the shim, through it */
    typeof(ncclResult_t(ncclComm_t)) *destroy;
} functions;

typedef struct rank {
    const functions *f;
    ncclUniqueId id;
    int rank, pairs, error;
    double *blocks[2]; /* of each pair: past the shim, through it */
    pthread_t thread;
} rank;

typedef struct job {
    ncclComm_t comm;
    cudaStream_t compute, comms;
    void *ready, *reduced;
    float *grads;
} job;

static bool look_up(void *host, void *shim, functions *f)
{
    const struct {
        void **slot;
        void *library;
        const char *name;
    } entries[] = {
#define E(member, library, name) {(void **)(void *)&f->member, library, name}
        E(allocate, host, "cudaMalloc"),
        E(stream_create, host, "cudaStreamCreateWithFlags"),
        E(synchronize, host, "cudaStreamSynchronize"),
        E(event_create, host, "cudaEventCreateWithFlags"),
        E(event_record, host, "cudaEventRecord"),
        E(wait, host, "cudaStreamWaitEvent"),
        E(unique_id, shim, "ncclGetUniqueId"),
        E(init, shim, "ncclCommInitRank"),
        E(all_reduce[0], host, "pncclAllReduce"),
        E(all_reduce[1], shim, "ncclAllReduce"),
        E(destroy, shim, "ncclCommDestroy"),
#undef E
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!(*entries[i].slot = dlsym(entries[i].library, entries[i].name)))
            return false;
    return true;
}

static int job_open(const rank *r, job *j)
{
    const functions *f = r->f;
    int error = f->init(&j->comm, RANKS, r->id, r->rank);
    error = error ? error : f->stream_create(&j->compute, NON_BLOCKING);
    error = error ? error : f->stream_create(&j->comms, NON_BLOCKING);
    error = error ? error : f->event_create(&j->ready, NO_TIMING);
    error = error ? error : f->event_create(&j->reduced, NO_TIMING);
    void *memory = NULL;
    error =
        error ? error : f->allocate(&memory, sizeof(float) * BENCH_SHIM_BUCKETS * (size_t)ELEMS);
    j->grads = memory;
    return error;
}

static void backward(float *grads)
{
    for (int pass = 0; pass < PASSES; pass++)
        for (int i = 0; i < ELEMS; i++)
            grads[i] = grads[i] * 0.999f + 0.001f;
}

static int step(const functions *f, const job *j, bool traced)
{
    int error = 0;
    for (int bucket = BENCH_SHIM_BUCKETS - 1; bucket >= 0 && !error; bucket--) {
        float *grads = j->grads + (size_t)bucket * ELEMS;
        backward(grads); /* the host engine's device memory is the host's */
        error = f->event_record(j->ready, j->compute);
        error = error ? error : f->wait(j->comms, j->ready, 0);
        error = error ? error
                      : (int)f->all_reduce[traced](grads, grads, ELEMS, ncclFloat32, ncclAvg,
                                                   j->comm, j->comms);
    }
    error = error ? error : f->event_record(j->reduced, j->comms);
    error = error ? error : f->wait(j->compute, j->reduced, 0);
    return error ? error : f->synchronize(j->compute);
}

/* The median of a step of a block. */
static int block(const functions *f, const job *j, bool traced, double *median_ns)
{
    double ns[BLOCK];
    int error = 0;
    for (int i = 0; i < BLOCK && !error; i++) {
        uint64_t begin = brg_now_ns();
        error = step(f, j, traced);
        ns[i] = (double)(brg_now_ns() - begin);
    }
    *median_ns = error ? 0 : bench_median(ns, BLOCK);
    return error;
}

static void *rank_run(void *arg)
{
    rank *r = arg;
    job j = {0};
    double warmup_ns;
    r->error = job_open(r, &j);
    for (int traced = 0; traced < 2 && !r->error; traced++)
        r->error = block(r->f, &j, traced, &warmup_ns);
    for (int i = 0; i < 2 * r->pairs && !r->error; i++) {
        bool traced = bench_shim_turn(i);
        r->error = block(r->f, &j, traced, &r->blocks[traced][i / 2]);
    }
    if (!r->error)
        r->error = r->f->destroy(j.comm);
    return NULL; /* streams, events and memory go with the process */
}

/* The interval of the median: the order statistics that the binomial distribution gives, by its
 * normal approximation. */
void bench_shim_summarise(double *plain, double *traced, int n, bench_shim_steps *out)
{
    int below = (int)((n - 1.96 * sqrt(n)) / 2);
    double ratios[BENCH_SHIM_MAX_PAIRS];
    for (int i = 0; i < n; i++)
        ratios[i] = traced[i] / plain[i];
    out->plain_ns = bench_median(plain, n);
    out->traced_ns = bench_median(traced, n);
    out->ratio = bench_median(ratios, n); /* and sorts */
    below = below > 0 ? below - 1 : 0;
    out->low = ratios[below];
    out->high = ratios[n - 1 - below];
}

bool bench_shim_steps_run(const char *host, const char *shim, int pairs, bench_shim_steps *out)
{
    functions f;
    rank ranks[RANKS];
    double *blocks = calloc((size_t)(2 * RANKS * pairs), sizeof *blocks);
    void *engine = dlopen(host, RTLD_NOW | RTLD_GLOBAL);
    void *library = dlopen(shim, RTLD_NOW | RTLD_LOCAL);
    ncclUniqueId id;
    if (!engine || !library)
        fprintf(stderr, "brigade bench shim: %s\n", dlerror());
    if (!blocks || !engine || !library || !look_up(engine, library, &f) || f.unique_id(&id))
        return false;
    for (int i = 0; i < RANKS; i++) {
        double *own = blocks + 2 * i * pairs;
        ranks[i] =
            (rank){.f = &f, .id = id, .rank = i, .pairs = pairs, .blocks = {own, own + pairs}};
        if (pthread_create(&ranks[i].thread, NULL, rank_run, &ranks[i]))
            return false; /* this process ends */
    }
    int error = 0;
    for (int i = 0; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
        error = error ? error : ranks[i].error;
    }
    if (!error)
        bench_shim_summarise(ranks[0].blocks[0], ranks[0].blocks[1], pairs, out);
    free(blocks);
    return !error;
}

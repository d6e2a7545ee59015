/* SPDX-License-Identifier: Apache-2.0 */
/* What we know of each communicator, beside NCCL's own handle, which passes through untouched.
 *
 * A hash table with open addressing, read without a lock. NCCL frees a handle's memory in destroy
 * and abort and may hand it out again at once, so an entry leaves the table before that; the next
 * communicator at that address is a new entry with a new id. Entries are never freed: a call under
 * way may still hold one, and they are small.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "shim/interpose/internal.h"

enum { SLOTS = 8192, MOST = SLOTS / 2 };

static struct {
    _Atomic uintptr_t handle; /* 0: never used, GONE: used once */
    _Atomic(shim_comm *) comm;
} slots[SLOTS];
#define GONE ((uintptr_t)1)
static int num_live;
static uint32_t last_id;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t shim_hash(uint64_t seed, const void *bytes, size_t count)
{
    uint64_t hash = UINT64_C(14695981039346656037) ^ seed;
    for (const unsigned char *at = bytes; count; count--)
        hash = (hash ^ *at++) * UINT64_C(1099511628211);
    return hash ? hash : 1;
}

static size_t slot_of(uintptr_t handle)
{
    return (handle >> 4 ^ handle >> 17) % SLOTS;
}

shim_comm *shim_comm_find(ncclComm_t handle)
{
    uintptr_t key = (uintptr_t)handle;
    for (size_t i = 0, at = slot_of(key); i < SLOTS; i++, at = (at + 1) % SLOTS) {
        uintptr_t there = atomic_load_explicit(&slots[at].handle, memory_order_acquire);
        if (there == key)
            return atomic_load_explicit(&slots[at].comm, memory_order_acquire);
        if (!there)
            return NULL;
    }
    return NULL;
}

static bool insert_locked(uintptr_t key, shim_comm *comm)
{
    size_t free_at = SLOTS;
    for (size_t i = 0, at = slot_of(key); i < SLOTS; i++, at = (at + 1) % SLOTS) {
        uintptr_t there = atomic_load_explicit(&slots[at].handle, memory_order_relaxed);
        if (there == key) {
            atomic_store_explicit(&slots[at].comm, comm, memory_order_release);
            return true;
        }
        if (free_at == SLOTS && (!there || there == GONE))
            free_at = at;
        if (!there)
            break;
    }
    if (free_at == SLOTS || num_live == MOST)
        return false;
    atomic_store_explicit(&slots[free_at].comm, comm, memory_order_relaxed);
    atomic_store_explicit(&slots[free_at].handle, key, memory_order_release);
    num_live++;
    return true;
}

/* Asks NCCL for what is missing, and describes the communicator in the trace once all is known. A
 * communicator in the making does not answer; it is asked again when it is used. */
static void complete(const shim_real *real, ncclComm_t handle, shim_comm *comm)
{
    int size = comm->size, rank = comm->rank, device = comm->device;
    shim_inside++;
    if (size < 0 && real->fn.ncclCommCount && real->fn.ncclCommCount(handle, &size) == ncclSuccess)
        comm->size = size;
    if (rank < 0 && real->fn.ncclCommUserRank &&
        real->fn.ncclCommUserRank(handle, &rank) == ncclSuccess)
        comm->rank = rank;
    if (device < 0 && real->fn.ncclCommCuDevice &&
        real->fn.ncclCommCuDevice(handle, &device) == ncclSuccess)
        comm->device = device;
    shim_inside--;
    bool known = comm->size >= 0 && comm->rank >= 0;
    if (!known || atomic_exchange(&comm->described, true))
        return;
    char key[32], text[200];
    snprintf(key, sizeof key, "comm %u", comm->id);
    snprintf(text, sizeof text,
             "hash=%016" PRIx64 " size=%d rank=%d device=%d parent=%u how=%s blocking=%d",
             comm->hash, comm->size, comm->rank, comm->device, comm->parent, comm->how,
             comm->blocking);
    brg_ring_add_info(shim_ring, key, text);
}

static shim_comm *add(ncclComm_t handle, const shim_comm *made)
{
    shim_comm *comm = calloc(1, sizeof *comm);
    bool in = false;
    if (comm) {
        *comm = *made;
        pthread_mutex_lock(&lock);
        comm->id = last_id + 1;
        in = insert_locked((uintptr_t)handle, comm);
        last_id += in;
        pthread_mutex_unlock(&lock);
    }
    if (in)
        return comm;
    free(comm);
    shim_complain("no room for more communicators; their collectives are not recorded");
    return NULL;
}

void shim_comm_add(const shim_real *real, ncclComm_t handle, const shim_comm *made, bool ready)
{
    shim_comm *comm = add(handle, made);
    if (comm && ready)
        complete(real, handle, comm);
}

shim_comm *shim_comm_of(const shim_real *real, ncclComm_t handle)
{
    static const shim_comm unseen = {
        .size = -1, .rank = -1, .device = -1, .blocking = true, .how = "unseen"};
    if (!handle)
        return NULL;
    shim_comm *comm = shim_comm_find(handle);
    if (!comm)
        comm = add(handle, &unseen);
    if (comm && !atomic_load_explicit(&comm->described, memory_order_relaxed))
        complete(real, handle, comm);
    return comm;
}

void shim_comm_retire(ncclComm_t handle, const char *how)
{
    uintptr_t key = (uintptr_t)handle;
    shim_comm *comm = NULL;
    if (!shim_on() || !handle)
        return;
    pthread_mutex_lock(&lock);
    for (size_t i = 0, at = slot_of(key); i < SLOTS; i++, at = (at + 1) % SLOTS) {
        uintptr_t there = atomic_load_explicit(&slots[at].handle, memory_order_relaxed);
        if (!there)
            break;
        if (there != key)
            continue;
        comm = atomic_load_explicit(&slots[at].comm, memory_order_relaxed);
        atomic_store_explicit(&slots[at].handle, GONE, memory_order_release);
        num_live--;
        break;
    }
    pthread_mutex_unlock(&lock);
    if (!comm)
        return;
    char key_text[32];
    snprintf(key_text, sizeof key_text, "comm %u end", comm->id);
    brg_ring_add_info(shim_ring, key_text, how);
}

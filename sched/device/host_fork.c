/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child has its parent's memory but none of its threads. It must neither use the parent's
 * streams and communicators nor write to memory that it shares with the parent and its peers. */
#include "sched/device/host_comm.h"
#include "sched/device/host_internal.h"

_Atomic uint32_t host_generation;
pthread_mutex_t host_engine_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t host_pool_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t host_segment_lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void)
{
    pthread_mutex_lock(&host_segment_lock);
    pthread_mutex_lock(&host_engine_lock);
    pthread_mutex_lock(&host_pool_lock);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&host_pool_lock);
    pthread_mutex_unlock(&host_engine_lock);
    pthread_mutex_unlock(&host_segment_lock);
}

static void after_fork_child(void)
{
    atomic_fetch_add(&host_generation, 1);
    host_stream_fork_child();
    host_arena_fork_child();
    host_peer_fork_child();
    host_segment_fork_child();
    after_fork_parent();
}

static void install(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

void host_fork_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

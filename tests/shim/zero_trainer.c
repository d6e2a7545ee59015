/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallel with sharded optimizer state: two buckets of two layers each, whose reduce-scatters
 * go out in one NCCL group at the end of backward, and whose all-gathers go out in one group after
 * the update. Usage: zero_trainer [STEPS]. Prints the last loss and a hash of the weights on rank
 * 0. */
#include "trainer.h"

#define BUCKETS 2

int main(int argc, char **argv)
{
    job j;
    model m;
    float loss = 0;
    job_open(&j, argc, argv);
    model_init(&m, &j, 48);
    size_t bucket = LAYERS / BUCKETS * m.elems, shard = bucket / (size_t)j.ranks;
    size_t mine = shard * (size_t)j.rank, bytes = LAYERS * m.elems * sizeof(float);
    if (bucket % (size_t)j.ranks) {
        fprintf(stderr, "%d ranks cannot share %zu elements equally\n", j.ranks, bucket);
        return 1;
    }
    for (int step = 0; step < j.steps; step++) {
        loss = model_forward(&m);
        for (int l = LAYERS - 1; l >= 0; l--)
            model_backward(&m, l);
        CHECK_CUDA(cudaMemcpyAsync(m.device, m.grads, bytes, cudaMemcpyHostToDevice, j.compute));
        CHECK_CUDA(cudaEventRecord(j.ready, j.compute));
        CHECK_CUDA(cudaStreamWaitEvent(j.comms, j.ready, 0));
        CHECK_NCCL(ncclGroupStart());
        for (int b = BUCKETS - 1; b >= 0; b--) {
            float *at = m.device + (size_t)b * bucket;
            CHECK_NCCL(
                ncclReduceScatter(at, at + mine, shard, ncclFloat, ncclAvg, j.comm, j.comms));
        }
        CHECK_NCCL(ncclGroupEnd());
        CHECK_CUDA(cudaMemcpyAsync(m.grads, m.device, bytes, cudaMemcpyDeviceToHost, j.comms));
        CHECK_CUDA(cudaStreamSynchronize(j.comms));
        for (int b = 0; b < BUCKETS; b++)
            for (size_t i = mine; i < mine + shard; i++)
                m.host[(size_t)b * bucket + i] -= 0.5f * m.grads[(size_t)b * bucket + i];
        CHECK_CUDA(cudaMemcpyAsync(m.device, m.host, bytes, cudaMemcpyHostToDevice, j.comms));
        CHECK_NCCL(ncclGroupStart());
        for (int b = 0; b < BUCKETS; b++) {
            float *at = m.device + (size_t)b * bucket;
            CHECK_NCCL(ncclAllGather(at + mine, at, shard, ncclFloat, j.comm, j.comms));
        }
        CHECK_NCCL(ncclGroupEnd());
        CHECK_CUDA(cudaMemcpyAsync(m.host, m.device, bytes, cudaMemcpyDeviceToHost, j.comms));
        CHECK_CUDA(cudaStreamSynchronize(j.comms));
    }
    if (j.rank == 0)
        printf("loss %.6f weights %016llx\n", loss, model_hash(&m));
    job_close(&j);
    model_free(&m);
    return 0;
}

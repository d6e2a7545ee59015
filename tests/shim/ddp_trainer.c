/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallel as DistributedDataParallel does it: one all-reduce a bucket (here: a layer), as
 * soon as backward has made it, on a stream of its own. Usage: ddp_trainer [STEPS]. Prints the last
 * loss and a hash of the weights on rank 0. */
#include "trainer.h"

int main(int argc, char **argv)
{
    job j;
    model m;
    float loss = 0;
    job_open(&j, argc, argv);
    model_init(&m, &j, 48);
    for (int step = 0; step < j.steps; step++) {
        loss = model_forward(&m);
        for (int l = LAYERS - 1; l >= 0; l--) {
            float *device = m.device + (size_t)l * m.elems, *grads = m.grads + (size_t)l * m.elems;
            size_t bytes = m.elems * sizeof(float);
            model_backward(&m, l);
            CHECK_CUDA(cudaMemcpyAsync(device, grads, bytes, cudaMemcpyHostToDevice, j.compute));
            CHECK_CUDA(cudaEventRecord(j.ready, j.compute));
            CHECK_CUDA(cudaStreamWaitEvent(j.comms, j.ready, 0));
            CHECK_NCCL(ncclAllReduce(device, device, m.elems, ncclFloat, ncclAvg, j.comm, j.comms));
        }
        CHECK_CUDA(cudaEventRecord(j.reduced, j.comms));
        CHECK_CUDA(cudaStreamWaitEvent(j.compute, j.reduced, 0));
        CHECK_CUDA(cudaMemcpyAsync(m.grads, m.device, LAYERS * m.elems * sizeof(float),
                                   cudaMemcpyDeviceToHost, j.compute));
        CHECK_CUDA(cudaStreamSynchronize(j.compute));
        for (size_t i = 0; i < LAYERS * m.elems; i++)
            m.host[i] -= 0.5f * m.grads[i];
    }
    if (j.rank == 0)
        printf("loss %.6f weights %016llx\n", loss, model_hash(&m));
    job_close(&j);
    model_free(&m);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the two test trainers share: ranks, a model of a few dense layers, its gradients. They know
 * NCCL and the CUDA runtime, and nothing of Brigade; the arithmetic is on the host, the data that
 * is communicated in device memory, so that they run on a GPU as well. */
#ifndef TESTS_SHIM_TRAINER_H
#define TESTS_SHIM_TRAINER_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 4
#define BATCH 8

typedef struct model {
    int width;       /* every layer is width x width */
    size_t elems;    /* of one layer */
    float *host;     /* LAYERS * elems: weights, on the host */
    float *grads;    /* the same: gradients, page-locked */
    float *device;   /* the same in device memory: what is reduced and gathered */
    float *acts;     /* (LAYERS + 1) * BATCH * width */
    float *back[2];  /* BATCH * width each */
    unsigned random; /* of this rank's data */
} model;

typedef struct job {
    int rank, ranks, steps;
    ncclComm_t comm;
    cudaStream_t compute, comms;
    cudaEvent_t ready, reduced;
} job;

#define CHECK_CUDA(call)                                                                           \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(error_));                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_NCCL(call)                                                                           \
    do {                                                                                           \
        ncclResult_t result_ = (call);                                                             \
        if (result_ != ncclSuccess) {                                                              \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    ncclGetErrorString(result_));                                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* RANK, WORLD_SIZE, LOCAL_RANK and, for the unique id, the file named by NCCL_ID_FILE. STEPS from
 * the first argument. */
void job_open(job *j, int argc, char **argv);
void job_close(job *j);

void model_init(model *m, const job *j, int width);
void model_free(model *m);
/* A forward pass on fresh data of this rank; returns the loss. */
float model_forward(model *m);
/* The gradient of one layer, from the last to the first. */
void model_backward(model *m, int layer);
/* FNV-1a over the weights' bytes. */
unsigned long long model_hash(const model *m);

#endif

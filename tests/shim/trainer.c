/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"

#include <unistd.h>

static int env_int(const char *name, int fallback)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : fallback;
}

/* Rank 0 writes the id beside its final name and renames it; the others wait for that. */
static ncclUniqueId share_id(const job *j)
{
    const char *path = getenv("NCCL_ID_FILE");
    ncclUniqueId id;
    if (j->rank == 0)
        CHECK_NCCL(ncclGetUniqueId(&id));
    if (j->ranks == 1)
        return id;
    char temporary[4096];
    if (!path || snprintf(temporary, sizeof temporary, "%s.new", path) >= (int)sizeof temporary) {
        fprintf(stderr, "NCCL_ID_FILE is not set or too long\n");
        exit(1);
    }
    if (j->rank == 0) {
        FILE *file = fopen(temporary, "wb");
        if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 ||
            rename(temporary, path) != 0) {
            perror(path);
            exit(1);
        }
        return id;
    }
    for (int tries = 0; tries < 6000; tries++) {
        FILE *file = fopen(path, "rb");
        if (file) {
            size_t got = fread(&id, sizeof id, 1, file);
            fclose(file);
            if (got == 1)
                return id;
        }
        usleep(10000);
    }
    fprintf(stderr, "%s did not appear\n", path);
    exit(1);
}

void job_open(job *j, int argc, char **argv)
{
    int devices = 0, least = 0, greatest = 0;
    memset(j, 0, sizeof *j);
    j->rank = env_int("RANK", 0);
    j->ranks = env_int("WORLD_SIZE", 1);
    j->steps = argc > 1 ? atoi(argv[1]) : 6;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    CHECK_CUDA(cudaSetDevice(env_int("LOCAL_RANK", j->rank) % devices));
    CHECK_NCCL(ncclCommInitRank(&j->comm, j->ranks, share_id(j), j->rank));
    CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK_CUDA(cudaStreamCreateWithFlags(&j->compute, cudaStreamNonBlocking));
    CHECK_CUDA(cudaStreamCreateWithPriority(&j->comms, cudaStreamNonBlocking, greatest));
    CHECK_CUDA(cudaEventCreateWithFlags(&j->ready, cudaEventDisableTiming));
    CHECK_CUDA(cudaEventCreateWithFlags(&j->reduced, cudaEventDisableTiming));
}

void job_close(job *j)
{
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_NCCL(ncclCommDestroy(j->comm));
    CHECK_CUDA(cudaEventDestroy(j->ready));
    CHECK_CUDA(cudaEventDestroy(j->reduced));
    CHECK_CUDA(cudaStreamDestroy(j->compute));
    CHECK_CUDA(cudaStreamDestroy(j->comms));
}

static float uniform(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 24) - 0.5f;
}

void model_init(model *m, const job *j, int width)
{
    unsigned weights = 12345;
    m->width = width;
    m->elems = (size_t)width * (size_t)width;
    size_t all = LAYERS * m->elems;
    m->host = malloc(all * sizeof(float));
    m->acts = malloc((LAYERS + 1) * BATCH * (size_t)width * sizeof(float));
    for (int i = 0; i < 2; i++)
        m->back[i] = malloc(BATCH * (size_t)width * sizeof(float));
    CHECK_CUDA(cudaMallocHost((void **)&m->grads, all * sizeof(float)));
    CHECK_CUDA(cudaMalloc((void **)&m->device, all * sizeof(float)));
    for (size_t i = 0; i < all; i++)
        m->host[i] = uniform(&weights) * 0.3f;
    m->random = 777u + 13u * (unsigned)j->rank;
}

void model_free(model *m)
{
    free(m->host);
    free(m->acts);
    for (int i = 0; i < 2; i++)
        free(m->back[i]);
    CHECK_CUDA(cudaFreeHost(m->grads));
    CHECK_CUDA(cudaFree(m->device));
}

/* The target of every example is its input. */
float model_forward(model *m)
{
    int w = m->width;
    float loss = 0;
    for (int i = 0; i < BATCH * w; i++)
        m->acts[i] = uniform(&m->random);
    for (int l = 0; l < LAYERS; l++) {
        const float *in = m->acts + (size_t)l * BATCH * (size_t)w, *weight = m->host + l * m->elems;
        float *out = m->acts + (size_t)(l + 1) * BATCH * (size_t)w;
        for (int b = 0; b < BATCH; b++)
            for (int o = 0; o < w; o++) {
                float sum = in[b * w + o];
                for (int i = 0; i < w; i++)
                    sum += weight[o * w + i] * in[b * w + i];
                out[b * w + o] = sum;
            }
    }
    const float *result = m->acts + (size_t)LAYERS * BATCH * (size_t)w;
    for (int i = 0; i < BATCH * w; i++) {
        float difference = result[i] - m->acts[i];
        loss += difference * difference;
        m->back[0][i] = 2.0f * difference / (float)(BATCH * w);
    }
    return loss / (float)(BATCH * w);
}

void model_backward(model *m, int layer)
{
    int w = m->width;
    const float *in = m->acts + (size_t)layer * BATCH * (size_t)w;
    const float *weight = m->host + (size_t)layer * m->elems, *back = m->back[0];
    float *grad = m->grads + (size_t)layer * m->elems;
    for (int o = 0; o < w; o++)
        for (int i = 0; i < w; i++) {
            float sum = 0;
            for (int b = 0; b < BATCH; b++)
                sum += back[b * w + o] * in[b * w + i];
            grad[o * w + i] = sum;
        }
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < w; i++) {
            float sum = back[b * w + i];
            for (int o = 0; o < w; o++)
                sum += back[b * w + o] * weight[o * w + i];
            m->back[1][b * w + i] = sum;
        }
    float *swap = m->back[0];
    m->back[0] = m->back[1];
    m->back[1] = swap;
}

unsigned long long model_hash(const model *m)
{
    unsigned long long hash = 14695981039346656037ull;
    const unsigned char *bytes = (const unsigned char *)m->host;
    for (size_t i = 0; i < LAYERS * m->elems * sizeof(float); i++)
        hash = (hash ^ bytes[i]) * 1099511628211ull;
    return hash;
}

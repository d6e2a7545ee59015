/* SPDX-License-Identifier: Apache-2.0 */
/* The variables by which a launcher tells a process its place in the job. */
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tools/brigade/doctor.h"

#define CHECK "ranks"
#define FIX "start the job with brigade run, torchrun or mpirun, or correct the variable"

typedef struct number {
    const char *name;
    long min, max;
    long value; /* -1: not set or no such number */
} number;

static bool number_read(doctor *d, number *n)
{
    const char *text = getenv(n->name);
    char *end;
    n->value = -1;
    if (!text || !*text)
        return true;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (!errno && !*end && value >= n->min && value <= n->max) {
        n->value = value;
        return true;
    }
    doctor_note(d, CHECK, DOCTOR_FAIL, FIX, "%s=%s: expected a number from %ld to %ld", n->name,
                text, n->min, n->max);
    return false;
}

static bool below_check(doctor *d, const number *index, const number *count)
{
    if (index->value < 0 || count->value < 0 || index->value < count->value)
        return true;
    doctor_note(d, CHECK, DOCTOR_FAIL, FIX, "%s=%ld: %s=%ld, so that it ends at %ld", index->name,
                index->value, count->name, count->value, count->value - 1);
    return false;
}

/* As rank 0's peers look it up. */
static bool address_check(doctor *d)
{
    const char *address = getenv("MASTER_ADDR");
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    if (!address || !*address)
        return true;
    int error = getaddrinfo(address, NULL, &hints, &list);
    if (!error) {
        freeaddrinfo(list);
        return true;
    }
    doctor_note(d, CHECK, DOCTOR_FAIL,
                "name the host or address of rank 0, without a port (that is MASTER_PORT)",
                "MASTER_ADDR=%s: %s", address, gai_strerror(error));
    return false;
}

void doctor_ranks(doctor *d)
{
    enum { RANK, WORLD, LOCAL_RANK, LOCAL_WORLD, PORT, NNUMBERS };
    number n[NNUMBERS] = {[RANK] = {"RANK", 0, INT_MAX - 1, -1},
                          [WORLD] = {"WORLD_SIZE", 1, INT_MAX, -1},
                          [LOCAL_RANK] = {"LOCAL_RANK", 0, INT_MAX - 1, -1},
                          [LOCAL_WORLD] = {"LOCAL_WORLD_SIZE", 1, INT_MAX, -1},
                          [PORT] = {"MASTER_PORT", 1, 65535, -1}};
    bool good = true;
    for (int i = 0; i < NNUMBERS; i++)
        good &= number_read(d, &n[i]);
    good &= below_check(d, &n[RANK], &n[WORLD]) & below_check(d, &n[LOCAL_RANK], &n[LOCAL_WORLD]) &
            address_check(d);
    const char *rank = getenv("RANK");
    if (n[WORLD].value > 1 && (!rank || !*rank)) {
        doctor_note(d, CHECK, DOCTOR_FAIL, FIX, "WORLD_SIZE=%ld, but RANK is not set",
                    n[WORLD].value);
        good = false;
    }
    const char *world = getenv("WORLD_SIZE");
    if (n[RANK].value > 0 && (!world || !*world)) {
        doctor_note(d, CHECK, DOCTOR_FAIL, FIX, "RANK=%ld, but WORLD_SIZE is not set",
                    n[RANK].value);
        good = false;
    }
    if (n[LOCAL_WORLD].value > n[WORLD].value && n[WORLD].value > 0) {
        doctor_note(d, CHECK, DOCTOR_FAIL, FIX, "LOCAL_WORLD_SIZE=%ld, but WORLD_SIZE=%ld",
                    n[LOCAL_WORLD].value, n[WORLD].value);
        good = false;
    }
    if (good && n[WORLD].value > 0)
        doctor_note(d, CHECK, DOCTOR_PASS, NULL, "RANK %ld of WORLD_SIZE %ld",
                    n[RANK].value < 0 ? 0 : n[RANK].value, n[WORLD].value);
    else if (good)
        doctor_note(d, CHECK, DOCTOR_PASS, NULL, "WORLD_SIZE is not set: a single rank");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Values of NCCL's variables that NCCL would refuse or not act on, read by the rules of its
 * src/graph/tuning.cc, src/debug.cc and src/misc/socket.cc. */
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "tools/brigade/doctor.h"

#define CHECK "NCCL variables"
#define FIX "correct the value, or unset the variable"
enum { STRICT_SINCE = 22400 }; /* refuses what it does not know, takes COLLECTIVE:LIST;... */

static const char *const algorithms[] = {"Tree", "Ring",     "CollNetDirect", "CollNetChain",
                                         "NVLS", "NVLSTree", "PAT",           NULL};
static const char *const protocols[] = {"LL", "LL128", "Simple", NULL};
static const char *const collectives[] = {"Broadcast",     "Reduce",    "AllGather",
                                          "ReduceScatter", "AllReduce", NULL};
static const char *const levels[] = {"VERSION", "WARN", "INFO", "ABORT", "TRACE", NULL};

/* A variable's value, and where NCCL finds it. */
typedef struct given {
    const char *name, *value, *where;
} given;

static bool is_one_of(const char *const *words, const char *word)
{
    for (; *words; words++)
        if (!strcasecmp(*words, word))
            return true;
    return false;
}

static void unknown_note(doctor *d, const given *g, doctor_state state, const char *effect,
                         const char *word, const char *const *words)
{
    char all[128] = "";
    for (const char *const *at = words; *at; at++) {
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", used ? ", " : "", *at);
    }
    doctor_note(d, CHECK, state, FIX, "%s=%s in %s: '%s' is none of %s%s", g->name, g->value,
                g->where, word, all, effect);
}

/* "LIST" or "^LIST" (all but those), its words apart by commas; false after a note. */
static bool words_check(doctor *d, const given *g, doctor_state state, char *list,
                        const char *const *words)
{
    char *rest = NULL;
    list += *list == '^';
    for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (is_one_of(words, word))
            continue;
        unknown_note(d, g, state, state == DOCTOR_FAIL ? "" : "; this NCCL ignores it", word,
                     words);
        return false;
    }
    return true;
}

/* "LIST", which may only be the first, or "COLLECTIVE:LIST"; false after a note. */
static bool part_check(doctor *d, const given *g, doctor_state state, char *part, bool first,
                       const char *const *words)
{
    char *colon = strchr(part, ':');
    if (colon)
        *colon = 0;
    if (!colon || !colon[1]) { /* of "reduce:" NCCL takes the collective for the list */
        if (first)
            return words_check(d, g, state, part, words);
        doctor_note(d, CHECK, state, "write COLLECTIVE:LIST after a semicolon",
                    "%s=%s in %s: '%s' names no collective", g->name, g->value, g->where, part);
        return false;
    }
    if (state == DOCTOR_WARN) {
        doctor_note(d, CHECK, state, "install NCCL 2.24 or later, or name one list for all",
                    "%s=%s in %s: this NCCL does not know COLLECTIVE:LIST, and ignores it", g->name,
                    g->value, g->where);
        return false;
    }
    if (is_one_of(collectives, part))
        return words_check(d, g, state, colon + 1, words);
    unknown_note(d, g, state, "", part, collectives);
    return false;
}

/* "[LIST][;COLLECTIVE:LIST]..." */
static void choice_check(doctor *d, const given *g, const char *const *words)
{
    int version = d->ncopies ? d->copies[0].version : 0;
    doctor_state state = version && version < STRICT_SINCE ? DOCTOR_WARN : DOCTOR_FAIL;
    char *copy = strdup(g->value), *rest = NULL, *part = copy ? strtok_r(copy, ";", &rest) : NULL;
    bool first = true;
    d->no_memory |= !copy;
    for (; part && part_check(d, g, state, part, first, words); first = false)
        part = strtok_r(NULL, ";", &rest);
    free(copy);
}

static void debug_check(doctor *d, const given *g)
{
    if (!is_one_of(levels, g->value))
        unknown_note(d, g, DOCTOR_WARN, "; NCCL says nothing", g->value, levels);
}

/* What NCCL can talk through: interfaces with an address. */
static bool is_usable(const struct ifaddrs *at)
{
    if (!at->ifa_addr || !at->ifa_name)
        return false;
    if (at->ifa_addr->sa_family != AF_INET6)
        return at->ifa_addr->sa_family == AF_INET;
    const struct sockaddr_in6 *address = (const void *)at->ifa_addr;
    return !IN6_IS_ADDR_LOOPBACK(&address->sin6_addr);
}

static bool name_fits(const char *name, const char *wanted, bool exact)
{
    size_t length = strcspn(wanted, ":,"); /* a port may follow */
    return !strncmp(name, wanted, length) && (!exact || !name[length]);
}

/* Whether an interface with an address is in the list, or is in none of it for `without`. */
static bool any_fits(const struct ifaddrs *all, const char *list, bool exact, bool without)
{
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        bool fits = false;
        for (const char *word = list; *word && !fits; word += *word == ',') {
            fits = *word != ',' && name_fits(at->ifa_name, word, exact);
            word += strcspn(word, ",");
        }
        if (is_usable(at) && fits != without)
            return true;
    }
    return false;
}

/* The names of those with an address, each once. */
static void interfaces_list(const struct ifaddrs *all, char *text, size_t size)
{
    text[0] = 0;
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        bool told = !is_usable(at);
        for (const struct ifaddrs *before = all; before != at && !told; before = before->ifa_next)
            told = is_usable(before) && !strcmp(before->ifa_name, at->ifa_name);
        size_t used = strlen(text);
        if (!told)
            snprintf(text + used, size - used, "%s%s", used ? ", " : "", at->ifa_name);
    }
}

/* "[^][=]NAME,...": interfaces whose names begin so, or are so (=); all but those (^). */
static void interfaces_check(doctor *d, const given *g)
{
    char there[512];
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all))
        return;
    bool without = *g->value == '^', exact = g->value[without] == '=';
    char *list = strdup(g->value + without + exact), *rest = NULL;
    interfaces_list(all, there, sizeof there);
    if (list && !any_fits(all, list, exact, without)) {
        doctor_note(d, CHECK, DOCTOR_FAIL, FIX,
                    "%s=%s in %s: no network interface fits; those with an address are %s", g->name,
                    g->value, g->where, *there ? there : "none");
    } else if (list && !without) {
        for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
            if (!any_fits(all, word, exact, false))
                doctor_note(d, CHECK, DOCTOR_WARN, FIX,
                            "%s=%s in %s: no network interface fits '%s'; those with an address "
                            "are %s",
                            g->name, g->value, g->where, word, there);
    }
    d->no_memory |= !list;
    free(list);
    freeifaddrs(all);
}

void doctor_nccl_values(doctor *d)
{
    static const char *const names[] = {"NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG",
                                        "NCCL_SOCKET_IFNAME"};
    size_t before = d->count, set = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        given g = {.name = names[i]};
        g.value = doctor_nccl_value(d, g.name, &g.where);
        if (!g.value || !*g.value)
            continue;
        set++;
        if (i < 2)
            choice_check(d, &g, i ? protocols : algorithms);
        else if (i == 2)
            debug_check(d, &g);
        else
            interfaces_check(d, &g);
    }
    if (d->count == before)
        doctor_note(d, CHECK, DOCTOR_PASS, NULL,
                    "%zu of NCCL_ALGO, _PROTO, _DEBUG, _SOCKET_IFNAME "
                    "set%s",
                    set, set ? ", with values that NCCL knows" : "");
}

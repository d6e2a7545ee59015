/* SPDX-License-Identifier: Apache-2.0 */
/* Running a program under libbrigade-shim and reading what was recorded. */
#ifndef TESTS_SHIM_INTERPOSE_H
#define TESTS_SHIM_INTERPOSE_H

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sched/trace/reader.h"
#include "tests/brigade/command.h"

/* What a rank recorded; `there` is false if there is no file. */
struct Trace {
    bool there = false, closed = false;
    uint64_t drops = 0;
    std::vector<brg_rec> collectives, calls, kernels;
    std::vector<std::string> names;
    std::vector<std::pair<std::string, std::string>> infos;

    explicit Trace(const std::string &path)
    {
        brg_trace *trace = nullptr;
        if (brg_trace_open(path.c_str(), &trace) != BRG_OK)
            return;
        there = true;
        closed = trace->closed;
        drops = brg_trace_lost(trace);
        for (size_t i = 0; i < trace->nrecs; i++) {
            if (trace->recs[i].kind == BRG_REC_COLLECTIVE)
                collectives.push_back(trace->recs[i]);
            if (trace->recs[i].kind == BRG_REC_CALL)
                calls.push_back(trace->recs[i]);
            if (trace->recs[i].kind == BRG_REC_COMPUTE ||
                trace->recs[i].kind == BRG_REC_NCCL_KERNEL)
                kernels.push_back(trace->recs[i]);
        }
        for (size_t i = 0; i < trace->nnames; i++)
            names.emplace_back(brg_trace_name(trace, i));
        for (size_t i = 0; i < trace->ninfos; i++)
            infos.emplace_back(trace->infos[i].key, trace->infos[i].value);
        brg_trace_close(trace);
    }
    std::string info(const std::string &key) const
    {
        for (const auto &entry : infos)
            if (entry.first == key)
                return entry.second;
        return "";
    }
    /* Recorded collectives by their bytes, which the scenarios make unique. */
    const brg_rec *of_bytes(uint64_t bytes) const
    {
        for (const brg_rec &rec : collectives)
            if (rec.bytes == bytes)
                return &rec;
        return nullptr;
    }
};

#endif

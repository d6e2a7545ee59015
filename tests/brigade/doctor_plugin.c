/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for a profiler plugin of two interface versions; only its symbols are looked at. */
extern const int ncclProfiler_v4, ncclProfiler_v5;
const int ncclProfiler_v4 = 4, ncclProfiler_v5 = 5;

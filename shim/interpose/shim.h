/* SPDX-License-Identifier: Apache-2.0 */
/* libbrigade-shim: NCCL's names in front of NCCL.
 *
 * What it records, in BRIGADE_TRACE/rank-N.ring, from the process's first communicator on. Ring
 * info "source" = "shim"; "timing" = "events" or "none"; "nccl" = version and file of each copy
 * seen.
 *
 * BRG_REC_COLLECTIVE, one per operation (a group of n operations gives n records):
 *   func      brg_func; ncclBcast is BROADCAST, ncclPutSignal is PUT; ncclSignal and ncclWaitSignal
 *             move no data and are not recorded
 *   bytes     all ranks' data: ALL_REDUCE, BROADCAST, REDUCE, SEND, RECV, PUT: count * size;
 *             REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, GATHER, SCATTER: count * size * ranks
 *   dtype     brg_dtype; BRG_NO_DTYPE (255) for types that Brigade does not know (fp8)
 *   comm      1, 2, ... in the order in which this process made or first used communicators; never
 *             used twice, also when NCCL reuses the pointer
 *   step      number of the operation on its communicator: 0, 1, 2, ... in the order of the calls.
 *             Steps are the reader's business. The same on all ranks for collectives (not for
 *             SEND, RECV, PUT, which are counted apart, in a sequence of their own)
 *   stream    1, 2, ... per stream handle, in order of first use
 *   bucket    BRG_NO_BUCKET
 *   aux       device address: what is sent for reductions, SEND, PUT, SCATTER; what is received for
 *             ALL_GATHER, BROADCAST, RECV, ALL_TO_ALL, GATHER
 *   t0, t1    begin and end on the device's stream (CLOCK_MONOTONIC). All operations that one group
 *             launches on one stream carry the same times. With BRG_REC_UNTIMED: the call on the
 *             host, in a group up to the return of the last ncclGroupEnd
 *   channel_first, channel_count   low and high byte of the number of the group call (1, 2, ...,
 * per process, modulo 65536, 0 left out); 0: not in a group flags     BRG_REC_GROUPED: in a group
 * with others. BRG_REC_UNTIMED. BRG_REC_CAPTURED (always with UNTIMED). BRG_REC_USER_OP
 *
 * BRG_REC_CALL, one for each BRG_REC_COLLECTIVE that has device times, written right after it:
 *   the same, but t0, t1 are the call on the host as described for BRG_REC_UNTIMED.
 *
 * BRG_REC_COMPUTE and BRG_REC_NCCL_KERNEL, with BRIGADE_SHIM_KERNELS=cupti: kernels by CUPTI's
 * activity records, the trainer's (flags = BRG_COMPUTE_OTHER) and NCCL's
 *   t0, t1    CUPTI's times, on CLOCK_MONOTONIC
 *   stream    10000 * (device + 1) + CUPTI's number of the stream: not the numbers above
 *   aux       id of the name: qualified, without template arguments and parameters
 *   bytes     how many kernels it stands for. Kernels of the trainer on one stream that are at most
 *             2 us apart are one record of up to 100 us, with the name of the longest
 * Ring info "kernels" = "cupti VERSION FILE" when they are recorded, "kernels_missing" = why not.
 *
 * The order of records in the ring is that in which they were finished, not that of the calls.
 *
 * Ring info "comm N" describes communicator N:
 *   "hash=H size=S rank=R device=D parent=P how=init|split|shrink|grow|unseen blocking=0|1"
 *   hash is the same on all ranks of a communicator, and 0 when the shim cannot know it; parent is
 * 0 for none. It is written once size and rank are known: for a non-blocking communicator, when it
 *   is first used.
 * Ring info "comm N end" = "destroy|abort": the time is not recorded.
 */
#ifndef BRIGADE_SHIM_INTERPOSE_SHIM_H
#define BRIGADE_SHIM_INTERPOSE_SHIM_H

enum { BRG_NO_DTYPE = 255 };

#endif

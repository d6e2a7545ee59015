# SPDX-License-Identifier: Apache-2.0
"""What the peers of `brigade bench` share: the protocol of tools/brigade/bench_peer.h, and timing."""
import json
import os
import sys
import time


def serve(make):
    """make() returns names and a function item -> times in us (None: not measured)."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print goes to standard error

    def say(**what):
        answers.write(json.dumps(what) + "\n")

    try:
        names, measure = make()
    except Exception as error:  # whatever is missing, the benchmark goes on without its peer
        say(unavailable=f"{type(error).__name__}: {error}")
        return
    say(peers=names)
    for line in sys.stdin:
        say(us=measure(int(line)))


def timed(device, function):
    """Time in us, by events on the current stream where there is one."""
    import torch

    if device == "cpu":
        begin = time.perf_counter()
        function()
        return (time.perf_counter() - begin) * 1e6
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3

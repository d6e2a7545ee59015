# SPDX-License-Identifier: Apache-2.0
"""The data-parallel step that `brigade bench shim` runs under the shim and without it: the model of
check_shim.py under DistributedDataParallel, one rank for each GPU, so large that the GPU and not
the host sets the pace. Asked for a number of steps, answers with the time of one of them, the mean.
It is started once with the shim and once without."""
import atexit
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

from bench_peer import serve, timed

OPTIONS = SimpleNamespace(mode="ddp", width=2048, length=1024, bucket_mb=25)


def start_others(world):
    """The ranks beside this one; they are sent what this one is asked."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            sys.argv, executable=sys.executable, env=os.environ | {"RANK": str(rank)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for rank in range(1, world)
    ]


def average(_, bucket):
    """Averages, since one rank's sum is no work at all for NCCL: events around nothing would be
    timed, on a stream that otherwise never reaches the GPU's front end (15 us each)."""
    import torch.distributed as dist

    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def make():
    import torch
    from check_shim import batch_of, loss_of, make_model

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU")
    rank = int(os.environ.setdefault("RANK", "0"))
    others = start_others(torch.cuda.device_count()) if rank == 0 else []

    def end():
        for other in others:
            other.stdin.close()
        torch.distributed.destroy_process_group()

    atexit.register(end)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl")
    model = make_model(OPTIONS, device)
    model.register_comm_hook(None, average)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    inputs, targets = batch_of(OPTIONS, rank, 0, device)

    def run(steps):
        for _ in range(steps):
            loss_of(model, inputs, targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    def measure(steps):
        for other in others:
            other.stdin.write(f"{steps}\n")
            other.stdin.flush()
        return [timed("cuda", lambda: run(steps)) / steps]

    run(3)  # DDP changes its buckets after the first
    return [f"torch {torch.__version__}, {torch.cuda.device_count()} GPU"], measure


serve(make)

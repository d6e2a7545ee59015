# SPDX-License-Identifier: Apache-2.0
"""A trainer in plain PyTorch, which knows nothing of Brigade, for the tests of the shim.

  brigade run -n 2 -o trace -- python3 check_shim.py --mode ddp --profile

Every rank prints one line of JSON: a hash of its final parameters, the losses, and with --profile
what torch's own profiler saw: collectives in the order of their issue, and NCCL's kernels with
their times. Everything is deterministic: two runs with the same options print the same hash.

With --share-gpu all ranks run on the first GPU: NCCL refuses that for ranks of one host, so each
rank says that it is a host of its own, and NCCL talks over sockets on the loopback interface. The
ranks' kernels take turns on the GPU then, so that times mean little.
"""
import argparse
import contextlib
import ctypes
import datetime
import hashlib
import json
import os
import re
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

LAYERS = 12
HEAD_WIDTH = 64
BATCH = 4
WARMUP_STEPS = 3  # of a step that is captured, as torch.cuda.graph wants it

# What record_param_comms calls them, and the parts of the names of NCCL's kernels.
KINDS = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "allgather": "all_gather",
    "all_gather": "all_gather",  # of a list of tensors
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
}
KERNELS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
}
KERNEL_NAME = re.compile(r"nccl(?:Symk?)?(?:Dev)?Kernel_([A-Za-z]+)")


class Block(nn.Module):
    """Attention and a feed-forward layer, in operations that CUDA does deterministically."""

    def __init__(self, width):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, -1, HEAD_WIDTH)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-2, -1) / HEAD_WIDTH**0.5).masked_fill(future, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(LAYERS))
        self.head = nn.Linear(width, width)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch_of(options, rank, step, device):
    """Inputs and targets, different for every rank and step."""
    generator = torch.Generator().manual_seed(1000003 * step + rank)
    shape = (2, BATCH, options.length, options.width)
    pair = torch.randn(shape, generator=generator).to(device=device, dtype=torch.bfloat16)
    return pair[0], pair[1]


def loss_of(model, inputs, targets):
    return nn.functional.mse_loss(model(inputs).float(), targets.float())


def train(model, options, rank, device):
    """An eager training loop; returns the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for step in range(options.steps):
        inputs, targets = batch_of(options, rank, step, device)
        with torch.profiler.record_function(f"step {step}"):
            loss = loss_of(model, inputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_captured(model, options, rank, device):
    """Forward, backward and an all-reduce per block in one CUDA graph, which every step replays."""
    buckets = [list(part.parameters()) for part in [model.head, *model.blocks[::-1], model.embed]]
    parameters = [parameter for bucket in buckets for parameter in bucket]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    inputs, targets = batch_of(options, rank, 0, device)

    def reduced_gradients():
        loss = loss_of(model, inputs, targets)
        gradients = iter(torch.autograd.grad(loss, parameters))
        for bucket in buckets:
            flat = torch.cat([next(gradients).reshape(-1) for _ in bucket])
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            pieces = flat.split([parameter.numel() for parameter in bucket])
            for parameter, piece in zip(bucket, pieces):
                parameter.grad.copy_(piece.view_as(parameter))
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP_STEPS):
            reduced_gradients()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = reduced_gradients()
    losses = []
    for step in range(options.steps):
        for static, fresh in zip((inputs, targets), batch_of(options, rank, step, device)):
            static.copy_(fresh)
        graph.replay()
        optimizer.step()
        losses.append(loss.item())
    del graph  # before the communicator that it holds calls of
    return losses, len(buckets)


def hash_of(model):
    """Of the bytes of all parameters, or of this rank's shards of them."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        local = local.detach().cpu().contiguous()
        size = local.numel() * local.element_size()
        if size:
            digest.update((ctypes.c_char * size).from_address(local.data_ptr()))
    return digest.hexdigest()


def read_profile(profile):
    """The collectives [step, kind] in the order of issue, and NCCL's kernels [kind, ms] in the
    order of launch. A step of -1: outside the steps."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "trace.json")
        profile.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    steps = []
    issued = []
    kernels = []
    for event in events:
        name, arguments = event["name"], event.get("args", {})
        if event.get("cat") == "user_annotation" and name.startswith("step "):
            steps.append((event["ts"], event["ts"] + event["dur"], int(name.split()[1])))
        elif name == "record_param_comms":
            kind = KINDS.get(arguments.get("Collective name"))
            if kind:
                issued.append((event["ts"], kind))
        elif event.get("cat") == "kernel" and (match := KERNEL_NAME.search(name)):
            kind = KERNELS.get(match.group(1), match.group(1))
            kernels.append((arguments["correlation"], kind, event["dur"] / 1e3))

    def step_of(at):
        return next((step for begin, end, step in steps if begin <= at <= end), -1)

    return (
        [[step_of(at), kind] for at, kind in sorted(issued)],
        [[kind, ms] for _, kind, ms in sorted(kernels)],
    )


def make_model(options, device):
    torch.manual_seed(1234)
    with torch.device(device):
        model = Model(options.width).to(torch.bfloat16)
    if options.mode == "ddp":
        return nn.parallel.DistributedDataParallel(
            model, device_ids=[device.index], bucket_cap_mb=options.bucket_mb
        )
    if options.mode == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def set_environment(share_gpu):
    # Read by cuBLAS and NCCL when they are first used; what the user has set stays.
    settings = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if share_gpu:
        os.environ["NCCL_HOSTID"] = "rank" + os.environ["RANK"]
        os.environ["LOCAL_RANK"] = "0"
        settings |= {
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_NET": "Socket",
            "NCCL_IB_DISABLE": "1",
            "NCCL_MNNVL_ENABLE": "0",
            "NCCL_NVLS_ENABLE": "0",
        }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=["ddp", "fsdp2", "graph"], required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048, help="of the model, a multiple of 64")
    parser.add_argument("--length", type=int, default=128, help="of the sequences")
    parser.add_argument("--bucket-mb", type=float, default=25, help="of DDP's buckets")
    parser.add_argument("--share-gpu", action="store_true", help="all ranks on the first GPU")
    parser.add_argument("--profile", action="store_true", help="under torch.profiler")
    return parser.parse_args()


def main():
    options = parse()
    set_environment(options.share_gpu)
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    began = time.monotonic()
    captured = issued = kernels = None
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=45))
    with torch.profiler.profile() if options.profile else contextlib.nullcontext() as profile:
        model = make_model(options, device)
        if options.mode == "graph":
            losses, captured = train_captured(model, options, rank, device)
        else:
            losses = train(model, options, rank, device)
        torch.cuda.synchronize()
    if options.profile:
        issued, kernels = read_profile(profile)
    line = {
        "rank": rank,
        "mode": options.mode,
        "hash": hash_of(model),
        "losses": losses,
        "issued": issued,
        "kernels": kernels,
        "captured": captured,
        "warmup_steps": WARMUP_STEPS if captured else None,
        "seconds": round(time.monotonic() - began, 1),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }
    print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

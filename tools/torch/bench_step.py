# SPDX-License-Identifier: Apache-2.0
"""Peer of `brigade bench step`: DEVICE TOKENS STEPS SHAPES, on the ranks of the environment. The same
products under DistributedDataParallel in bfloat16, gradient clipping, torch.optim.Muon for matrices
and fused AdamW for the rest. SHAPES: "ROWSxCOLS" (m: for Muon, e: no product) or "N", commas between.
Answers with the time of one step, the mean over STEPS in a row behind one that is not timed."""
import datetime
import os
import sys

from bench_peer import serve, timed


def make():
    import torch
    from torch.nn.parallel import DistributedDataParallel

    device, tokens, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.get("MASTER_PORT", 29500)) + 17  # the benchmark itself uses MASTER_PORT
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    torch.distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"tcp://{address}:{port}", rank=rank,
        world_size=world, timeout=datetime.timedelta(seconds=120))
    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    shapes, flags = [], []
    for text in sys.argv[4].split(","):
        shapes.append(tuple(map(int, text.rstrip("me").split("x"))))
        flags.append(text.lstrip("0123456789x"))
    width = max(max(s) for s in shapes if len(s) == 2)
    x, dy = (torch.randn(tokens * width, device=device).mul_(0.02).to(dtype) for _ in range(2))

    class Product(torch.autograd.Function):
        """Inputs are always the same; `token` keeps the layers in order."""

        @staticmethod
        def forward(ctx, token, weight):
            ctx.save_for_backward(weight)
            rows, cols = weight.shape
            x[: tokens * cols].view(tokens, cols) @ weight.T
            return token.clone()

        @staticmethod
        def backward(ctx, grad):
            (weight,) = ctx.saved_tensors
            rows, cols = weight.shape
            g = dy[: tokens * rows].view(tokens, rows)
            g @ weight
            return grad, g.T @ x[: tokens * cols].view(tokens, cols)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(
                torch.nn.Parameter((torch.randn(s, device=device) * 0.02).to(dtype)) for s in shapes)

        def forward(self, token):
            for weight, flag in zip(self.weights, flags):
                if weight.dim() == 2 and "e" not in flag:
                    token = Product.apply(token, weight)
                else:
                    token = token + weight.flatten()[0] * 0
            return token.sum()

    model = Model()
    muon = [w for w, f in zip(model.weights, flags) if "m" in f]
    other = [w for w, f in zip(model.weights, flags) if "m" not in f]
    optimizers = []
    if muon:
        optimizers.append(torch.optim.Muon(muon, lr=1e-3, weight_decay=0))
    if other:
        optimizers.append(torch.optim.AdamW(other, lr=1e-4, fused=True))
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True,
                                  device_ids=[torch.cuda.current_device()] if device == "cuda" else None)
    token = torch.zeros(1, device=device, dtype=dtype, requires_grad=True)

    def step():
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)
        ddp(token).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        for optimizer in optimizers:
            optimizer.step()

    def measure(item):
        step()
        return [timed(device, lambda: [step() for _ in range(steps)]) / steps]

    measure(0)
    return [f"torch {torch.__version__} DDP"], measure


serve(make)

# SPDX-License-Identifier: Apache-2.0
"""Peer of `brigade bench adamw`: DEVICE NUMEL PARAMS. Norm and clip, fused AdamW on float32, cast to
bfloat16: three calls, as training loops make them."""
import sys

from bench_peer import serve, timed


def make():
    import torch

    device, numel, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    each = numel // count
    sizes = [numel - each * (count - 1)] + [each] * (count - 1)
    masters = [torch.nn.Parameter(torch.randn(n, device=device) * 0.02) for n in sizes]
    for p in masters:
        p.grad = torch.randn_like(p) * 0.02
    weights = [p.detach().to(torch.bfloat16) for p in masters]
    values = [p.detach() for p in masters]
    optimizer = torch.optim.AdamW(masters, lr=1e-3, weight_decay=0.1, fused=True)

    def step():
        torch.nn.utils.clip_grad_norm_(masters, 1.0, foreach=True)
        optimizer.step()
        torch._foreach_copy_(weights, values)

    step()
    return [f"torch {torch.__version__}"], lambda item: [timed(device, step)]


serve(make)

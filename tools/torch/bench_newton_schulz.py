# SPDX-License-Identifier: Apache-2.0
"""Peers of `brigade bench newton-schulz`: DEVICE STEPS ROWSxCOLSxBATCH... torch's own iteration in
bfloat16, as torch.optim.Muon does it, and Emerging-Optimizers with its Triton SYRK."""
import sys

from bench_peer import serve, timed

SIMPLE = (3.4445, -4.7750, 2.0315)


def make():
    import torch

    device, steps = sys.argv[1], int(sys.argv[2])
    shapes = [tuple(map(int, text.split("x"))) for text in sys.argv[3:]]
    inputs = [[torch.randn(r, c, device=device) for _ in range(b)] for r, c, b in shapes]

    def plain(g):
        a, b, c = SIMPLE
        x = g.bfloat16()
        if x.size(0) > x.size(1):
            x = x.T
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(steps):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.T if g.size(0) > g.size(1) else x

    try:
        from torch.optim._muon import _zeropower_via_newtonschulz

        def theirs(g):
            return _zeropower_via_newtonschulz(g, SIMPLE, steps, 1e-7)

        theirs(torch.randn(16, 16, device=device))
    except (ImportError, TypeError):
        theirs = plain
    peers = [(f"torch {torch.__version__}", theirs)]
    try:
        from emerging_optimizers.orthogonalized_optimizers.muon_utils import newton_schulz

        torch.set_float32_matmul_precision("medium")  # its bfloat16 mode

        def emerging(g):
            return newton_schulz(g, steps=steps, coefficient_type="quintic", use_syrk=device != "cpu")

        emerging(torch.randn(256, 256, device=device))
        peers.append(("emerging-optimizers", emerging))
    except Exception as error:
        print(f"no emerging-optimizers: {type(error).__name__}: {error}", file=sys.stderr)

    def measure(item):
        def all_of(function):
            for g in inputs[item]:
                function(g)

        return [timed(device, lambda: all_of(function)) for _, function in peers]

    return [name for name, _ in peers], measure


serve(make)

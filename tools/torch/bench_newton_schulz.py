# SPDX-License-Identifier: Apache-2.0
"""Peers of `brigade bench newton-schulz`: PEER DEVICE STEPS ROWSxCOLSxBATCH...

torch: its own iteration in bfloat16, as torch.optim.Muon does it, and the same on a batch.
emerging-optimizers: its newton_schulz in bfloat16 with the Triton SYRK for one matrix after another,
and on a batch where it takes one. Of a peer's ways that work the fastest counts."""
import sys

from bench_peer import serve, timed

SIMPLE = (3.4445, -4.7750, 2.0315)


def torch_ways(torch, device, steps):
    def normalized(g):
        x = g.bfloat16()
        if x.size(-2) > x.size(-1):
            x = x.mT
        return x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)

    def restored(x, g):
        return x.mT if g.size(-2) > g.size(-1) else x

    def one(g):
        a, b, c = SIMPLE
        x = normalized(g)
        for _ in range(steps):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return restored(x, g)

    def batch(g):
        a, b, c = SIMPLE
        x = normalized(g)
        for _ in range(steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return restored(x, g)

    try:
        from torch.optim._muon import _zeropower_via_newtonschulz

        def theirs(g):
            return _zeropower_via_newtonschulz(g, SIMPLE, steps, 1e-7)

        theirs(torch.randn(16, 16, device=device))
        one = theirs
    except (ImportError, TypeError):
        pass
    return f"torch {torch.__version__}", [one], [batch]


def emerging_ways(torch, device, steps):
    from emerging_optimizers.orthogonalized_optimizers.muon_utils import newton_schulz

    torch.set_float32_matmul_precision("medium")  # its bfloat16 mode

    def plain(g):
        return newton_schulz(g, steps=steps, coefficient_type="quintic")

    def syrk(g):
        return newton_schulz(g, steps=steps, coefficient_type="quintic", use_syrk=True)

    one = works(torch, device, (256, 256), [plain] if device == "cpu" else [plain, syrk])
    batch = works(torch, device, (2, 256, 256), [plain] if device == "cpu" else [plain, syrk])
    if not one:
        raise RuntimeError("its newton_schulz fails")
    return "emerging-optimizers", one, batch


def works(torch, device, shape, functions):
    """Those of the functions that take such an input; why not the others, on standard error."""
    good = []
    for function in functions:
        try:
            if function(torch.randn(shape, device=device)).shape == shape:
                good.append(function)
        except Exception as error:  # whatever a version lacks, the others are measured
            print(f"{function.__name__} of {shape}: {type(error).__name__}: {error}", file=sys.stderr)
    return good


def make():
    import torch

    peer, device, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    shapes = [tuple(map(int, text.split("x"))) for text in sys.argv[4:]]
    ways = torch_ways if peer == "torch" else emerging_ways
    name, one, batch = ways(torch, device, steps)

    def calls(shape):
        rows, cols, count = shape
        stack = torch.randn(count, rows, cols, device=device)

        def each(function):
            for g in stack:
                function(g)

        made = [lambda f=f: each(f) for f in one]
        return made + [lambda f=f: f(stack) for f in batch if count > 1]

    items = [calls(shape) for shape in shapes]

    def measure(item):
        times = [timed(device, call) for call in items[item]]
        return [min(times)]

    return [name], measure


serve(make)

"""torch.ops.linattn in Python: forward and backward against the formula in plain torch. argv[1]: the library."""

import sys

try:
    import torch
except ImportError:
    sys.exit(77)  # skipped: package python3-torch is missing

torch.ops.load_library(sys.argv[1])
torch.manual_seed(0)


def linear_formula(q, k, v):
    """Causal linear attention, elu+1, of [B,T,H,K], [B,T,H,V]."""
    q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    weights = torch.einsum("bthk,bshk->bhts", q, k).tril()
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    return torch.einsum("bhts,bshv->bthv", weights, v)


def softmax_formula(q, k, v):
    scores = torch.einsum("bthk,bshk->bhts", q, k) / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:]).triu(1).bool()
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def run(f, inputs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    o = f(*inputs)
    (o * torch.cos(torch.arange(o.numel(), dtype=o.dtype)).view_as(o)).sum().backward()
    return [o.detach()] + [x.grad for x in inputs]


for name, formula in (("linear", linear_formula), ("softmax", softmax_formula)):
    op = getattr(torch.ops.linattn, name)
    shapes = [(2, 37, 3, 8), (2, 37, 3, 8), (2, 37, 3, 5)]
    inputs = [torch.randn(s, dtype=torch.float64) for s in shapes]
    expected = run(formula, inputs)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        found = run(lambda *x: op(*x)[0], [x.to(dtype) for x in inputs])
        for x, ref in zip(found, expected):
            error = ((x.double() - ref).abs().max() / ref.abs().max()).item()
            assert x.dtype == dtype and error < bound, (name, dtype, error)

q, k, v = (torch.randn(1, 6, 1, 4) for _ in range(3))
o, S, z = torch.ops.linattn.linear(q, k, v)
o1, S1, z1 = torch.ops.linattn.linear(q[:, :4], k[:, :4], v[:, :4])
o2, S2, z2 = torch.ops.linattn.linear(q[:, 4:], k[:, 4:], v[:, 4:], S0=S1, z0=z1)
torch.testing.assert_close(torch.cat([o1, o2], 1), o)
torch.testing.assert_close(S2, S)
torch.testing.assert_close(z2, z)

try:
    torch.ops.linattn.linear(q, k, v[:, :5])
except RuntimeError as error:
    assert "[linear] v must be" in str(error), error
else:
    raise AssertionError("a v that is too short was accepted")
print("ok")

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


def recurrence(q, k, v, g=None, beta=None, normalise_keys=False):
    """S = exp(g) S + beta k (v - rho (exp(g) S)^T k)^T, o = S^T q K^-1/2, token by token."""
    if normalise_keys:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    state, outputs = q.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[-1]), []
    for t in range(q.shape[1]):
        if g is not None:
            state = state * (g[:, t, :, None] if g.dim() == 3 else g[:, t]).exp().unsqueeze(-1)
        written = v[:, t]
        if beta is not None:
            held = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            written = beta[:, t, :, None] * (written - held)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], written)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) / q.shape[-1] ** 0.5)
    return torch.stack(outputs, 1)


def run(f, inputs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    o = f(*inputs)
    (o * torch.cos(torch.arange(o.numel(), dtype=o.dtype)).view_as(o)).sum().backward()
    return [o.detach()] + [x.grad for x in inputs]


def expect_same(name, op, formula, inputs):
    expected = run(formula, inputs)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        found = run(lambda *x: op(*x)[0], [x.to(dtype) for x in inputs])
        for x, ref in zip(found, expected):
            error = ((x.double() - ref).abs().max() / ref.abs().max()).item()
            assert x.dtype == dtype and error < bound, (name, dtype, error)


def random(*shape):
    return torch.randn(shape, dtype=torch.float64)


B, T, H, K, V = 2, 37, 3, 8, 5
for name, formula in (("linear", linear_formula), ("softmax", softmax_formula)):
    inputs = [random(B, T, H, K), random(B, T, H, K), random(B, T, H, V)]
    expect_same(name, getattr(torch.ops.linattn, name), formula, inputs)

SCALAR, PER_CHANNEL = (B, T, H), (B, T, H, K)
for name, decay, delta in (
    ("retention", SCALAR, False),
    ("simple_gla", SCALAR, False),
    ("gla", PER_CHANNEL, False),
    ("delta", None, True),
    ("gated_delta", SCALAR, True),
    ("kda", PER_CHANNEL, True),
):
    inputs = [random(B, T, H, K), random(B, T, H, K), random(B, T, H, V)]
    names = ["q", "k", "v"]
    if decay:
        inputs.append(torch.nn.functional.logsigmoid(random(*decay)))
        names.append("g")
    if delta:
        inputs.append(random(B, T, H).sigmoid())
        names.append("beta")
    op = getattr(torch.ops.linattn, name)
    expect_same(
        name,
        lambda *x: op(**dict(zip(names, x)), feature_map="l2" if delta else ""),
        lambda *x: recurrence(**dict(zip(names, x)), normalise_keys=delta),
        inputs,
    )

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

"""The reference backend against plain float64 arithmetic, written out here a second time and without cleverness."""

import math

import pytest
import torch

from headway.kernels import AttentionShape, load_kernels

KERNELS = load_kernels("reference")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2}
DTYPES = list(TOLERANCE)


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * weight


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(ValueError, match="'cuda'; allowed: auto, reference, triton, flashinfer"):
        load_kernels("cuda")


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_activation_embedding_and_linear(dtype):
    x, residual = random(1, 7, 48, dtype=dtype), random(2, 7, 48, dtype=dtype)
    weight = random(3, 48, dtype=dtype)
    near(KERNELS.rms_norm(x, weight, 1e-5), norm(x.double(), weight.double(), 1e-5), dtype)
    normed, total = KERNELS.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    near(total, x.double() + residual.double(), dtype)
    # Of the rounded sum: a stage that starts from a received sum must get these very bits.
    assert torch.equal(normed, KERNELS.rms_norm(total, weight, 1e-5))
    gate, up = x.double().chunk(2, -1)
    near(KERNELS.silu_mul(x), gate / (1 + (-gate).exp()) * up, dtype)
    assert torch.equal(KERNELS.embed(torch.tensor([3, 0, 3]), x), x[[3, 0, 3]])
    matrix, bias = random(4, 20, 48, dtype=dtype), random(5, 20, dtype=dtype)
    for addend in (None, bias):
        expected = x.double() @ matrix.double().T + (0 if addend is None else bias.double())
        actual = KERNELS.linear(x, KERNELS.pack(matrix), addend)
        torch.testing.assert_close(actual.double(), expected, atol=20 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_norms", [False, True])
def test_rope_write_rotates_norms_and_writes_exactly_its_slots(dtype, head_norms):
    heads, kv_heads, head_dim, page_size, tokens = 6, 2, 8, 4, 5
    qkv = random(1, tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    angles = random(2, 50, head_dim // 2)
    rotary = torch.cat((angles.cos(), angles.sin()), -1).float()
    positions = torch.tensor([0, 1, 49, 7, 3])
    slots = torch.tensor([9, 0, 27, -1, 8])  # the fourth is padding
    norms = (random(3, head_dim, dtype=dtype), random(4, head_dim, dtype=dtype)) if head_norms else None
    keys, values = (random(seed, 7, page_size, kv_heads, head_dim, dtype=dtype) for seed in (5, 6))
    before = keys.clone(), values.clone()
    queries = KERNELS.rope_write(qkv.clone(), positions, rotary, slots, keys, values, norms, 1e-6)

    split = qkv.double().view(tokens, -1, head_dim)
    query, key, value = split.split((heads, kv_heads, kv_heads), 1)
    if norms is not None:
        query, key = norm(query, norms[0].double(), 1e-6), norm(key, norms[1].double(), 1e-6)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for token, position in enumerate(positions.tolist()):
            cosine, sine = rotary[position].double().chunk(2)
            for i in range(head_dim // 2):
                a, b = x[token, :, i], x[token, :, i + head_dim // 2]
                out[token, :, i] = a * cosine[i] - b * sine[i]
                out[token, :, i + head_dim // 2] = b * cosine[i] + a * sine[i]
        return out

    near(queries, rotate(query), dtype)
    expected_keys, expected_values = before[0].double(), before[1].double()
    written = slots >= 0
    expected_keys.view(-1, kv_heads, head_dim)[slots[written]] = rotate(key)[written]
    expected_values.view(-1, kv_heads, head_dim)[slots[written]] = value[written]
    near(keys, expected_keys, dtype)
    near(values, expected_values, dtype)


def attention(queries, keys, values, starts, contexts, tables, page_size, window):
    """Token by token, head by head."""
    tokens, heads, head_dim = queries.shape
    group = heads // keys.shape[2]
    out = torch.zeros(tokens, heads, head_dim, dtype=torch.float64)
    for sequence, context in enumerate(contexts):
        begin, end = starts[sequence], starts[sequence + 1]
        for token in range(begin, end):
            position = context - (end - token)
            first = 0 if window is None else max(0, position - window + 1)
            slots = [(tables[sequence][p // page_size], p % page_size) for p in range(first, position + 1)]
            for head in range(heads):
                key = torch.stack([keys[page, offset, head // group] for page, offset in slots])
                value = torch.stack([values[page, offset, head // group] for page, offset in slots])
                weights = (key @ queries[token, head] / math.sqrt(head_dim)).softmax(0)
                out[token, head] = weights @ value
    return out.flatten(1)


@pytest.mark.parametrize("seed", range(18))
def test_attention_of_ragged_batches(seed):
    dtype = DTYPES[seed % 3]
    pick = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=pick))

    kv_heads, group, head_dim = draw(1, 3), draw(1, 4), 2 * draw(2, 16)
    page_size, window = draw(1, 16), None if seed % 2 else draw(1, 20)
    # Decodes, whole prompts, later chunks and sequences that take no part, in any order.
    counts = [1 if draw(0, 1) else draw(0, 9) for _ in range(draw(1, 9))]
    contexts = [count + (0 if draw(0, 2) == 0 and count else draw(1, 40)) for count in counts]
    starts = [sum(counts[:sequence]) for sequence in range(len(counts) + 1)]
    if not starts[-1]:
        pytest.fail(f"seed {seed} draws an empty batch; choose another")
    needed = [-(-context // page_size) for context in contexts]
    pool = torch.randperm(sum(needed) + 3, generator=pick).tolist()
    tables = [[pool.pop() for _ in range(count)] for count in needed]
    padded = [table + [tables[0][0]] * (max(needed) - len(table)) for table in tables]
    keys, values = (random(seed + 100 * i, sum(needed) + 3, page_size, kv_heads, head_dim, dtype=dtype) for i in (1, 2))
    queries = random(seed + 300, starts[-1], kv_heads * group, head_dim, dtype=dtype)
    plan = KERNELS.plan_attention(
        torch.tensor(starts),
        torch.tensor(contexts),
        torch.tensor(padded),
        AttentionShape(kv_heads * group, kv_heads, head_dim, page_size, dtype, window),
    )
    actual = KERNELS.attend(queries, keys, values, plan)
    expected = attention(queries.double(), keys.double(), values.double(), starts, contexts, tables, page_size, window)
    near(actual, expected, dtype)

"""The Triton backend against the reference in float64, on Triton's interpreter where there is no GPU."""

import numpy as np
import pytest
import torch

from headway.kernels import AttentionShape, SamplingBatch, choose_backend, load_kernels
from headway.kernels.sampling import sample_tokens

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")
# The interpreter computes with numpy, which warns where a GPU gives an infinity or a NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
from headway.kernels.tiles import Batch, decode_tiles  # noqa: E402  (needs Triton)

KERNELS = load_kernels("triton", DEVICE)
REFERENCE = load_kernels("reference", DEVICE)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = list(TOLERANCE)


class Draw:
    """Fresh inputs from one seed."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype

    def tensor(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=self.generator, dtype=torch.float64) * scale).to(DEVICE, self.dtype)

    def strided(self, rows: int, size: int) -> torch.Tensor:
        """Rows that lie apart, as those of a slice do."""
        return self.tensor(rows, size + 8)[:, :size]

    def number(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))


def near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 96), (5, 130), (3, 2048)])
def test_norms(dtype, rows, size):
    draw = Draw(rows * size, dtype)
    x, residual, weight = draw.strided(rows, size), draw.strided(rows, size), draw.tensor(size)
    near(KERNELS.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x.double(), weight.double(), 1e-5), dtype)
    expected = residual.double() + x.double()
    normed, total = KERNELS.add_rms_norm(x.clone(), residual, weight, 1e-5)
    near(total, expected, dtype)
    near(normed, REFERENCE.rms_norm(total.double(), weight.double(), 1e-5), dtype)
    # A stage that starts from a received sum must get these very bits.
    assert torch.equal(normed, KERNELS.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_and_activation(dtype):
    draw = Draw(1, dtype)
    table, ids = draw.tensor(11, 1030), torch.tensor([10, 0, 3, 10], device=DEVICE)
    assert torch.equal(KERNELS.embed(ids, table), table[ids])
    for rows, size in ((1, 7), (3, 1100)):
        gate_up = draw.strided(rows, 2 * size)
        near(KERNELS.silu_mul(gate_up), REFERENCE.silu_mul(gate_up.double()), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "width", "size"), [(1, 70, 130), (3, 64, 128), (16, 20, 300), (17, 40, 64)])
def test_linear(dtype, tokens, width, size):
    draw = Draw(tokens, dtype)
    x, weight, bias = draw.strided(tokens, size), draw.tensor(width, size), draw.tensor(width)
    for addend in (None, bias):
        expected = x.double() @ weight.double().T + (0 if addend is None else bias.double())
        actual = KERNELS.linear(x, KERNELS.pack(weight), addend)
        torch.testing.assert_close(actual.double(), expected, atol=10 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_no_rows_is_no_launch():
    empty, weight = torch.empty((0, 32), device=DEVICE), torch.ones(32, device=DEVICE)
    assert KERNELS.rms_norm(empty, weight, 1e-5).shape == (0, 32)
    assert KERNELS.silu_mul(empty).shape == (0, 16)
    assert KERNELS.embed(torch.empty(0, dtype=torch.int64, device=DEVICE), weight[None]).shape == (0, 32)
    assert KERNELS.sample(empty, SamplingBatch.of([], [], [], [], [], DEVICE)).shape == (0,)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "norms", "tokens"),
    [(4, 4, 64, True, 3), (6, 2, 96, False, 3), (8, 1, 128, True, 2), (7, 1, 64, True, 65), (3, 3, 16, False, 66)],
)
def test_rope_write(heads, kv_heads, head_dim, norms, tokens):
    dtype = DTYPES[(heads + tokens) % 3]
    draw = Draw(heads * tokens, dtype)
    page_size = draw.number(1, 16)
    pages = tokens // page_size + 3
    qkv = draw.strided(tokens, (heads + 2 * kv_heads) * head_dim)
    positions = torch.randint(0, 50, (tokens,), generator=draw.generator).to(DEVICE)
    rotary = torch.randn(50, head_dim, generator=draw.generator).to(DEVICE)
    slots = torch.randperm(pages * page_size, generator=draw.generator)[:tokens].to(DEVICE)
    slots[-1] = -1  # padding
    weights = (draw.tensor(head_dim), draw.tensor(head_dim)) if norms else None
    # A page of keys beside its page of values: strides that a plain tensor does not have.
    cache = draw.tensor(pages, 2, page_size, kv_heads, head_dim)
    keys, values = cache.unbind(1)
    wide = [tensor.double().contiguous() for tensor in (keys, values)]
    wide_norms = (weights[0].double(), weights[1].double()) if weights else None
    expected = REFERENCE.rope_write(qkv.double(), positions, rotary, slots, *wide, wide_norms, 1e-6)
    queries = KERNELS.rope_write(qkv, positions, rotary, slots, keys, values, weights, 1e-6)
    near(queries, expected, dtype)
    near(keys, wide[0], dtype)
    near(values, wide[1], dtype)


def attention_case(draw: Draw, counts: list[int], contexts: list[int], group: int, kv_heads: int, head_dim: int):
    page_size = draw.number(1, 16)
    needed = [-(-context // page_size) for context in contexts]
    pages = sum(needed) + 2
    pool = torch.randperm(pages, generator=draw.generator).tolist()
    tables = [[pool.pop() for _ in range(count)] for count in needed]
    padded = torch.tensor([table + [0] * (max(needed) - len(table)) for table in tables])
    keys, values = (draw.tensor(pages, page_size, kv_heads, head_dim) for _ in range(2))
    queries = draw.tensor(sum(counts), kv_heads * group, head_dim)
    starts = torch.tensor([sum(counts[:sequence]) for sequence in range(len(counts) + 1)])
    return queries, keys, values, starts, torch.tensor(contexts), padded, page_size


@pytest.mark.parametrize(
    ("group", "kv_heads", "head_dim", "window"),
    [(1, 2, 64, None), (4, 2, 128, None), (7, 1, 96, 20), (3, 1, 16, 1), (8, 1, 64, None), (1, 1, 96, 5)],
)
@pytest.mark.parametrize("kind", ["decodes", "mixed"])
def test_attention(group, kv_heads, head_dim, window, kind):
    dtype = DTYPES[(group + head_dim + len(kind)) % 3]
    draw = Draw(group * head_dim + len(kind), dtype)
    counts = [1, 1, 1] if kind == "decodes" else [1, 70 // group, 0, 5, 1]
    contexts = [count + draw.number(0 if count else 1, 60) for count in counts]
    contexts[0] = 300  # more than one split
    queries, keys, values, starts, lengths, tables, page_size = attention_case(
        draw, counts, contexts, group, kv_heads, head_dim
    )
    shape = AttentionShape(group * kv_heads, kv_heads, head_dim, page_size, dtype, window)
    KERNELS._processors = 4  # as if there were a device to fill
    actual = KERNELS.attend(queries, keys, values, KERNELS.plan_attention(starts, lengths, tables, shape))
    plan = REFERENCE.plan_attention(starts, lengths, tables, shape)
    near(actual, REFERENCE.attend(queries.double(), keys.double(), values.double(), plan), dtype)


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_decodes_cover_each_context_once_within_the_tiles_reserved(seed):
    draw = Draw(seed)
    page_size, window = draw.number(1, 20), [None, draw.number(1, 900)][seed % 2]
    contexts = [draw.number(1, 4000 if draw.number(0, 3) == 0 else 200) for _ in range(draw.number(1, 12))]
    count, spare = len(contexts), draw.number(1, 40)
    tables = torch.randint(0, 99, (count, 4000), generator=draw.generator)
    batch = Batch.of(torch.arange(count + 1), torch.tensor(contexts), tables, page_size)
    tiles, joins = (array.reshape(-1, width) for array, width in zip(
        decode_tiles(batch, np.arange(count), window, spare), (8, 3), strict=True
    ))  # fmt: skip
    assert len(tiles) <= count + spare
    for sequence, (context, (row, first, parts)) in enumerate(zip(contexts, joins.tolist(), strict=True)):
        own = tiles[tiles[:, 1] == sequence].tolist()
        assert (row, len(own)) == (sequence, parts)
        assert [tile[6] for tile in own] == ([-1] if parts == 1 else list(range(first, first + parts)))
        keys = [key for tile in own for key in range(tile[4], tile[5])]
        assert keys == list(range(0 if window is None else max(0, context - window), context))
        start, pages = own[0][0], -(-context // page_size)
        assert batch.pages[start : start + pages].tolist() == tables[sequence, :pages].tolist()


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_a_graph_plan_follows_its_updates_and_ignores_padding(name):
    kernels = load_kernels(name, DEVICE)
    draw = Draw(5)
    batch, heads, head_dim = 4, 2, 16
    shape = None
    for counts in ([1, 1, 1, 1], [1, 1], [1, 1, 1]):
        contexts = [draw.number(1, 400) for _ in counts]
        queries, keys, values, starts, lengths, tables, page_size = attention_case(
            draw, counts, contexts, heads, 1, head_dim
        )
        if shape is None or shape.page_size != page_size:
            shape = AttentionShape(heads, 1, head_dim, page_size, torch.float32)
            plan = kernels.plan_graph(batch, 400, shape)
            before = kernels.attend(torch.ones((batch, heads, head_dim), device=DEVICE), keys, values, plan)
            near(before, values[0, 0, 0].double().repeat(batch, heads), torch.float32)  # all padding: one token
        plan.update(lengths, tables)
        lengths_before, tables_before = lengths.clone(), tables.clone()
        lengths.fill_(1)  # the plan may not look at them again
        tables.fill_(0)
        padded = torch.cat((queries, torch.full((batch - len(counts), heads, head_dim), 7.0, device=DEVICE)))
        actual = kernels.attend(padded, keys, values, plan)
        assert torch.isfinite(actual).all()
        expected = REFERENCE.attend(
            queries.double(),
            keys.double(),
            values.double(),
            REFERENCE.plan_attention(starts, lengths_before, tables_before, shape),
        )
        near(actual[: len(counts)], expected, torch.float32)


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_a_graph_plan_refuses_what_it_has_not_reserved(name):
    plan = load_kernels(name, DEVICE).plan_graph(2, 3, AttentionShape(1, 1, 16, 4, torch.float32))
    with pytest.raises(ValueError, match="3 block tables; at most 2"):
        plan.update(torch.ones(3, dtype=torch.int64), torch.zeros((3, 1), dtype=torch.int64))
    with pytest.raises(ValueError, match="a context of 13 tokens; at most 3 pages of 4"):
        plan.update(torch.tensor([13]), torch.zeros((1, 4), dtype=torch.int64))


def test_the_backend_is_chosen_by_the_device():
    assert choose_backend("cpu") == ("reference", "the device is cpu")
    assert load_kernels("auto", "cpu").name == "reference"
    with pytest.raises(ValueError, match="backend 'flashinfer' needs a CUDA device and flashinfer-python"):
        load_kernels("flashinfer", "cpu")


def test_float64_is_refused():
    with pytest.raises(ValueError, match="dtype float64; allowed: float32, bfloat16, float16"):
        KERNELS.plan_graph(1, 1, AttentionShape(1, 1, 16, 4, torch.float64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [31, 4096, 9001])
def test_greedy_takes_the_first_largest(dtype, vocabulary):
    logits = Draw(vocabulary, dtype).strided(4, vocabulary)
    logits[0, vocabulary // 2] = logits[0, vocabulary - 1] = logits[0, 7] = 9.0
    logits[1] = -torch.inf
    logits[2] = 0.5
    greedy = SamplingBatch.of([0.0] * 4, [0] * 4, [1.0] * 4, [0] * 4, [0] * 4, DEVICE)
    assert KERNELS.sample(logits, greedy).tolist() == [7, 0, 0, int(logits[3].argmax())]


@pytest.mark.parametrize("seed", range(4))
def test_draws_equal_the_reference(seed):
    """Same hash, same thresholds: the same token, peaked or flat, whatever the filters."""
    draw = Draw(seed, DTYPES[seed % 3])
    rows, vocabulary = 14, [50, 5000, 9001, 700][seed]
    logits = draw.tensor(rows, vocabulary) * torch.logspace(-1, 1.3, rows, device=DEVICE)[:, None].to(draw.dtype)
    pick = [draw.number(0, 3) for _ in range(rows)]
    sampling = SamplingBatch.of(
        [0.0 if draw.number(0, 5) == 0 else 0.3 + draw.number(0, 12) / 10 for _ in range(rows)],
        [draw.number(1, 60) if choice & 1 else 0 for choice in pick],
        [draw.number(1, 99) / 100 if choice & 2 else 1.0 for choice in pick],
        [draw.number(-(2**62), 2**62) for _ in range(rows)],
        [draw.number(0, 2**20) for _ in range(rows)],
        DEVICE,
    )
    assert KERNELS.sample(logits, sampling).tolist() == sample_tokens(logits, sampling).tolist()


def test_filters_at_their_ends():
    """top_k of 1 and a top_p that rounds to nothing are greedy; a top_k past the vocabulary is no limit; ties stay."""
    draw = Draw(3)
    logits = draw.tensor(4, 300)
    logits[3] = 1.0
    sampling = SamplingBatch.of(
        [1.0] * 4, [1, 0, 10**9, 2], [1.0, 1e-30, 0.999, 0.01], [1, 2, 3, 4], [5, 6, 7, 8], DEVICE
    )
    assert KERNELS.sample(logits, sampling).tolist() == sample_tokens(logits, sampling).tolist()
    assert KERNELS.sample(logits, sampling)[:2].tolist() == logits[:2].argmax(-1).tolist()


def test_a_row_of_nan_ends_and_gives_a_token():
    logits = torch.full((2, 50), torch.nan, device=DEVICE)
    logits[1, 3:9] = 1.0
    sampling = SamplingBatch.of([1.0] * 2, [3] * 2, [0.5] * 2, [1, 2], [3, 4], DEVICE)
    assert all(0 <= token < 50 for token in KERNELS.sample(logits, sampling).tolist())

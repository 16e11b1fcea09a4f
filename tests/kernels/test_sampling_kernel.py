"""Sampling draws from the right distribution, and depends on (seed, position, logits) alone."""

import pytest
import torch

from headway.kernels import SamplingBatch, load_kernels
from headway.kernels.sampling import candidate_threshold, exponential_variates

KERNELS = load_kernels("reference")


def logits(rows: int, vocabulary: int, scale: float = 2.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def batch(rows: int, temperature=1.0, top_k=0, top_p=1.0, seed=None, position=None) -> SamplingBatch:
    return SamplingBatch.of(
        [temperature] * rows,
        [top_k] * rows,
        [top_p] * rows,
        list(range(rows)) if seed is None else seed,
        [0] * rows if position is None else position,
    )


def test_greedy_takes_the_first_largest():
    row = torch.tensor([[1.0, 5.0, 5.0, 2.0]])
    assert KERNELS.sample(row, batch(1, temperature=0)).tolist() == [1]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1, 0, 1), (0.7, 0, 1), (1.5, 5, 1), (1, 0, 0.8), (1, 6, 0.7)]
)
def test_frequencies_are_the_filtered_softmax(temperature, top_k, top_p):
    draws, vocabulary = 20000, 12
    row = logits(1, vocabulary)
    tokens = KERNELS.sample(row.expand(draws, -1), batch(draws, temperature, top_k, top_p))
    order = (row[0].double() / temperature).sort(descending=True)
    probability = order.values.softmax(0)
    if top_k:
        probability[top_k:] = 0
        probability /= probability.sum()
    if top_p < 1:
        last = int((probability.cumsum(0) < top_p).sum())
        probability[last + 1 :] = 0
        probability /= probability.sum()
    expected = torch.zeros(vocabulary, dtype=torch.float64).index_copy_(0, order.indices, probability) * draws
    counts = torch.bincount(tokens, minlength=vocabulary).double()
    assert not counts[expected == 0].any()
    kept = expected > 0
    chi_square = ((counts - expected)[kept].square() / expected[kept]).sum()
    assert chi_square < 40  # 11 degrees of freedom at most: 40 is beyond the 99.99th percentile


def test_a_token_does_not_depend_on_its_batch():
    rows, vocabulary = 17, 1000
    scores = logits(rows, vocabulary)
    seeds = [0, 1, -1, 2**63, 2**64 - 5, 7, 7, 7, *range(9)]
    positions = [3, 3, 3, 3, 3, 3, 4, 5, *range(100, 109)]
    settings = [(0.0, 0, 1.0), (0.8, 0, 0.9), (1.0, 40, 1.0), (1.3, 3, 0.5), (1.0, 0, 1.0)]
    chosen = [settings[row % len(settings)] for row in range(rows)]

    def sample(order: list[int]) -> list[int]:
        temperature, top_k, top_p = zip(*(chosen[row] for row in order), strict=True)
        sampling = SamplingBatch.of(
            temperature, top_k, top_p, [seeds[row] for row in order], [positions[row] for row in order]
        )
        return KERNELS.sample(scores[order], sampling).tolist()

    together = sample(list(range(rows)))
    assert together == [sample([row])[0] for row in range(rows)]
    assert together[::-1] == sample(list(range(rows))[::-1])


def test_seed_and_position_both_matter():
    row = logits(1, 500, scale=0.1).expand(64, -1)
    by_seed = KERNELS.sample(row, batch(64)).tolist()
    by_position = KERNELS.sample(row, batch(64, seed=[1] * 64, position=list(range(64)))).tolist()
    assert len(set(by_seed)) > 50
    assert len(set(by_position)) > 50
    assert len(set(KERNELS.sample(row, batch(64, seed=[1] * 64)).tolist())) == 1


def test_variates_are_exponential_and_uncorrelated():
    seeds = torch.arange(64)
    variates = exponential_variates(seeds, seeds * 0, 4096).double()
    assert torch.isfinite(variates).all()
    assert (variates > 0).all()
    ordered = variates.flatten().sort().values
    distance = (1 - (-ordered).exp() - torch.linspace(0, 1, ordered.numel(), dtype=torch.float64)).abs().max()
    assert distance < 1.9 / ordered.numel() ** 0.5  # Kolmogorov-Smirnov, about one in a thousand
    between_rows = torch.corrcoef(variates) - torch.eye(64)
    assert between_rows.abs().max() < 6 / 4096**0.5
    along = torch.corrcoef(torch.stack((variates[:, :-1].flatten(), variates[:, 1:].flatten())))[0, 1]
    assert abs(along) < 5 / ordered.numel() ** 0.5


@pytest.mark.parametrize("seed", range(6))
def test_thresholds_equal_a_full_sort(seed):
    """Flat rows need more candidates than are sorted at first, peaked ones do not; ties with the last are kept."""
    rows, vocabulary = 12, 2000
    scores = logits(rows, vocabulary, seed=seed) * torch.logspace(-2, 1, rows)[:, None]
    pick = torch.Generator().manual_seed(seed)
    top_k = torch.randint(0, 600, (rows,), generator=pick) * torch.randint(0, 2, (rows,), generator=pick)
    top_p = torch.rand(rows, generator=pick)
    top_p[::3] = 1
    kept = scores >= candidate_threshold(scores, top_k, top_p)[:, None]
    for row in range(rows):
        ordered = scores[row].double().sort(descending=True).values
        k = int(top_k[row]) or vocabulary
        probability = ordered[:k].softmax(0)
        count = k if top_p[row] == 1 else min(k, int((probability.cumsum(0) < top_p[row]).sum()) + 1)
        assert int(kept[row].sum()) == count
        assert scores[row][kept[row]].min() == ordered[count - 1].float()


def test_all_that_tie_with_the_last_candidate_are_kept():
    scores = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
    threshold = candidate_threshold(scores, torch.tensor([2]), torch.tensor([1.0]))
    assert (scores >= threshold).tolist() == [[True, True, True, True, False]]

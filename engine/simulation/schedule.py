"""What happens in one simulated run, as data: made from a seed, replayed exactly, and made smaller piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import msgspec

from headway.engine.messages import Sampling, Submit
from headway.engine.scheduling import Limits

MICROSECOND = 1_000
# Contracts of tensor channels under which the production table must work.
TENSOR_TRANSPORTS = (
    "posted",
    "rendezvous",
    "lazy",
    "credits(0)",
    "credits(1)",
    "stream_ordered(0)",
    "stream_ordered(1)",
)
ROW_TIME = 2 * MICROSECOND  # what a row that waits for nothing costs


class Client(msgspec.Struct, frozen=True):
    """A request that arrives at `at` (ns); the client leaves at `leaves`, or after `patience` tokens (-1: never)."""

    at: int
    submit: Submit
    leaves: int = -1
    patience: int = -1


class Pause(msgspec.Struct, frozen=True):
    """Rank `rank` does nothing for `duration` nanoseconds before its step `step`, as if stopped by a signal."""

    rank: int
    step: int
    duration: int


class Kill(msgspec.Struct, frozen=True):
    """Rank `rank` dies at `at` nanoseconds."""

    rank: int
    at: int


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """One run: the pipeline, who asks for what when, and what goes wrong.

    `control` and `tensor` are the transport contracts of the two kinds of channels.
    `speeds` are percent of a rank's normal computing time; `jitter` is the most that one message or step is late by,
    in nanoseconds, drawn from `seed`. `refusals` are pairs of a rank and an ordinal of its launched decisions. A
    `stop_at` is when the server is asked to end.
    """

    seed: int
    ranks: int
    limits: Limits
    control: str = "posted"
    tensor: str = "posted"
    clients: list[Client] = []
    stop_at: int = 0
    speeds: list[int] = []
    jitter: int = 0
    latency: int = 5 * MICROSECOND
    token_time: int = 10 * MICROSECOND
    pauses: list[Pause] = []
    refusals: list[tuple[int, int]] = []
    pages_by_rank: list[int] = []
    kill: Kill | None = None
    gate_bound: float = 1.0


def draw(
    seed: int, *, ranks: int | None = None, slots: int | None = None, tensor: tuple[str, ...] = TENSOR_TRANSPORTS
) -> Schedule:
    """The schedule of a seed. Ranks, slots and the tensor transport are drawn too, unless given."""
    random = Random(f"headway {seed}")
    p = ranks if ranks is not None else random.choice((1, 2, 2, 3, 3, 3, 4, 5))
    size = random.choice((1, 2, 4))
    pages = random.randint(6, 24)
    rows = random.randint(1, 4)
    limits = Limits(
        slots=slots if slots is not None else p + random.choice((0, 0, 0, 1)),
        pages=pages,
        page_size=size,
        max_batch_tokens=rows + random.randint(0, 8),
        max_batch_rows=rows,
        max_context=64,
        max_retries=random.randint(1, 4),
    )
    spread = random.choice((0, 100, 1000, 10_000)) * MICROSECOND
    clients = [_client(random, request, spread) for request in range(random.randint(1, 10))]
    last = max(client.at for client in clients)
    mischief = random.random()
    steps = 60 * p
    return Schedule(
        seed=seed,
        ranks=p,
        limits=limits,
        tensor=random.choice(tensor),
        clients=clients,
        stop_at=random.choice((last // 2, last + 1, last + 1, last + 20_000 * MICROSECOND)),
        speeds=[random.choice((100, 100, 50, 300, 2000)) for _ in range(p)],
        jitter=random.choice((0, 10, 300)) * MICROSECOND,
        latency=random.choice((1, 5, 200)) * MICROSECOND,
        token_time=random.choice((0, 10, 100)) * MICROSECOND,
        pauses=[
            Pause(random.randrange(p), random.randint(1, steps), random.randint(1, 50_000) * MICROSECOND)
            for _ in range(random.choice((0, 0, 1, 4)))
        ],
        refusals=[(random.randrange(1, p), random.randrange(12)) for _ in range(random.choice((0, 0, 1, 5)))]
        if p > 1
        else [],
        pages_by_rank=[pages if r == 0 else random.randint(pages // 2, pages) for r in range(p)]
        if random.random() < 0.15
        else [],
        kill=Kill(random.randrange(p), random.randint(0, last + 5000 * MICROSECOND)) if mischief < 0.1 else None,
        gate_bound=0.01 if mischief > 0.9 else 1.0,
    )


def _client(random: Random, request: int, spread: int) -> Client:
    submit = Submit(
        request,
        [random.randrange(251) for _ in range(random.choice((1, 1, 2, 5, 12, 20)))],
        random.choice((1, 1, 2, 4, 12)),
        [random.randrange(251) for _ in range(random.choice((0, 0, 60)))],
        Sampling(seed=random.randrange(1000)),
    )
    at = random.randint(0, spread)
    leaves = at + random.randint(0, 3000 * MICROSECOND) if random.random() < 0.15 else -1
    return Client(at, submit, leaves, random.randint(1, 5) if random.random() < 0.15 else -1)


def simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Schedules with less in them, the boldest first."""
    change = msgspec.structs.replace
    if schedule.kill is not None:
        yield change(schedule, kill=None)
    for name in ("clients", "pauses", "refusals", "pages_by_rank"):
        items = getattr(schedule, name)
        size = len(items)
        while size:
            for start in range(0, len(items), size):
                yield change(schedule, **{name: items[:start] + items[start + size :]})
            size //= 2
            if name == "pages_by_rank":
                break
    if schedule.jitter:
        yield change(schedule, jitter=0)
    if any(speed != 100 for speed in schedule.speeds):
        yield change(schedule, speeds=[])
    if schedule.limits.slots > schedule.ranks:
        yield change(schedule, limits=replace(schedule.limits, slots=schedule.ranks))
    for index, client in enumerate(schedule.clients):
        for other in _simpler_clients(client):
            yield change(schedule, clients=[*schedule.clients[:index], other, *schedule.clients[index + 1 :]])


def _simpler_clients(client: Client) -> Iterator[Client]:
    change, submit = msgspec.structs.replace, client.submit
    if client.at:
        yield change(client, at=0)
    if client.leaves >= 0:
        yield change(client, leaves=-1)
    if client.patience >= 0:
        yield change(client, patience=-1)
    if len(submit.prompt) > 1:
        yield change(client, submit=change(submit, prompt=submit.prompt[: len(submit.prompt) // 2]))
    if submit.max_tokens > 1:
        yield change(client, submit=change(submit, max_tokens=submit.max_tokens // 2))
    if submit.stop_tokens:
        yield change(client, submit=change(submit, stop_tokens=[]))

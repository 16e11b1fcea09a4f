"""A story as a space-time diagram (SVG): lanes are ranks, time runs down, arrows are messages, the cycle is red."""

from __future__ import annotations

from html import escape

from headway.verification.report.story import Arrow, Story

_LANE, _LEFT, _TOP, _STEP = 230, 70, 60, 20
_STYLE = """
svg { background: var(--paper, #fff); font: 12px system-ui, sans-serif; color: var(--ink, #1c2330) }
text { fill: currentColor } .dim { opacity: .65 } .lane { stroke: currentColor; stroke-opacity: .3 }
.row { fill: currentColor } .message { stroke: #2f6fdf; stroke-width: 1.3; fill: none } .lost { stroke-dasharray: 4 3 }
.stuck { fill: none; stroke: #d3222a; stroke-width: 2 } .wait { stroke: #d3222a; stroke-width: 2; fill: none }
.red { fill: #d3222a }
@media (prefers-color-scheme: dark) { svg { background: var(--paper, #14181f); color: var(--ink, #e6e9ef) } }
"""


def diagram(story: Story) -> str:
    """The SVG text. Each mark carries `data-step`, the number of its step from 0, for a page that steps through."""
    height = _TOP + _STEP * (len(story.steps) + 1) + 60
    width = _LEFT + _LANE * story.ranks
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(story.law)}: {escape(story.finding)}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#2f6fdf"/></marker>'
        '<marker id="redtip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#d3222a"/></marker></defs>',
    ]
    bottom = _y(len(story.steps))
    for rank in range(story.ranks):
        parts.append(f'<text x="{_x(rank)}" y="24" text-anchor="middle" font-weight="600">rank {rank}</text>')
        parts.append(f'<line class="lane" x1="{_x(rank)}" x2="{_x(rank)}" y1="36" y2="{bottom + 14}"/>')
    for number, step in enumerate(story.steps):
        y = _y(number)
        parts.append(f'<g data-step="{number}"><text class="dim" x="8" y="{y + 4}">{number + 1}</text>')
        parts.append(f'<circle class="row" cx="{_x(step.rank)}" cy="{y}" r="3"/>')
        label = f"{step.row} · pass {step.this_pass}"
        parts.append(f'<text x="{_x(step.rank) + 9}" y="{y + 4}">{escape(label)}</text></g>')
    parts += [_message(story, arrow) for arrow in story.arrows]
    parts += [f'<g data-step="{len(story.steps) - 1}">', *_standstill(story, bottom + 24), "</g>"]
    return "\n".join([*parts, "</svg>"])


def _x(rank: int) -> int:
    return _LEFT + _LANE * rank + 20


def _y(step: int) -> int:
    return _TOP + _STEP * step


def _message(story: Story, arrow: Arrow) -> str:
    kind, end = ("", arrow.taken) if arrow.taken is not None else (" lost", len(story.steps))
    x1, x2 = _x(arrow.source), _x(arrow.sink)
    tip = x2 - (6 if x2 > x1 else -6)
    way = f"M{x1} {_y(arrow.sent)} L{tip} {_y(end)}"
    return f'<path class="message{kind}" data-step="{arrow.sent}" marker-end="url(#tip)" d="{way}"/>'


def _standstill(story: Story, y: int) -> list[str]:
    parts = []
    for waiting in story.positions:
        red = waiting.rank in story.cycle
        style = ' class="red"' if red else ""
        if red:
            parts.append(f'<circle class="stuck" cx="{_x(waiting.rank)}" cy="{y}" r="7"/>')
        parts.append(f'<text{style} x="{_x(waiting.rank) + 12}" y="{y + 4}">at {escape(waiting.row)}</text>')
        if waiting.on is not None:
            x1, x2 = _x(waiting.rank), _x(waiting.on)
            bow = y + 16 + 8 * abs(waiting.rank - waiting.on)
            wait = "wait" if red else "message lost"
            tip = "redtip" if red else "tip"
            way = f"M{x1} {y + 8} Q{(x1 + x2) // 2} {bow} {x2} {y + 9}"
            parts.append(f'<path class="{wait}" marker-end="url(#{tip})" d="{way}"/>')
    return parts

"""Charts as SVG, drawn on the server. Colours come from classes of the style sheet, so that they follow light and dark.

Each chart has a title for screen readers, and its numbers are also in a table or in labels beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup, escape

from verifiers.runs.statistics import Estimate
from verifiers.view.formats import count, number
from verifiers.view.overview import Bin
from verifiers.view.transcript import visible

WIDTH = 560
HEIGHT = 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 14, 24


def _svg(
    content: str, title: str, width: int = WIDTH, height: int = HEIGHT, kind: str = ""
) -> Markup:
    title = visible(title)
    role = "group" if "<a " in content else "img"
    return Markup(
        f'<svg class="chart {kind}" viewBox="0 0 {width} {height}" role="{role}" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{content}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def histogram(bins: Sequence[Bin], link: Callable[[str], str] | None, title: str) -> Markup:
    """Return bars of rewards. Each bar links to its rollouts if `link` makes an address of a condition."""
    if not bins:
        return Markup("")
    most = max(one.rollouts for one in bins)
    inner_w, inner_h = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    step = inner_w / len(bins)
    gap = min(6.0, step * 0.15)
    parts = [_grid(most, inner_h)]
    for place, one in enumerate(bins):
        height = inner_h * one.rollouts / most if most else 0
        height = max(height, 1.5) if one.rollouts else 0
        x, y = _LEFT + place * step, _TOP + inner_h - height
        is_value = one.low == one.high
        label = number(one.low) if is_value else f"{number(one.low)} to {number(one.high)}"
        bar = (
            f"<title>reward {escape(label)}: {count(one.rollouts)} rollouts</title>"
            f'<rect class="hit" x="{x:.1f}" y="{_TOP}" width="{step:.1f}" height="{inner_h}"/>'
            f'<rect class="bar" x="{x + gap / 2:.1f}" y="{y:.1f}" width="{step - gap:.1f}" height="{height:.1f}"/>'
        )
        if link is not None and one.rollouts:
            name = f"reward {label}: {count(one.rollouts)} rollouts"
            bar = f'<a href="{escape(link(one.condition))}" aria-label="{escape(name)}">{bar}</a>'
        parts.append(f"<g>{bar}</g>")
        if is_value and len(bins) <= 12:
            parts.append(_text(x + step / 2, HEIGHT - 8, number(one.low)))
            if one.rollouts:
                parts.append(_text(x + step / 2, y - 3, count(one.rollouts), kind="tick value"))
    if bins[0].low != bins[0].high:
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            value = bins[0].low + share * (bins[-1].high - bins[0].low)
            anchor = "start" if share == 0 else "end" if share == 1 else "middle"
            parts.append(_text(_LEFT + share * inner_w, HEIGHT - 8, number(value), anchor))
    return _svg("".join(parts), title, kind="histogram")


def _grid(most: float, inner_h: float) -> str:
    lines = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + inner_h * (1 - share)
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        if share == 0 or most * share == int(most * share):
            lines.append(_text(_LEFT - 6, y + 3.5, count(int(most * share)), "end"))
    return "".join(lines)


def curves(series: Mapping[str, Mapping[int, Estimate]], title: str) -> Markup:
    """Return pass@k and pass^k over k on a logarithmic axis, with their intervals as bands."""
    ks = sorted({k for points in series.values() for k in points})
    if len(ks) < 2:
        return Markup("")
    inner_w, inner_h = WIDTH - _LEFT - _RIGHT - 46, HEIGHT - _TOP - _BOTTOM
    span = math.log2(ks[-1])

    def x_of(k: int) -> float:
        return _LEFT + inner_w * math.log2(k) / span

    def y_of(value: float) -> float:
        return _TOP + inner_h * (1 - min(1.0, max(0.0, value)))

    parts, label_y = [], -math.inf
    for share in (0.0, 0.5, 1.0):
        y = y_of(share)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + inner_w}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(_LEFT - 6, y + 3.5, f"{share:.0%}", "end"))
    parts += [_text(x_of(k), HEIGHT - 8, f"k = {k}" if k == ks[0] else str(k)) for k in ks]
    for place, (name, points) in enumerate(series.items()):
        known = [(k, points[k]) for k in ks if k in points]
        upper = [f"{x_of(k):.1f},{y_of(e.high):.1f}" for k, e in known if math.isfinite(e.high)]
        lower = [f"{x_of(k):.1f},{y_of(e.low):.1f}" for k, e in known if math.isfinite(e.low)]
        line = " ".join(f"{x_of(k):.1f},{y_of(e.mean):.1f}" for k, e in known)
        parts.append(
            f'<polygon class="band s{place}" points="{" ".join([*upper, *lower[::-1]])}"/>'
        )
        parts.append(f'<polyline class="line s{place}" points="{line}"/>')
        for k, e in known:
            parts.append(
                f'<circle class="dot s{place}" cx="{x_of(k):.1f}" cy="{y_of(e.mean):.1f}" r="3">'
                f"<title>{escape(name)}, k = {k}: {e.mean:.1%}</title></circle>"
            )
        last_k, last = known[-1]
        label_y = max(y_of(last.mean) + 4, label_y + 12)  # pass@k is never below pass^k
        parts.append(_text(x_of(last_k) + 7, label_y, name, "start", f"label s{place}"))
    return _svg("".join(parts), title, kind="curves")


def spark(counts: Sequence[int], title: str) -> Markup:
    """Return a small histogram for a table cell."""
    if not counts or not max(counts):
        return Markup("")
    most, step = max(counts), 80 / len(counts)
    bars = "".join(
        f'<rect class="bar" x="{place * step:.1f}" y="{18 - 17 * value / most:.1f}" width="{step - 1:.1f}" '
        f'height="{17 * value / most + 1:.1f}"/>'
        for place, value in enumerate(counts)
        if value
    )
    return _svg(
        f'<line class="grid" x1="0" x2="80" y1="19" y2="19"/>{bars}', title, 80, 20, "spark"
    )


def interval(estimate: Estimate, low: float, high: float, title: str) -> Markup:
    """Return a mean with its interval on the range from `low` to `high`."""
    if not math.isfinite(estimate.mean) or high <= low:
        return Markup("")

    def x_of(value: float) -> float:
        return 4 + 132 * (min(high, max(low, value)) - low) / (high - low)

    parts = ['<line class="grid" x1="4" x2="136" y1="8" y2="8"/>']
    if low < 0 < high:
        parts.append(f'<line class="zero" x1="{x_of(0):.1f}" x2="{x_of(0):.1f}" y1="1" y2="15"/>')
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        x1, x2 = x_of(estimate.low), x_of(estimate.high)
        parts.append(f'<line class="whisker" x1="{x1:.1f}" x2="{x2:.1f}" y1="8" y2="8"/>')
    parts.append(f'<circle class="dot s0" cx="{x_of(estimate.mean):.1f}" cy="8" r="3.5"/>')
    return _svg("".join(parts), title, 140, 16, "interval")


def shares(parts: Sequence[tuple[str, float]], title: str) -> Markup:
    """Return one bar divided into parts, such as the time of a rollout."""
    total = sum(value for _, value in parts)
    if total <= 0:
        return Markup("")
    x, drawn = 0.0, []
    for place, (name, value) in enumerate(parts):
        width = 560 * value / total
        drawn.append(
            f'<rect class="part p{place}" x="{x:.1f}" y="0" width="{max(0.0, width - 1):.1f}" height="12">'
            f"<title>{escape(name)}: {value / total:.0%}</title></rect>"
        )
        x += width
    return _svg("".join(drawn), title, 560, 12, "shares")

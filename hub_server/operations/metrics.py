"""Counters in the text form that Prometheus reads."""

from collections import Counter

BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class Metrics:
    """What one worker counted since it started. Labels are routes, never user text."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self._requests[route, status] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]  # a Counter holds floats too
        for bucket_s in BUCKETS_S:
            if seconds <= bucket_s:
                self._buckets[route, bucket_s] += 1
                break

    def render(self, gauges: dict[str, float]) -> str:
        """All counters and the given gauges."""
        lines = ["# TYPE vf_hub_requests_total counter"]
        totals: Counter[str] = Counter()
        for (route, status), count in sorted(self._requests.items()):
            totals[route] += count
            lines.append(f'vf_hub_requests_total{{route="{route}",status="{status}"}} {count}')
        lines.append("# TYPE vf_hub_request_seconds histogram")
        for route, total in sorted(totals.items()):
            below = 0
            for bucket_s in BUCKETS_S:
                below += self._buckets[route, bucket_s]
                lines.append(
                    f'vf_hub_request_seconds_bucket{{route="{route}",le="{bucket_s}"}} {below}'
                )
            lines.append(f'vf_hub_request_seconds_bucket{{route="{route}",le="+Inf"}} {total}')
            seconds = self._seconds[route]
            lines.append(f'vf_hub_request_seconds_sum{{route="{route}"}} {seconds:.6f}')
            lines.append(f'vf_hub_request_seconds_count{{route="{route}"}} {total}')
        for name, value in sorted(gauges.items()):
            lines += [f"# TYPE vf_hub_{name} gauge", f"vf_hub_{name} {value:g}"]
        return "\n".join(lines) + "\n"

"""Run many rollouts: groups, limits, retries, cancellation and clean-up. Read `schedule` first, then `scope` and
`limits`.
"""

"""Rubrics: reward functions, their weights, and their calls.

Read `rubric` first, then `reward_call` (binding) and `scoring` (values). `watchdog` holds the time limits; the other
modules are rubrics for a purpose (judge, mathematics, sandboxes, tools) and `missing_answers`, a check before a run.
"""

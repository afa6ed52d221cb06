"""Results of evaluations, tied to environment versions.

`service` opens and closes evaluations, `samples` stores and sends their rollouts.
"""

"""Environments that run on this package and on the published verifiers 0.1.14, with equal replies of a model.

`environments/` has the environments, `endpoint` the scripted model, `play` the program that each side executes, and
`compare` the differences. `play` and the environments import only the standard library, `datasets`, `openai` and public
names of `verifiers`, because both sides execute them. `explained` lists the deliberate differences.

To add an environment, write a function with `@case(…)` in a module of `environments/`. To record the results of 0.1.14
for the short test, run `python -m differential.record` with an interpreter that has that release.
"""

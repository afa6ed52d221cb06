"""The reference trainer: three processes that show everything else at work. Needs the `train` extra (torch).

config            `TrainConfig`, read from TOML; `configs/` has examples
demonstrations    right replies played through an environment: what the warm start learns from
learner, muon     the model and its steps, in torch
"""

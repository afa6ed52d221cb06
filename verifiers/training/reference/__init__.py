"""The reference trainer: orchestrator, trainer process and inference server. Needs the `train` extra (torch).

    config             `TrainConfig`, read from TOML; `configs/` has examples
    orchestrator       the run: rollouts, batches to the trainer, weights to the server
    trainer_process    the trainer process as the orchestrator uses it, and the messages between the two
    worker             the program of the trainer process
    learner            model, optimizers and steps
    demonstrations     correct replies played through an environment, as training data of the warm start
    run_folder         checkpoints and metrics, and how they survive interruptions
    curve              the reward curve as an SVG file

Read `orchestrator` first, then `learner`. `vf-train` is the command; docs/train-a-model.md explains it. Only `worker`
and `learner` import torch.
"""

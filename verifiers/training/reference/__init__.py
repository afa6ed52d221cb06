"""The reference trainer: three processes that show everything else at work. Needs the `train` extra (torch).

    config                     `TrainConfig`, read from TOML; `configs/` has examples
    orchestrator               the run: rollouts, batches to the trainer, weights to the server
    trainer_process            the orchestrator's side of the trainer's process, and what goes over the pipe
    worker                     the trainer's process
    learner                    model and optimizers, and the steps they take
    demonstrations             right replies played through an environment: what the warm start learns from
    run_folder                 checkpoints, metrics, and how they survive interruptions
    curve                      the reward curve as an SVG file

`vf-train` is the command; docs/train-a-model.md explains it. torch is imported by `worker` and `learner` only.
"""

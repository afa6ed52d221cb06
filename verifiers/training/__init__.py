"""From rollouts to a trainer: samples, advantages, losses, packing, and an asynchronous source of batches.

    samples           rollout → `TokenSample`s, and the validator that checks them
    exports           samples and rollouts → JSONL, Arrow, Parquet; rows for SFT and preference trainers
    advantages        rewards of a group → advantages
    losses            policy losses as pure functions of numpy arrays or torch tensors
    packing           samples → micro-batches
    source            `RolloutSource`: groups played continuously, bounded staleness, difficulty pools, evaluations
    inference_admin   pause, new weights, resume: prime-rl's routes and vLLM's

Read `samples` first, then `source` and `dispatch`. torch is imported only by functions that receive tensors. See
docs/train.md.
"""

"""Runs: a finished rollout as a value, the folder that stores rollouts, the rollouts still missing, and statistics.

A run is a folder with `results.jsonl` (one finished rollout per line) and `metadata.json`. Reading order:

    output       State → RolloutOutput → one line of JSON, and back: output_from_state, encode_line, decode_line
    folders      names and locks of run folders: new_run_folder, saved_runs
    store        reading and writing a run folder: iterate_outputs, load_outputs, iterate_index, RunStore
    index        one short line per rollout, so that no reader loads a whole run: short_output
    run_tokens   the token file of a run, if the endpoint returns token ids
    resume       the run to continue and its missing rollouts: run_to_continue, continue_run, plan
    statistics   means, standard errors, intervals, pass@k; numpy only
    summary      Summary of a run: summarize, RunningSummary
    description  metadata of a run: RunDescription, versions, provenance
    prices       tokens → cost, from a price table of the user
    frames       runs as tables for pandas, polars, Arrow: runs_df, rollouts_df, messages_df
    publish      a run as a `datasets.Dataset`, and on the Hugging Face hub
    v0           names that only callers of v0 use

This package imports neither rubrics nor environments. Two keys tie a saved rollout to its input: `input_key` (hash of
the row's content) and `rollout_index` (0 … r-1 within the example). Set both in the state before a rollout starts.
"""

"""Runs: what a finished rollout looks like, where it is kept, what is still missing, what the numbers mean.

A run is a folder with `results.jsonl` (one finished rollout a line) and `metadata.json`. Reading order:

    output       State → RolloutOutput, the value that is returned and saved
        output_from_state(state, state_columns=None) -> RolloutOutput
    encoding     RolloutOutput ↔ one line of JSON
        encode_line(output) -> bytes · decode_line(line) -> RolloutOutput · jsonable(value)
    folders      where runs lie and how they are found
        new_run_folder(env_id, model, ...) · find_latest_incomplete(...) · is_run_folder(path)
    saved        reading a run folder
        iterate_outputs(folder) · load_outputs(folder) · load_metadata(folder)
    store        writing one: durable appends, repair, lock
        RunStore.create(folder, metadata) · RunStore.open(folder) · RunStore.create_or_open(folder, metadata)
        await store.append(outputs) · store.write_metadata(metadata) · store.outputs() · store.supersede(...)
        store.close() (also `with` and `async with`)
    run_tokens   the token file beside it, when the endpoint gives token ids
        RunTokens(folder).add(outputs, trajectories) · outputs_with_tokens(folder)
    resume       what is missing, as pure functions
        plan(rows, rollouts_per_example, saved, ...) -> ResumePlan · validate_resume_metadata(...)
    statistics   means, standard errors, intervals, pass@k; numpy only
    summary      Summary of a run: summarize(outputs, ...) · RunningSummary().add(outputs)
    description  RunDescription: what is known before a run; .metadata(summary, ...) -> GenerateMetadata
    provenance   which code, data and endpoint gave the numbers
    prices       tokens → cost, from a price table the user gives
    metrics      running means by their v0 names
    publish      a run as a `datasets.Dataset`, and on the Hugging Face hub

Nothing here knows rubrics or environments. Two keys tie a saved rollout to its input: `input_key` (hash of the
row's content) and `rollout_index` (0 … r-1 within the example); put both into the state before a rollout starts.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verifiers.endpoint import Engine, FinishReason, Generation, PauseMode, RequestError, Sampling
from verifiers.endpoint.model import Model, ModelWeights, Segment, prepare_weights
from verifiers.endpoint.tokenizer import BYTE_OFFSET, END, END_OF_TEXT, STOP_TOKENS, decode, encode

GREEDY = Sampling(temperature=0.0)


@pytest.fixture
def engine(tiny_model) -> Engine:
    return Engine(tiny_model, max_running=8)


def ask(text="hello", max_tokens=12, **options) -> Generation:
    options.setdefault("ignore_eos", True)
    return Generation(prompt_ids=encode(text), max_tokens=max_tokens, **options)


def prompts(count: int) -> list[str]:
    return [f"prompt {index} " + "x" * (index % 7) for index in range(count)]


def rescored(model: Model, prompt, written, temperature=1.0) -> np.ndarray:
    """Log-probabilities of the written tokens, by one pass over the whole sequence."""
    ids = [*prompt, *written]
    logits = model.prefill([Segment(0, 0, ids)], model.new_cache(1), all_positions=True).astype(
        np.float64
    )
    scaled = logits[len(prompt) - 1 : -1] / temperature
    logprobs = scaled - np.log(np.exp(scaled - scaled.max(1, keepdims=True)).sum(1, keepdims=True))
    logprobs -= scaled.max(1, keepdims=True)
    return logprobs[np.arange(len(written)), written]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_reported_log_probabilities_equal_recomputed_ones(engine, tiny_model, temperature):
    generations = [
        ask(text, 20, sampling=Sampling(temperature=temperature), seed=index)
        for index, text in enumerate(prompts(12))
    ]
    for sequence in engine.run(*generations):
        expected = rescored(
            tiny_model, sequence.generation.prompt_ids, sequence.token_ids, temperature
        )
        np.testing.assert_allclose(sequence.token_logprobs, expected, atol=1e-3)


def test_greedy_tokens_are_the_most_likely_ones_every_time(tiny_model):
    first, second = (Engine(tiny_model).run(ask(sampling=GREEDY))[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    ids = [*first.generation.prompt_ids, *first.token_ids]
    logits = tiny_model.prefill([Segment(0, 0, ids)], tiny_model.new_cache(1), all_positions=True)
    assert logits.argmax(1)[len(first.generation.prompt_ids) - 1 : -1].tolist() == first.token_ids


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(top_p=0.8, min_p=0.01)], ids=str)
def test_a_request_gives_the_same_tokens_alone_and_in_a_batch_of_32(tiny_model, sampling):
    generations = [
        ask(text, 5 + index % 20, sampling=sampling, seed=index)
        for index, text in enumerate(prompts(32))
    ]
    together = Engine(tiny_model, max_running=32).run(*generations)
    for generation, sequence in list(zip(generations, together, strict=True))[::5]:
        assert Engine(tiny_model).run(generation)[0].token_ids == sequence.token_ids


def test_the_seed_and_the_choice_decide_the_tokens(engine):
    def tokens(**options):
        return tuple(engine.run(ask(max_tokens=30, **options))[0].token_ids)

    assert tokens(seed=1) == tokens(seed=1)
    assert len({tokens(seed=1), tokens(seed=2), tokens(seed=1, choice=1), tokens(), tokens()}) == 5


def test_sequences_join_and_leave_the_batch_at_any_step(engine, tiny_model):
    ended = []
    lengths = [3, 30, 1, 7, 2, 25, 4, 6, 9, 2, 11, 5]

    def end(sequence):
        ended.append(sequence.generation.choice)

    sequences = []
    for index, length in enumerate(lengths):
        generation = ask(prompts(12)[index], length, seed=index, choice=index)
        sequences.append(engine.submit(generation, on_finish=end))
        engine.step()
        assert engine.status.running <= 8
    while engine.has_work:
        engine.step()
    assert sorted(ended) == list(range(12))
    assert ended.index(2) < ended.index(1), "a short request must not wait for a long one"
    for sequence, length in zip(sequences, lengths, strict=True):
        assert (len(sequence.token_ids), sequence.finish_reason) == (length, FinishReason.LENGTH)
        expected = rescored(tiny_model, sequence.generation.prompt_ids, sequence.token_ids)
        np.testing.assert_allclose(sequence.token_logprobs, expected, atol=1e-3)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 40), st.integers(1, 12)),
        st.tuples(st.just("cancel"), st.integers(0, 40), st.just(0)),
        st.tuples(st.sampled_from(["step", "step", "update"]), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations)
def test_whatever_joins_leaves_and_changes_every_sequence_stays_its_own(
    tiny_model, tiny_config, make_tensors, operations
):
    weights = [tiny_model.weights, prepare_weights(make_tensors(9), tiny_config)]
    model = Model(tiny_config, weights[0])
    engine = Engine(model, max_running=3)
    sequences = []
    for operation, number, length in operations:
        if operation == "submit":
            text = "shared beginning"[: number % 17] + "abc"[number % 3]
            scored = number % 5 == 0
            sequences.append(engine.submit(ask(text, length, seed=number, prompt_logprobs=scored)))
        elif operation == "cancel" and sequences:
            engine.cancel(sequences[number % len(sequences)])
        elif operation == "update":
            engine.update_weights(weights[(engine.version + 1) % 2])
        else:
            engine.step()
    while engine.has_work:
        engine.step()
    assert engine.status[:2] == (0, 0)
    for sequence in sequences:
        asked, ids = sequence.generation, sequence.token_ids
        if sequence.finish_reason is FinishReason.LENGTH:
            assert len(ids) == asked.max_tokens
        else:
            assert sequence.finish_reason is FinishReason.ABORT
        assert len(ids) == len(sequence.token_logprobs) == len(sequence.token_versions)
        versions = set(sequence.token_versions)
        if len(versions) == 1:
            model.weights = weights[versions.pop() % 2]
            expected = rescored(model, asked.prompt_ids, ids)
            np.testing.assert_allclose(sequence.token_logprobs, expected, atol=1e-3)
    finished = sum(engine.counts[f"finished_{reason}"] for reason in FinishReason)
    assert finished == len(sequences)


def other_weights(make_tensors, config, seed=9) -> ModelWeights:
    return prepare_weights(make_tensors(seed), config)


def test_new_weights_take_over_in_flight_and_keep_the_cache(
    engine, tiny_model, tiny_config, make_tensors
):
    old, new = tiny_model.weights, other_weights(make_tensors, tiny_config)
    sequence = engine.submit(ask(max_tokens=10, sampling=GREEDY))
    for _ in range(4):
        engine.step()
    assert engine.update_weights(new, version=7) == 7
    while engine.has_work:
        engine.step()
    prompt, ids = sequence.generation.prompt_ids, sequence.token_ids
    before = sequence.token_versions.count(0)
    assert sequence.token_versions == [0] * before + [7] * (10 - before)
    assert 0 < before < 10
    # By hand: the old weights fill the cache, the new ones go on from it.
    model = Model(tiny_config, old)
    cache = model.new_cache(1)
    model.prefill([Segment(0, 0, [*prompt, *ids[: before - 1]])], cache)
    model.weights = new
    for place in range(before - 1, 9):
        logits = model.decode(
            np.array(ids[place : place + 1]), np.array([len(prompt) + place]), cache
        )
        assert int(logits.argmax()) == ids[place + 1]


def test_what_old_weights_computed_is_not_reused(engine, tiny_config, make_tensors):
    long = "a common beginning of some length "
    engine.run(ask(long + "1", 1))
    assert engine.run(ask(long + "2", 1))[0].cached_tokens == len(long)
    engine.update_weights(other_weights(make_tensors, tiny_config))
    sequence = engine.run(ask(long + "3", 8, sampling=GREEDY))[0]
    assert sequence.cached_tokens == 0
    expected = rescored(engine.model, sequence.generation.prompt_ids, sequence.token_ids)
    np.testing.assert_allclose(sequence.token_logprobs, expected, atol=1e-3)


def test_requests_with_another_salt_share_nothing(engine):
    engine.run(ask("the same prompt", 1, cache_salt="a"))
    assert engine.run(ask("the same prompt", 1, cache_salt="b"))[0].cached_tokens == 0
    assert (
        engine.run(ask("the same prompt", 1, cache_salt="a"))[0].cached_tokens
        == len("the same prompt") - 1
    )


def test_choices_of_one_prompt_compute_it_once(engine):
    text = "a prompt that is long enough to be shared"
    generation = ask(text, 4, seed=3)
    sequences = engine.run(*(dataclasses.replace(generation, choice=choice) for choice in range(6)))
    assert [sequence.cached_tokens for sequence in sequences] == [0] + [len(text) - 1] * 5
    assert len({tuple(sequence.token_ids) for sequence in sequences}) > 1


def test_cancelling_frees_the_row_for_who_waits(engine):
    sequences = [engine.submit(ask(max_tokens=40)) for _ in range(9)]
    engine.step()
    assert engine.status[:2] == (8, 1)
    engine.cancel(sequences[3])
    engine.step()
    assert engine.status[:2] == (8, 0)
    engine.cancel(sequences[3])
    assert sequences[3].finish_reason is FinishReason.ABORT
    assert engine.cancel_all() == 8
    assert engine.status[:2] == (0, 0)
    assert not engine.has_work
    assert engine.counts["finished_abort"] == 9


def test_a_waiting_request_can_be_cancelled(engine):
    sequences = [engine.submit(ask(max_tokens=5)) for _ in range(10)]
    engine.step()
    engine.cancel(sequences[9])
    while engine.has_work:
        engine.step()
    assert [str(sequence.finish_reason) for sequence in sequences] == ["length"] * 9 + ["abort"]


def test_pause_keep_freezes_and_resume_goes_on(engine):
    sequence = engine.submit(ask(max_tokens=6, seed=1))
    engine.step()
    engine.pause(PauseMode.KEEP)
    written = list(sequence.token_ids)
    late = engine.submit(ask(max_tokens=2))
    engine.step()
    assert (sequence.token_ids, late.token_ids, engine.has_work) == (written, [], False)
    engine.resume()
    while engine.has_work:
        engine.step()
    assert sequence.token_ids == Engine(engine.model).run(ask(max_tokens=6, seed=1))[0].token_ids
    assert late.finish_reason is FinishReason.LENGTH


def test_pause_abort_ends_everything_with_what_there_is(engine):
    running = engine.submit(ask(max_tokens=30))
    engine.step()
    engine.pause(PauseMode.ABORT)
    assert running.finish_reason is FinishReason.ABORT
    assert len(running.token_ids) > 0
    assert engine.status.paused


def test_pause_wait_finishes_what_runs_and_starts_nothing(engine):
    running = engine.submit(ask(max_tokens=5))
    engine.step()
    waiting = engine.submit(ask(max_tokens=5))
    engine.pause(PauseMode.WAIT)
    assert engine.is_draining
    while engine.has_work:
        engine.step()
    assert (running.finish_reason, waiting.finish_reason) == (FinishReason.LENGTH, None)
    assert not engine.is_draining
    with pytest.raises(RuntimeError, match="paused"):
        engine.run(ask())


def test_the_end_of_the_context_ends_a_sequence(engine):
    sequence = engine.run(ask("x" * 60, max_tokens=100))[0]
    assert (len(sequence.token_ids), sequence.finish_reason) == (4, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("text", "words"), [("", "empty"), ("x" * 64, "maximum context length is 64 tokens")]
)
def test_prompts_that_cannot_run_are_refused(engine, text, words):
    with pytest.raises(RequestError, match=words):
        engine.submit(ask(text))


def test_an_end_token_ends_unless_ignored(engine):
    biased = Sampling(logit_bias={END: 100.0})
    stopped = engine.run(ask(sampling=biased, ignore_eos=False))[0]
    assert (stopped.token_ids, stopped.finish_reason, stopped.text) == (
        [END],
        FinishReason.STOP,
        "",
    )
    ignored = engine.run(ask(sampling=biased, max_tokens=3))[0]
    assert (ignored.token_ids, ignored.finish_reason) == ([END] * 3, FinishReason.LENGTH)


def test_no_end_before_the_least_number_of_tokens(engine):
    biased = Sampling(logit_bias={END: 100.0, END_OF_TEXT: 90.0})
    sequence = engine.run(ask(sampling=biased, ignore_eos=False, min_tokens=4))[0]
    assert len(sequence.token_ids) == 5
    assert not set(sequence.token_ids[:4]) & set(STOP_TOKENS)


def test_stop_tokens_and_stop_strings_end_a_sequence(engine):
    letter = ord("q") + BYTE_OFFSET
    biased = Sampling(temperature=0.0, logit_bias={letter: 100.0})
    by_token = engine.run(ask(sampling=biased, stop_token_ids=(letter,)))[0]
    assert (by_token.token_ids, by_token.stop_match, by_token.text) == ([letter], letter, "q")
    by_text = engine.run(ask(sampling=biased, stop=("qqq", "zz")))[0]
    assert (by_text.token_ids, by_text.stop_match, by_text.text) == ([letter] * 3, "qqq", "")
    included = engine.run(ask(sampling=biased, stop=("qqq",), include_stop=True))[0]
    assert (included.text, included.finish_reason) == ("qqq", FinishReason.STOP)


def test_penalties_change_what_is_generated(engine):
    plain = engine.run(ask(max_tokens=30, sampling=GREEDY))[0].token_ids
    penalised = engine.run(
        ask(max_tokens=30, sampling=Sampling(temperature=0.0, frequency_penalty=2.0))
    )[0].token_ids
    assert len(set(penalised)) > len(set(plain))


def test_alternatives_are_sorted_and_contain_the_greedy_choice(engine):
    sequence = engine.run(ask(sampling=GREEDY, top_logprobs=3))[0]
    for token, logprob, top in zip(
        sequence.token_ids, sequence.token_logprobs, sequence.top_logprobs, strict=True
    ):
        assert top[0] == (token, pytest.approx(logprob))
        assert [entry[1] for entry in top] == sorted((entry[1] for entry in top), reverse=True)


def test_prompt_log_probabilities_equal_recomputed_ones(engine, tiny_model):
    engine.run(ask("score me", 1))
    sequence = engine.run(ask("score me", 1, prompt_logprobs=True, top_logprobs=2))[0]
    ids = sequence.generation.prompt_ids
    assert sequence.prompt_logprobs[0] is None
    np.testing.assert_allclose(
        sequence.prompt_logprobs[1:], rescored(tiny_model, ids[:1], ids[1:]), atol=1e-3
    )
    assert len(sequence.prompt_top_logprobs) == len(ids)


def test_prompts_scored_together_do_not_disturb_each_other(engine, tiny_model):
    asked = [
        ask(text, 1 + index % 3, prompt_logprobs=index % 2 == 0)
        for index, text in enumerate(prompts(8))
    ]
    for sequence in engine.run(*asked):
        ids = [*sequence.generation.prompt_ids, *sequence.token_ids]
        expected = rescored(tiny_model, ids[:1], ids[1:])
        known = [*sequence.prompt_logprobs[1:], *sequence.token_logprobs]
        np.testing.assert_allclose(known, expected[-len(known) :], atol=1e-3)


def test_streamed_pieces_join_to_the_text(engine):
    pieces = []
    generation = ask("streams", 25, streams_text=True, stop=("~~",), seed=4)
    sequence = engine.submit(generation, on_token=lambda _, piece: pieces.append(piece))
    while engine.has_work:
        engine.step()
    assert "".join(pieces) == sequence.text == decode(sequence.token_ids)


def test_weights_that_overflow_end_the_sequences_with_an_error(engine, tiny_model):
    healthy = engine.run(ask())[0]
    broken = tiny_model.weights
    engine.update_weights(dataclasses.replace(broken, head=broken.head * np.float32(1e38)))
    sequences = engine.run(ask(), ask("other"))
    assert [str(sequence.finish_reason) for sequence in sequences] == ["error", "error"]
    engine.update_weights(broken)
    assert engine.run(ask("other"))[0].finish_reason is healthy.finish_reason


def test_a_long_prompt_does_not_starve_the_running_ones(shipped_model):
    engine = Engine(Model(shipped_model.config, shipped_model.weights), max_running=4)
    running = engine.submit(Generation(encode("hi"), 50, ignore_eos=True))
    engine.step()
    engine.submit(Generation(encode("y" * 1500), 2, ignore_eos=True))
    before = len(running.token_ids)
    engine.step()
    assert len(running.token_ids) == before + 1

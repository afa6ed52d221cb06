import dataclasses

import numpy as np
import pytest

from verifiers.endpoint.model import Model, Segment, prepare_weights
from verifiers.endpoint.tokenizer import VOCAB_SIZE

IDS = np.random.default_rng(1).integers(0, VOCAB_SIZE, 30).tolist()


def test_logits_equal_the_reference(tiny_model, tiny_config, make_tensors, reference_logits):
    logits = tiny_model.prefill([Segment(0, 0, IDS)], tiny_model.new_cache(1), all_positions=True)
    np.testing.assert_allclose(
        logits, reference_logits(make_tensors(0), tiny_config, IDS), atol=1e-4
    )


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_tied_embeddings_and_other_head_groupings_equal_the_reference(
    tiny_config, random_tensors_of, reference_logits, kv_heads
):
    config = dataclasses.replace(
        tiny_config, num_key_value_heads=kv_heads, tie_word_embeddings=True
    )
    tensors = random_tensors_of(config, 5)
    model = Model(config, prepare_weights(tensors, config))
    logits = model.prefill([Segment(0, 0, IDS)], model.new_cache(1), all_positions=True)
    np.testing.assert_allclose(logits, reference_logits(tensors, config, IDS), atol=1e-4)


def test_decoding_with_the_cache_equals_the_full_forward(tiny_model):
    full = tiny_model.prefill([Segment(0, 0, IDS)], tiny_model.new_cache(1), all_positions=True)
    cache = tiny_model.new_cache(1)
    tiny_model.prefill([Segment(0, 0, IDS[:10])], cache)
    for position in range(10, len(IDS)):
        logits = tiny_model.decode(np.array([IDS[position]]), np.array([position]), cache)
        np.testing.assert_allclose(logits[0], full[position], atol=1e-4)


def test_a_prompt_in_pieces_equals_the_prompt_at_once(tiny_model):
    full = tiny_model.prefill([Segment(0, 0, IDS)], tiny_model.new_cache(1))
    cache = tiny_model.new_cache(3)
    for begin, end in ((0, 1), (1, 12), (12, 13)):
        tiny_model.prefill([Segment(2, begin, IDS[begin:end])], cache)
    pieces = tiny_model.prefill([Segment(2, 13, IDS[13:])], cache)
    np.testing.assert_allclose(pieces, full, atol=1e-4)


def test_sequences_of_one_call_do_not_touch_each_other(tiny_model):
    prompts = [IDS[:7], IDS[3:20], IDS[5:6]]
    cache = tiny_model.new_cache(3)
    together = tiny_model.prefill([Segment(row, 0, ids) for row, ids in enumerate(prompts)], cache)
    positions = np.array([len(ids) for ids in prompts])
    stepped = tiny_model.decode(np.array([9, 10, 11]), positions, cache)
    for row, ids in enumerate(prompts):
        alone = tiny_model.new_cache(1)
        np.testing.assert_allclose(
            together[row], tiny_model.prefill([Segment(0, 0, ids)], alone)[0], atol=1e-4
        )
        logits = tiny_model.decode(np.array([9 + row]), positions[row : row + 1], alone)
        np.testing.assert_allclose(stepped[row], logits[0], atol=1e-4)


def test_torch_gives_the_same_log_probabilities(tiny_model, tiny_config, make_tensors):
    torch = pytest.importorskip("torch")
    from verifiers.endpoint.torch_llama import TorchLlama

    torch.set_num_threads(1)
    twin = TorchLlama(tiny_config)
    twin.load_state_dict({name: torch.from_numpy(array) for name, array in make_tensors(0).items()})
    with torch.no_grad():
        theirs = torch.log_softmax(twin(torch.tensor([IDS])), -1)[0].numpy()
    logits = tiny_model.prefill([Segment(0, 0, IDS)], tiny_model.new_cache(1), all_positions=True)
    ours = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    kl = (np.exp(theirs) * (theirs - ours)).sum(-1)
    assert abs(kl).max() < 1e-6

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.training.losses import LOSSES
from verifiers.training.packing import PackingError, pack, pad, tensors_of, token_logprobs
from verifiers.training.samples import TokenSample

STREAMS = {
    "input_ids": "token_ids",
    "mask": "mask",
    "inference_logprobs": "logprobs",
    "versions": "versions",
}


@st.composite
def samples(draw, max_length=12):
    length = draw(st.integers(1, max_length))
    mask = np.array(
        [False, *draw(st.lists(st.booleans(), min_size=length - 1, max_size=length - 1))]
    )
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    return TokenSample(
        token_ids=rng.integers(0, 50, length).astype(np.int32),
        mask=mask,
        logprobs=np.where(mask, -rng.random(length), 0).astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
        prompt_len=1,
        reward=1.0,
        advantage=draw(st.sampled_from([-1.0, 0.5, 2.0])),
        temperature=draw(st.sampled_from([0.7, 1.0])),
    )


@given(
    st.lists(samples(), max_size=12),
    st.integers(3, 8),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
)
def test_every_sample_is_packed_once_and_whole_and_ranks_have_equal_shares(
    many, quarter, ranks, multiple_of
):
    max_tokens = quarter * 4
    shares = pack(many, max_tokens, ranks=ranks, multiple_of=multiple_of, pad_id=49)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    seen = []
    for batch in (batch for share in shares for batch in share):
        assert len(batch) <= max_tokens
        assert len(batch) % multiple_of == 0
        assert batch.cu_seqlens[-1] == len(batch)
        starts = batch.cu_seqlens[:-1]
        assert (batch.position_ids[starts] == 0).all()
        assert (np.diff(batch.position_ids)[np.diff(batch.sequence_ids) == 0] == 1).all()
        assert batch.max_seqlen == max(np.diff(batch.cu_seqlens))
        for place, number in enumerate(batch.sample_numbers):
            here = batch.sequence_ids == place
            sample = many[number]
            for name, own in STREAMS.items():
                assert getattr(batch, name)[here].tolist() == getattr(sample, own).tolist()
            assert batch.advantages[here].tolist() == sample.token_advantages().tolist()
            assert (batch.temperatures[here] == np.float32(sample.temperature)).all()
        padding = batch.sequence_ids >= len(batch.sample_numbers)
        assert not batch.mask[padding].any()
        assert (batch.input_ids[padding] == 49).all()
        seen += batch.sample_numbers
    assert sorted(seen) == list(range(len(many)))


def of_length(*lengths):
    return [
        TokenSample(
            token_ids=np.zeros(n, np.int32),
            mask=np.zeros(n, bool),
            logprobs=np.zeros(n, np.float32),
            prompt_len=n,
            reward=0.0,
        )
        for n in lengths
    ]


def test_long_samples_are_placed_first_and_gaps_are_filled():
    [share] = pack(of_length(3, 7, 5, 5, 3, 7), 10)
    assert sorted(len(batch) for batch in share) == [10, 10, 10]


def test_ranks_carry_about_the_same_number_of_tokens():
    shares = pack(of_length(*range(1, 101)), 100, ranks=4)
    loads = [sum(len(batch) for batch in share) for share in shares]
    assert max(loads) - min(loads) <= 100


def test_what_cannot_be_packed_is_named():
    with pytest.raises(PackingError, match=r"Sample 1 has 9 tokens.*sample.cut\(8\)"):
        pack(of_length(3, 9), 8)
    with pytest.raises(PackingError, match="multiple_of=3"):
        pack([], 8, multiple_of=3)
    [first] = of_length(2)
    first.mask[0] = True
    with pytest.raises(PackingError, match="very first token"):
        pack([first], 8)
    with pytest.raises(PackingError, match="no samples"):
        pad([])


@given(st.lists(samples(), min_size=1, max_size=6))
def test_rows_hold_the_samples_and_padding_trains_nothing(many):
    batch = pad(many, multiple_of=4, pad_id=7)
    assert batch.input_ids.shape[1] % 4 == 0
    for row, sample in enumerate(many):
        n = len(sample)
        for name, own in STREAMS.items():
            assert getattr(batch, name)[row, :n].tolist() == getattr(sample, own).tolist()
        assert batch.attention_mask[row].tolist() == [True] * n + [False] * (
            batch.input_ids.shape[1] - n
        )
        assert not batch.mask[row, n:].any()
        assert (batch.input_ids[row, n:] == 7).all()
        assert batch.position_ids[row, :n].tolist() == list(range(n))


@given(st.lists(samples(), min_size=1, max_size=6), st.sampled_from(sorted(LOSSES)))
def test_a_loss_is_the_same_packed_and_padded(many, name):
    rows = pad(many)
    [share] = pack(many, 100)
    rng = np.random.default_rng(0)
    train = {n: -rng.random(len(sample)) for n, sample in enumerate(many)}
    train_rows = np.zeros(rows.input_ids.shape)
    for n, own in train.items():
        train_rows[n, : len(own)] = own
    whole = LOSSES[name](train_rows, rows.inference_logprobs, rows.advantages, rows.mask)
    [batch] = share
    flat = np.concatenate([train[n] for n in batch.sample_numbers])
    other = LOSSES[name](
        flat,
        batch.inference_logprobs,
        batch.advantages,
        batch.mask,
        sequence_ids=batch.sequence_ids,
    )
    assert float(other.loss) == pytest.approx(float(whole.loss), rel=1e-5, abs=1e-7)


def test_tensors_have_the_types_that_models_take():
    torch = pytest.importorskip("torch")
    [[batch]] = pack(of_length(3, 2), 8)
    tensors = tensors_of(batch)
    assert tensors["input_ids"].dtype == torch.int64
    assert tensors["cu_seqlens"].dtype == torch.int32
    assert tensors["mask"].dtype == torch.bool
    assert set(tensors_of(pad(of_length(2)))) >= {"input_ids", "attention_mask", "advantages"}


def test_log_probabilities_describe_the_token_at_their_index():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator, requires_grad=True)
    ids = torch.randint(0, 7, (2, 5), generator=generator)
    temperatures = torch.tensor([[0.5] * 5, [0.0] * 5])
    found = token_logprobs(logits, ids, temperatures)
    assert found[:, 0].tolist() == [0.0, 0.0]
    for row, temperature in ((0, 0.5), (1, 1.0)):
        for t in range(1, 5):
            expected = torch.log_softmax(logits[row, t - 1] / temperature, -1)[ids[row, t]]
            assert found[row, t].item() == pytest.approx(expected.item(), abs=1e-6)
    found.sum().backward()
    assert not logits.grad[:, -1].any()

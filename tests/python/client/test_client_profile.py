"""Profiles and shapes: what is refused before it is sent, and what is sent."""

import dataclasses

import pageferry as pf
import pytest
from pageferry.errors import DeadlineExceeded, InvalidArgument

import fake_agent
from conftest import ITEM_BYTES, KV_BYTES, LAYERS, PAGES, POOL_BYTES, profile

Agents = tuple[fake_agent.FakeAgent, fake_agent.FakeAgent]


def changed(**fields: object) -> pf.KvProfile:
    return dataclasses.replace(profile(), **fields)  # type: ignore[arg-type]


def entry(**fields: object) -> pf.KvProfile:
    first, *rest = profile().entries
    return changed(entries=[dataclasses.replace(first, **fields), *rest])  # type: ignore[arg-type]


def test_stacked_entries_follow_one_another() -> None:
    entries = profile().entries
    assert len(entries) == LAYERS * 2
    assert [e.offset_bytes for e in entries] == [i * PAGES * ITEM_BYTES for i in range(LAYERS * 2)]
    assert [e.kind for e in entries[:3]] == [pf.EntryKind.K, pf.EntryKind.V, pf.EntryKind.K]
    profile().check({"kv": POOL_BYTES})


@pytest.mark.parametrize(
    "bad",
    [
        changed(page_tokens=0),
        changed(data_type=0),
        changed(layout=17),
        changed(rank_kv_heads=0),
        changed(entries=[]),
        changed(entries=[profile().entries[0]] * 2),
        changed(aux=[*profile().aux, *profile().aux]),
        changed(aux=[pf.AuxBuffer("Upper", "kv", 0, 1, 1)]),
        changed(model_fingerprint="x" * 257),
        changed(states=[pf.StateComponent(0, [])]),  # type: ignore[arg-type]
        entry(layer=-1),
        entry(pool=""),
        entry(item_bytes=0),
        entry(page_count=1.5),
        entry(offset_bytes=-1),
        entry(offset_bytes=POOL_BYTES),
    ],
)
def test_bad_profiles(bad: pf.KvProfile) -> None:
    with pytest.raises(InvalidArgument) as failure:
        bad.check({"kv": POOL_BYTES})
    assert failure.value.reason == "INVALID_FIELD"
    assert {"field", "value", "allowed"} <= failure.value.metadata.keys()


def test_latent_caches_have_no_heads() -> None:
    changed(attention=pf.AttentionKind.MLA, total_kv_heads=0, rank_kv_heads=0).check()


def test_shapes() -> None:
    shape = pf.ParallelShape(dp=2, tp=3, pp=2)
    cells = list(shape.coordinates())
    assert len(cells) == shape.size == 12
    assert cells[3] == pf.RankCoordinate(dp=0, tp=0, pp=1)
    shape.check(pf.RankCoordinate(dp=1, tp=2, pp=1))
    for bad in (pf.RankCoordinate(tp=3), pf.RankCoordinate(dp=-1)):
        with pytest.raises(InvalidArgument, match="coordinate"):
            shape.check(bad)
    with pytest.raises(InvalidArgument, match="shape"):
        pf.ParallelShape(tp=0).check()


def test_everything_is_sent(agents: Agents) -> None:
    states = [
        pf.StateComponent(
            pf.StateKind.MAMBA, [pf.StateEntry(3, "kv", KV_BYTES, 16, 2, sliced_dim=4)]
        )
    ]
    sent = changed(states=states, model_fingerprint="m", kv_shards=2)
    with pf.Agent.connect(agents[0].target) as agent:
        agent.create_pool("kv", POOL_BYTES)
        agent.register_engine(
            "prefill-0",
            pf.Role.PREFILL,
            sent,
            shape=pf.ParallelShape(tp=2),
            coordinate=pf.RankCoordinate(tp=1),
            labels={"zone": "a"},
            layer_count=LAYERS,
        )
        info = agent.info()
    engine = info.message.engine
    assert engine.profile == sent.to_proto()
    assert (engine.role, engine.shape.tp, engine.coordinate.tp, engine.layer_count) == (1, 2, 1, 3)
    assert engine.profile.states[0].entries[0].sliced_dim == 4
    assert dict(engine.labels) == {"zone": "a"}
    assert (info.engine_id, info.agent_id, info.epoch) == ("prefill-0", "prefill", 3)
    assert info.peer_endpoint == "[::1]:7"


def test_waits_until_the_cell_is_claimed(agents: Agents) -> None:
    with pf.Agent.connect(agents[0].target) as agent:
        agent.create_pool("kv", POOL_BYTES)
        agents[0].epoch_after = 1000
        with pytest.raises(DeadlineExceeded, match="REGISTERING"):
            agent.register_engine("prefill-0", pf.Role.PREFILL, profile(), wait_ready=0.02)
        agents[0].epoch_after = 3
        info = agent.register_engine("prefill-0", pf.Role.PREFILL, profile(), wait_ready=10)
        assert (info.state, info.epoch) == (pf.AgentState.READY, 3)

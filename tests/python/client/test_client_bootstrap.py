"""The client of the bootstrap service."""

from collections.abc import Iterator

import pageferry as pf
import pytest
from pageferry.bootstrap.v1 import bootstrap_pb2, bootstrap_pb2_grpc  # noqa: F401
from pageferry.errors import DeadlineExceeded, InvalidArgument, NotFound, OutOfRange, Unavailable
from pageferry.topology.v1 import topology_pb2

from conftest import Resources, eventually
from fake_bootstrap import FakeBootstrap


def engine(name: str, live: int = 2) -> bootstrap_pb2.Engine:
    """An engine with two ranks, of which some live."""
    cells = list(pf.ParallelShape(tp=2).coordinates())
    result = bootstrap_pb2.Engine(
        key=bootstrap_pb2.EngineKey(namespace="default", engine_id=name),
        role=topology_pb2.ROLE_PREFILL,
        shape=topology_pb2.ParallelShape(dp=1, cp=1, tp=2, pp=1),
        dp_policy=bootstrap_pb2.DP_POLICY_DIRECTORY,
        ready=live == 2,
        live_count=live,
        missing=[cell.to_proto() for cell in cells[live:]],
        missing_count=2 - live,
    )
    for cell in cells[:live]:
        result.ranks.add(
            coordinate=cell.to_proto(),
            agent=topology_pb2.AgentRef(agent_id=f"a{cell.tp}", epoch=4),
            endpoint=topology_pb2.Endpoint(host="10.0.0.1", port=9000 + cell.tp),
            transports=["local"],
        )
    return result


@pytest.fixture
def service() -> Iterator[FakeBootstrap]:
    fake = FakeBootstrap()
    yield fake
    fake.stop()


@pytest.fixture
def client(service: FakeBootstrap) -> Iterator[pf.Bootstrap]:
    with pf.Bootstrap.connect(service.target) as bootstrap:
        yield bootstrap


def test_engines_and_ranks(service: FakeBootstrap, client: pf.Bootstrap) -> None:
    service.put(engine("p0"))
    got = client.get_engine("p0")
    assert (got.engine_id, got.namespace, got.role) == ("p0", "default", pf.Role.PREFILL)
    assert (got.ready, got.live_count, got.shape.tp) == (True, 2, 2)
    assert got.dp_policy == pf.DpPolicy.DIRECTORY
    cells = [pf.RankCoordinate(tp=1), pf.RankCoordinate(tp=0)]
    ranks = client.resolve_ranks("p0", cells, wait=2)
    assert [(r.agent_id, r.epoch, r.endpoint) for r in ranks] == [
        ("a1", 4, "10.0.0.1:9001"),
        ("a0", 4, "10.0.0.1:9000"),
    ]
    assert (ranks[0].ttl, ranks[0].transports) == (None, ("local",))
    assert service.waits == [2]


def test_an_engine_that_is_not_ready(service: FakeBootstrap, client: pf.Bootstrap) -> None:
    with pytest.raises(NotFound) as unknown:
        client.get_engine("p0")
    assert unknown.value.reason == "ENGINE_NOT_FOUND"
    service.put(engine("p0", live=1))
    with pytest.raises(Unavailable) as missing:
        client.resolve_ranks("p0", [pf.RankCoordinate()])
    assert missing.value.reason == "ENGINE_NOT_READY"
    assert missing.value.metadata == {"missing": "dp0.tp1"}
    assert client.get_engine("p0").missing == (pf.RankCoordinate(tp=1),)


def test_lists_page_by_page(service: FakeBootstrap, client: pf.Bootstrap) -> None:
    for number in range(7):
        service.put(engine(f"p{number}"))
    assert [e.engine_id for e in client.list_engines(page_size=3)] == [f"p{n}" for n in range(7)]


def test_rooms(service: FakeBootstrap, client: pf.Bootstrap) -> None:
    assert client.place_rooms("p0", {1: 0, 2: 3}, ttl=60) == 0
    assert client.place_rooms("p0", {2: 1}) == 1
    assert client.lookup_rooms("p0", [2, 1, 9], wait=1) == {2: 1, 1: 0}


def test_bad_arguments(client: pf.Bootstrap) -> None:
    for call in (
        lambda: client.get_engine(""),
        lambda: client.resolve_ranks("p0", [], wait=61),
        lambda: client.place_rooms("p0", {}, ttl=0.5),
        lambda: list(client.list_engines(page_size=0)),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_watch(service: FakeBootstrap, client: pf.Bootstrap) -> None:
    service.put(engine("p0", live=1))
    with client.watch() as watch:
        first = next(watch)
        assert (first.snapshot, first.warming_up, first.engines[0].ready) == (True, True, False)
        eventually(lambda: bool(service.watches))
        service.put(engine("p0"))
        changed = next(watch)
        assert (changed.snapshot, changed.engines[0].ready) == (False, True)
        service.remove("p0")
        assert next(watch).removed == (("default", "p0"),)
        assert watch.version == service.version
    assert list(watch) == []
    with client.watch(resume_version=10**6) as late, pytest.raises(OutOfRange) as failure:
        next(late)
    assert failure.value.reason == "COMPACTED"


def test_a_silent_watch_and_an_ended_service(service: FakeBootstrap, client: pf.Bootstrap) -> None:
    silent = client.watch(idle_timeout=0.05)
    next(silent)
    with pytest.raises(DeadlineExceeded):
        next(silent)
    watch = client.watch()
    next(watch)
    service.stop()
    with pytest.raises(Unavailable):
        next(watch)
    watch.close()


def test_nothing_is_left_behind(service: FakeBootstrap) -> None:
    def use() -> None:
        with pf.Bootstrap.connect(service.target) as bootstrap:
            for _ in range(3):
                next(bootstrap.watch())
            with bootstrap.watch() as watch:
                next(watch)

    use()
    eventually(lambda: not [t for t in _threads() if "watch" in t])
    before = Resources.now()
    for _ in range(5):
        use()
    eventually(lambda: Resources.now() <= before)


def _threads() -> list[str]:
    import threading

    return [thread.name for thread in threading.enumerate()]

"""pageferry-bootstrap as a process, spoken to by stubs generated from protos/ alone.

The program is looked for in $PAGEFERRY_BIN_DIR, then $PAGEFERRY_BIN, then build/dev/bin.
"""

import contextlib
import datetime
import importlib
import importlib.resources
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

grpc = pytest.importorskip("grpc")
protoc = pytest.importorskip("grpc_tools.protoc")

ROOT = pathlib.Path(os.environ.get("PAGEFERRY_ROOT", pathlib.Path(__file__).parents[2]))
BIN_DIR = pathlib.Path(
    os.environ.get("PAGEFERRY_BIN_DIR")
    or os.environ.get("PAGEFERRY_BIN")
    or ROOT / "build" / "dev" / "bin"
)
PROGRAM = BIN_DIR / "pageferry-bootstrap"
RANKS = [(dp, 0, tp, pp) for dp in range(2) for pp in range(2) for tp in range(4)]
TTL_S = 2.0

pytestmark = pytest.mark.skipif(
    not PROGRAM.exists() and not os.environ.get("CI"), reason=f"{PROGRAM} is not built"
)


class Protos:
    """The generated modules."""

    def __init__(self, folder):
        names = ["error/v1/error", "topology/v1/topology", "bootstrap/v1/bootstrap"]
        files = [f"pageferry/{name}.proto" for name in names]
        well_known = importlib.resources.files("grpc_tools") / "_proto"
        args = ["protoc", f"-I{ROOT / 'protos'}", f"-I{well_known}", f"--python_out={folder}"]
        assert protoc.main([*args, f"--grpc_python_out={folder}", *files]) == 0
        # Real packages, so that an installed pageferry does not come first.
        for package in [path for path in folder.rglob("*") if path.is_dir()]:
            (package / "__init__.py").touch()
        sys.path.insert(0, str(folder))
        self.error = importlib.import_module("pageferry.error.v1.error_pb2")
        self.topology = importlib.import_module("pageferry.topology.v1.topology_pb2")
        self.messages = importlib.import_module("pageferry.bootstrap.v1.bootstrap_pb2")
        self.stubs = importlib.import_module("pageferry.bootstrap.v1.bootstrap_pb2_grpc")

    def coordinate(self, rank):
        dp, cp, tp, pp = rank
        return self.topology.RankCoordinate(dp=dp, cp=cp, tp=tp, pp=pp)

    def claim(self, rank, ttl_s=TTL_S, start=1000, last_epoch=0):
        t = self.topology
        claim = self.messages.RegisterRequest(
            engine={"engine_id": "prefill-0"},
            role=t.ROLE_PREFILL,
            shape={"dp": 2, "cp": 1, "tp": 4, "pp": 2},
            profile={
                "page_tokens": 16,
                "data_type": t.DATA_TYPE_FLOAT16,
                "layout": t.KV_LAYOUT_NHD,
                "attention": t.ATTENTION_KIND_MHA,
                "total_kv_heads": 8,
                "head_dim": 64,
            },
            coordinate=self.coordinate(rank),
            agent_id="agent-" + "-".join(map(str, rank)),
            incarnation={"start_time_unix_nanos": start, "nonce": 1},
            endpoint={"host": "127.0.0.1", "port": 9000 + RANKS.index(rank)},
            last_epoch=last_epoch,
        )
        claim.ttl.FromTimedelta(datetime.timedelta(seconds=ttl_s))
        return claim

    def resolve(self, *ranks):
        return self.messages.ResolveRanksRequest(
            engine={"engine_id": "prefill-0"}, coordinates=[self.coordinate(r) for r in ranks]
        )

    def detail(self, error):
        """The reason's name and metadata of an RpcError."""
        trailers = dict(error.trailing_metadata() or ())
        detail = self.error.ErrorDetail.FromString(trailers["grpc-status-details-bin"])
        name = self.error.ErrorReason.Name(detail.reason).removeprefix("ERROR_REASON_")
        return name, dict(detail.metadata)


@pytest.fixture(scope="session")
def protos(tmp_path_factory):
    return Protos(tmp_path_factory.mktemp("stubs"))


class Server:
    """One life of the program."""

    def __init__(self, folder, *flags):
        self.port_file = folder / "ports.json"
        self.port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [PROGRAM, "--listen", "127.0.0.1:0", "--port-file", self.port_file, *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.line = self.process.stdout.readline()
        self.ports = json.loads(self.port_file.read_text())
        self.address = f"127.0.0.1:{self.ports['grpc']}"

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        rest = self.process.stdout.read()
        return self.process.wait(timeout=20), rest

    def get(self, path):
        url = f"http://127.0.0.1:{self.ports['metrics']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    if server.process.poll() is None:
        server.stop(signal.SIGKILL)


@pytest.fixture
def stub(server, protos):
    with grpc.insecure_channel(server.address) as channel:
        yield protos.stubs.BootstrapStub(channel)


class KeepAlive:
    """Renews leases each 0.3 s until told to stop."""

    def __init__(self, stub, protos, leases):
        self.leases = list(leases)
        self.lost = []
        self._protos = protos
        self._stop = threading.Event()
        self._stream = stub.KeepAlive(self._requests())
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _requests(self):
        while not self._stop.wait(0.3):
            yield self._protos.messages.KeepAliveRequest(lease_ids=self.leases)

    def _read(self):
        with contextlib.suppress(grpc.RpcError):
            for response in self._stream:
                self.lost += [lease for lease in response.leases if lease.HasField("error")]

    def stop(self):
        self._stop.set()
        self._thread.join()


def test_starts_serves_and_stops(server, tmp_path):
    assert server.line == f"pageferry-bootstrap listening on {server.address}\n"
    assert sorted(server.ports) == ["grpc", "health", "metrics"]
    assert all(isinstance(port, int) and port > 0 for port in server.ports.values())
    assert server.get("/readyz")[0] == 200
    assert server.get("/healthz")[0] == 200
    code, rest = server.stop()
    assert (code, rest) == (0, "")


def test_health_and_reflection(server):
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    health_grpc = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
    serving = health.HealthCheckResponse.SERVING
    for port in ("grpc", "health"):
        with grpc.insecure_channel(f"127.0.0.1:{server.ports[port]}") as channel:
            stub = health_grpc.HealthStub(channel)
            for name in ("", "pageferry.bootstrap.v1.Bootstrap"):
                assert stub.Check(health.HealthCheckRequest(service=name)).status == serving
            with pytest.raises(grpc.RpcError) as error:
                stub.Check(health.HealthCheckRequest(service="other"))
            assert error.value.code() == grpc.StatusCode.NOT_FOUND

    reflection = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")
    reflection_grpc = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2_grpc")
    ask = reflection.ServerReflectionRequest
    with grpc.insecure_channel(server.address) as channel:
        stub = reflection_grpc.ServerReflectionStub(channel)
        names = ["pageferry.bootstrap.v1.Bootstrap", "grpc.health.v1.Health"]
        asked = [ask(list_services="*")] + [ask(file_containing_symbol=name) for name in names]
        listed, *files = stub.ServerReflectionInfo(iter(asked))
        assert set(names) <= {service.name for service in listed.list_services_response.service}
        for file in files:
            assert file.file_descriptor_response.file_descriptor_proto


@pytest.mark.skipif(shutil.which("grpcurl") is None, reason="no grpcurl")
def test_grpcurl(server):
    def grpcurl(*args):
        command = ["grpcurl", "-plaintext", *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert "pageferry.bootstrap.v1.Bootstrap" in grpcurl(server.address, "list")
    call = "pageferry.bootstrap.v1.Bootstrap/ListEngines"
    assert "warming_up" in grpcurl("-d", "{}", server.address, call)
    assert "SERVING" in grpcurl(server.address, "grpc.health.v1.Health/Check")


def test_metrics_pass_promtool(server, stub, protos):
    stub.Register(protos.claim(RANKS[0]))
    with pytest.raises(grpc.RpcError):
        stub.ResolveRanks(protos.resolve(RANKS[0]))
    status, page = server.get("/metrics")
    assert status == 200
    assert "\npageferry_bootstrap_leases 1\n" in page
    assert "prefill-0" not in page
    if shutil.which("promtool") is None:
        pytest.skip("no promtool")
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def test_links_no_ucx():
    assert "libuc" not in subprocess.check_output(["ldd", PROGRAM], text=True)


def test_an_engine_from_its_first_claim_to_a_lost_rank(stub, protos):
    order = random.sample(RANKS, len(RANKS))
    leases = {}
    for at, rank in enumerate(order):
        if at > 0:
            with pytest.raises(grpc.RpcError) as error:
                stub.ResolveRanks(protos.resolve(order[0]))
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            reason, metadata = protos.detail(error.value)
            assert reason == "ENGINE_NOT_READY"
            missing = {"dp{} cp{} tp{} pp{}".format(*rank) for rank in order[at:]}
            assert set(metadata["missing"].split(", ")) == missing
        if at == len(order) - 1:
            for _ in range(16):
                assert stub.Register(protos.claim(order[0])).missing_count == 1
            key = protos.messages.EngineKey(engine_id="prefill-0")
            engine = stub.GetEngine(protos.messages.GetEngineRequest(engine=key)).engine
            assert not engine.ready
            assert [protos.coordinate(rank)] == list(engine.missing)
        leases[rank] = stub.Register(protos.claim(rank)).lease_id
    ranks = stub.ResolveRanks(protos.resolve(*order)).ranks
    assert [rank.endpoint.port for rank in ranks] == [9000 + RANKS.index(rank) for rank in order]

    watch = stub.WatchEngines(protos.messages.WatchEnginesRequest(include_ranks=True))
    first = next(watch)
    assert first.snapshot.engines[0].ready
    lost = order[3]
    others = KeepAlive(stub, protos, [leases[rank] for rank in RANKS if rank != lost])
    mine = KeepAlive(stub, protos, [leases[lost]])
    try:
        time.sleep(TTL_S + 1)
        assert not mine.lost
        mine.stop()
        stopped = time.monotonic()
        change = next(message for message in watch if message.HasField("change"))
        took = time.monotonic() - stopped
        engine = change.change.engines[0]
        assert TTL_S - 0.5 < took < TTL_S + 1
        assert not engine.ready
        assert list(engine.missing) == [protos.coordinate(lost)]
        assert protos.coordinate(lost) not in [rank.coordinate for rank in engine.ranks]
        assert change.version > first.version
        assert not others.lost
    finally:
        watch.cancel()
        mine.stop()
        others.stop()


def test_kill_and_restart_keep_epochs(tmp_path, protos):
    server = Server(tmp_path)
    with grpc.insecure_channel(server.address) as channel:
        stub = protos.stubs.BootstrapStub(channel)
        epochs = {rank: stub.Register(protos.claim(rank)).epoch for rank in RANKS}
        watch = stub.WatchEngines(protos.messages.WatchEnginesRequest())
        version = next(watch).version
    assert server.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    server = Server(tmp_path)
    try:
        with grpc.insecure_channel(server.address) as channel:
            stub = protos.stubs.BootstrapStub(channel)
            with pytest.raises(grpc.RpcError) as error:
                stub.ResolveRanks(protos.resolve(RANKS[0]))
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            assert protos.detail(error.value)[0] == "WARMING_UP"
            watch = stub.WatchEngines(protos.messages.WatchEnginesRequest(resume_version=version))
            with pytest.raises(grpc.RpcError) as error:
                next(watch)
            assert protos.detail(error.value)[0] == "COMPACTED"
            for rank in RANKS[1:]:
                claim = protos.claim(rank, last_epoch=epochs[rank])
                assert stub.Register(claim).epoch == epochs[rank]
            newcomer = stub.Register(protos.claim(RANKS[0], start=2000))
            assert newcomer.epoch > max(epochs.values())
            assert newcomer.missing_count == 0
    finally:
        assert server.stop(signal.SIGINT)[0] == 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--listen", "0.0.0.0:0"],
        ["--default-lease-ttl", "1ms"],
        ["--default-lease-ttl", "5s", "--max-lease-ttl", "4s"],
        ["--no-such-flag"],
        ["--listen", "nonsense"],
        ["--log-verbose", "no-such-area"],
        ["--port-file", "/no/such/folder/ports.json"],
    ],
    ids=" ".join,
)
def test_bad_configuration_is_refused_whole(flags):
    run = subprocess.run(
        [PROGRAM, "--listen", "127.0.0.1:0", *flags], capture_output=True, text=True, timeout=20
    )
    assert run.returncode != 0
    assert run.stdout == ""
    assert run.stderr != ""


def test_version_and_help():
    version = subprocess.check_output([PROGRAM, "--version"], text=True)
    assert version.startswith("pageferry-bootstrap")
    assert "grpc 1." in version
    assert "--default-lease-ttl" in subprocess.check_output([PROGRAM, "--help"], text=True)

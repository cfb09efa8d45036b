"""Exceptions and where they come from."""

import pickle

import grpc
import pageferry as pf
import pytest
from pageferry import errors
from pageferry.error.v1 import error_pb2

import fake_agent
from conftest import POOL_BYTES, profile

Agents = tuple[fake_agent.FakeAgent, fake_agent.FakeAgent]


class Failure:
    """Looks like a call that failed."""

    def __init__(self, code: grpc.StatusCode, details: bytes | None) -> None:
        """Keeps both."""
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """The code."""
        return self._code

    def details(self) -> str:
        """The message."""
        return "told"

    def trailing_metadata(self) -> list[tuple[str, str | bytes]]:
        """The trailers."""
        other = ("other", "x")
        return [other, ("grpc-status-details-bin", self._details)] if self._details else [other]


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.value[0]])
def test_every_code_has_its_class(code: grpc.StatusCode) -> None:
    detail = error_pb2.ErrorDetail(code=code.value[0], reason=1, message="x", metadata={"a": "b"})
    error = errors.from_rpc_error(Failure(code, detail.SerializeToString()))
    assert (error.code, error.reason, error.metadata) == (code, "INVALID_FIELD", {"a": "b"})
    assert type(error).default_code == code
    assert str(error) == f"{code.name} (INVALID_FIELD): told {{'a': 'b'}}"


@pytest.mark.parametrize(
    "details",
    [
        None,
        b"\xff\xff\xff",
        error_pb2.ErrorDetail(code=5, reason=0).SerializeToString(),
        error_pb2.ErrorDetail(code=6, reason=1).SerializeToString(),
    ],
)
def test_without_usable_details_the_code_decides(details: bytes | None) -> None:
    error = errors.from_rpc_error(Failure(grpc.StatusCode.NOT_FOUND, details))
    assert isinstance(error, errors.NotFound)
    assert (error.reason, error.metadata, error.message) == ("UNSPECIFIED", {}, "told")


def test_newer_reasons_are_kept_as_numbers() -> None:
    assert errors.reason_name(80) == "DUPLICATE_ROOM"
    assert errors.reason_name(1_000_000) == "UNKNOWN_1000000"


def test_python_kinds_of_errors() -> None:
    assert issubclass(errors.DeadlineExceeded, TimeoutError)
    assert issubclass(errors.InvalidArgument, ValueError)
    assert issubclass(pf.RoomLost, pf.RoomFailed)
    assert issubclass(pf.RoomLost, pf.SessionLost)


def test_errors_can_be_pickled() -> None:
    error = pf.RoomFailed(
        "m", code=grpc.StatusCode.ABORTED, reason="ABORTED", metadata={"a": "b"}, room_id=3
    )
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.room_id, copy.code) == (str(error), 3, grpc.StatusCode.ABORTED)


def test_details_travel_over_grpc(agents: Agents) -> None:
    with pf.Agent.connect(agents[0].target) as agent:
        pool = agent.create_pool("kv", POOL_BYTES)
        with pytest.raises(errors.AlreadyExists) as exists:
            agent.create_pool("kv", POOL_BYTES * 2)
        assert exists.value.reason == "POOL_EXISTS"
        with pytest.raises(errors.FailedPrecondition) as closed:
            agent.open_session("prefill-0")
        assert closed.value.reason == "ENGINE_NOT_REGISTERED"
        agent.register_engine("prefill-0", pf.Role.PREFILL, profile())
        with pytest.raises(errors.FailedPrecondition) as used:
            agent.release_pool(pool)
        assert used.value.metadata == {"by": "engine"}
        assert pool.mapped
        with agent.open_session("prefill-0"), pytest.raises(errors.AlreadyExists) as second:
            agent.open_session("prefill-0")
        assert second.value.reason == "ENGINE_ALREADY_REGISTERED"


def test_nobody_there(tmp_path: object) -> None:
    with pytest.raises((errors.DeadlineExceeded, errors.Unavailable)):
        pf.Agent.connect(f"unix:{tmp_path}/none.sock", timeout=0.2)


def test_a_closed_client_says_so(agents: Agents) -> None:
    agent = pf.Agent.connect(agents[0].target)
    agent.close()
    agent.close()
    for call in (agent.info, lambda: agent.open_session("prefill-0")):
        with pytest.raises(errors.FailedPrecondition):
            call()

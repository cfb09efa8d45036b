"""Which calls are repeated, and which are not."""

from __future__ import annotations

from concurrent import futures
from typing import Any

import grpc
import pageferry as pf
import pytest
from pageferry.agent.v1 import agent_pb2, agent_pb2_grpc
from pageferry.errors import Unavailable


class Flaky(agent_pb2_grpc.TransferAgentServicer):
    """Does not answer the first calls, as a connection that breaks."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.calls = 0
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        agent_pb2_grpc.add_TransferAgentServicer_to_server(self, self.server)
        self.target = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def _answer(self, context: Any, response: Any) -> Any:
        self.calls += 1
        if self.left > 0:
            self.left -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return response

    def GetAgent(self, request: Any, context: Any) -> Any:
        return self._answer(context, agent_pb2.GetAgentResponse())

    def Drain(self, request: Any, context: Any) -> Any:
        return self._answer(context, agent_pb2.DrainResponse())

    def CreatePool(self, request: Any, context: Any) -> Any:
        return self._answer(context, agent_pb2.CreatePoolResponse())

    def ReleasePool(self, request: Any, context: Any) -> Any:
        return self._answer(context, agent_pb2.ReleasePoolResponse())


@pytest.mark.parametrize(("failures", "calls"), [(0, 1), (1, 2), (2, 3)])
def test_what_changes_nothing_is_tried_three_times(failures: int, calls: int) -> None:
    service = Flaky(failures)
    with pf.Agent(service.target) as agent:
        agent.info()
    assert service.calls == calls
    service.server.stop(None)


def test_the_third_failure_is_told() -> None:
    service = Flaky(3)
    with pf.Agent(service.target) as agent, pytest.raises(Unavailable):
        agent.info()
    assert service.calls == 3
    service.server.stop(None)


@pytest.mark.parametrize("call", ["drain", "release_pool", "create_pool"])
def test_what_changes_something_is_asked_once(call: str) -> None:
    service = Flaky(1)
    with pf.Agent(service.target) as agent, pytest.raises(Unavailable):
        match call:
            case "drain":
                agent.drain()
            case "release_pool":
                agent.release_pool("kv")
            case _:
                # A second answer would call the pool that the first one made adopted.
                agent.create_pool("kv", 4096)
    assert service.calls == 1
    service.server.stop(None)


def test_no_time_is_left_for_another_try() -> None:
    service = Flaky(5)
    with pf.Agent(service.target) as agent, pytest.raises(Unavailable):
        agent.info(timeout=0.05)
    assert service.calls == 1
    service.server.stop(None)

"""Rooms over two agents, from both ends."""

import numpy as np
import pageferry as pf
import pytest
from pageferry.errors import AlreadyExists, DeadlineExceeded, InvalidArgument

from conftest import Engine
from fake_fabric import Fabric

T = 10.0


def test_pages_and_aux_arrive(prefill: Engine, decode: Engine) -> None:
    source, target = [3, 4, 5, 9, 8], [40, 41, 10, 11, 12]
    prefill.aux[2] = np.arange(32)
    receive = decode.session.open_receive(7, "prefill-0", target, aux_slot=5)
    send = prefill.session.open_send(7)
    assert send.wait_granted(T).granted_pages == 5
    send.send_chunk(source[:3])
    send.send_chunk(source[3:], last=True, aux_slot=2)
    result = receive.wait(T)
    assert (result.state, result.pages, result.transport) == (pf.RoomState.SUCCESS, 5, "fake")
    assert result.bytes == 5 * 3 * 2 * 128
    assert (result.elapsed, result.since_grant) == (0.007, 0.005)
    assert send.wait(T).since_grant is None
    assert receive.drained
    assert send.drained
    assert send.attempt == 1
    assert np.array_equal(decode.kv[:, :, target], prefill.kv[:, :, source])
    untouched = np.setdiff1d(np.arange(64), target)
    assert not decode.kv[:, :, untouched].any()
    assert np.array_equal(decode.aux[5], np.arange(32))
    assert decode.session.live_rooms == 0


def test_send_before_grant_and_cached_prefix(prefill: Engine, decode: Engine) -> None:
    with prefill.session.open_send(8) as send:
        send.send_chunk([0, 1])
        send.send_chunk(np.array([2, 3]), last=True)
        receive = decode.session.open_receive(8, "prefill-0", [30], cached_prefix_pages=3)
        assert receive.wait(T).pages == 1
        assert send.wait_granted(T).cached_prefix_pages == 3
    assert np.array_equal(decode.kv[:, :, 30], prefill.kv[:, :, 3])


def test_no_pages(prefill: Engine, decode: Engine) -> None:
    receive = decode.session.open_receive(9, "prefill-0", [], cached_prefix_pages=4, aux_slot=0)
    prefill.session.open_send(9).send_chunk([], first_position=4, last=True, aux_slot=1)
    assert receive.wait(T).pages == 0


def test_many_rooms_at_once(prefill: Engine, decode: Engine) -> None:
    received = [decode.session.open_receive(room, "prefill-0", [room]) for room in range(60)]
    for room in range(60):
        prefill.session.open_send(room).send_chunk([63 - room], last=True)
    for room in received:
        assert room.wait(T).pages == 1
    assert np.array_equal(decode.kv[:, :, :60], prefill.kv[:, :, 63:3:-1])


@pytest.mark.parametrize("aborter", ["prefill", "decode"])
def test_abort_reaches_the_other_side(prefill: Engine, decode: Engine, aborter: str) -> None:
    send = prefill.session.open_send(5)
    receive = decode.session.open_receive(5, "prefill-0", [1])
    send.wait_granted(T)
    own, peer = (send, receive) if aborter == "prefill" else (receive, send)
    own.abort("had enough")
    with pytest.raises(pf.RoomFailed) as failure:
        peer.wait(T)
    assert failure.value.reason == "PEER_ABORTED"
    assert failure.value.metadata == {"detail": "had enough"}
    assert failure.value.code.name == "ABORTED"
    assert (failure.value.room_id, failure.value.attempt) == (5, 1)
    with pytest.raises(pf.RoomFailed, match="ABORTED"):
        own.wait(T)
    own.wait_drained(T)
    peer.wait_drained(T)
    own.abort("again")


def test_failure_of_the_prefill_engine(prefill: Engine, decode: Engine) -> None:
    receive = decode.session.open_receive(5, "prefill-0", [1])
    send = prefill.session.open_send(5)
    send.wait_granted(T)
    send.fail("out of luck")
    with pytest.raises(pf.RoomFailed) as failure:
        receive.wait(T)
    assert failure.value.reason == "PEER_ENGINE_FAILED"
    assert failure.value.metadata["detail"] == "out of luck"


def test_page_counts_must_agree(prefill: Engine, decode: Engine) -> None:
    receive = decode.session.open_receive(5, "prefill-0", [1, 2])
    send = prefill.session.open_send(5)
    send.send_chunk([1], last=True)
    for room in (send, receive):
        with pytest.raises(pf.RoomFailed) as failure:
            room.wait(T)
        assert failure.value.reason == "PAGE_COUNT_MISMATCH"
    assert failure.value.metadata == {"granted": "2", "sent": "1"}
    assert not decode.kv.any()


def test_failed_comes_before_drained(prefill: Engine, decode: Engine, fabric: Fabric) -> None:
    fabric.hold_drained = True
    receive = decode.session.open_receive(5, "prefill-0", [1])
    receive.abort()
    with pytest.raises(pf.RoomFailed):
        receive.wait(T)
    assert not receive.drained
    with pytest.raises(DeadlineExceeded):
        receive.wait_drained(0.01)
    assert decode.session.live_rooms == 1
    with pytest.raises(AlreadyExists):
        decode.session.open_receive(5, "prefill-0", [1])
    fabric.resume()
    receive.wait_drained(T)
    assert decode.session.live_rooms == 0


def test_waits_time_out(prefill: Engine) -> None:
    send = prefill.session.open_send(5)
    for wait in (send.wait, send.wait_granted, send.wait_drained):
        with pytest.raises(TimeoutError):
            wait(0.01)


def test_a_room_that_the_agent_refuses_fails(
    prefill: Engine, decode: Engine, fabric: Fabric
) -> None:
    first = decode.session.open_receive(5, "prefill-0", [1], attempt=1)
    second = decode.session.open_receive(5, "prefill-0", [2], attempt=2)
    with pytest.raises(pf.RoomFailed) as failure:
        second.wait(T)
    assert failure.value.reason == "DUPLICATE_ROOM"
    assert second.drained
    assert not first.done


def test_a_new_attempt_gets_its_own_room(prefill: Engine, decode: Engine, fabric: Fabric) -> None:
    fabric.hold_drained = True
    old = prefill.session.open_send(5)
    first = decode.session.open_receive(5, "prefill-0", [1])
    old.wait_granted(T)
    first.abort()
    with pytest.raises(pf.RoomFailed):
        old.wait(T)
    new = prefill.session.open_send(5)
    receive = decode.session.open_receive(5, "prefill-0", [2], attempt=2)
    new.send_chunk([3], last=True)
    assert receive.wait(T).pages == 1
    assert new.wait(T).pages == 1
    assert (old.attempt, new.attempt) == (1, 2)
    assert not old.drained
    fabric.resume()
    old.wait_drained(T)


def test_bad_arguments(prefill: Engine, decode: Engine) -> None:
    send = prefill.session.open_send(5)
    bad = [
        lambda: send.send_chunk([1, 1]),
        lambda: send.send_chunk([1], aux_slot=1),
        lambda: send.send_chunk([-1], last=True),
        lambda: prefill.session.open_send(-1),
        lambda: prefill.session.open_send(6, priority=101),
        lambda: prefill.session.open_send(6, timeout=0),
        lambda: decode.session.open_receive(6, "bad name", [1]),
        lambda: decode.session.open_receive(6, "prefill-0", [1], attempt=0),
        lambda: decode.session.open_receive(6, "prefill-0", [1, 2, 1]),
        lambda: decode.session.open_receive(6, "prefill-0", [1], aux_slot=-1),
    ]
    for call in bad:
        with pytest.raises(InvalidArgument):
            call()
    assert decode.session.live_rooms == 0


def test_long_chunks_are_cut(prefill: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pageferry.rooms._RUNS_A_COMMAND", 2)
    sent: list[pf.agent.v1.agent_pb2.EngineCommand] = []
    send = prefill.session.open_send(5)
    monkeypatch.setattr(prefill.session, "send", lambda commands, **_: sent.extend(commands))
    send.send_chunk([0, 1, 5, 9, 10, 20], first_position=3, last=True, aux_slot=1)
    monkeypatch.undo()
    chunks = [command.send_chunk for command in sent]
    assert [(c.first_position, c.last, c.HasField("aux_slot"), c.aux_slot) for c in chunks] == [
        (3, False, False, 0),
        (6, True, True, 1),
    ]
    assert send.next_position == 9

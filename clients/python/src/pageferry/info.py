"""What services tell about themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from pageferry._convert import endpoint, seconds
from pageferry._table import agent_state
from pageferry.agent.v1 import agent_pb2
from pageferry.bootstrap.v1 import bootstrap_pb2
from pageferry.errors import PageferryError, from_detail
from pageferry.kinds import AgentState, DpPolicy, Role
from pageferry.shape import ParallelShape, RankCoordinate


@dataclass(frozen=True, slots=True)
class PeerSessionInfo:
    """A session of an agent with another one."""

    agent_id: str
    epoch: int
    engine_id: str
    coordinate: RankCoordinate
    transport: str
    transport_reason: str
    dialled: bool
    state: str
    room_count: int


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent. `epoch` is 0 before its first claim was granted."""

    agent_id: str
    epoch: int
    state: AgentState
    peer_endpoint: str
    engine_id: str
    pool_names: tuple[str, ...]
    sessions: tuple[PeerSessionInfo, ...]
    transports: tuple[str, ...]
    lease_live: bool
    lease_error: PageferryError | None
    ledger: dict[str, int]
    version: str
    message: agent_pb2.GetAgentResponse = field(repr=False)

    @classmethod
    def from_proto(cls, message: agent_pb2.GetAgentResponse) -> AgentInfo:
        """From the message, which is kept whole in `message`."""
        lease = message.lease
        return cls(
            agent_id=message.agent.agent_id,
            epoch=message.agent.epoch,
            state=agent_state(message.state),
            peer_endpoint=endpoint(message.peer_endpoint),
            engine_id=message.engine.engine_id,
            pool_names=tuple(pool.name for pool in message.pools),
            sessions=tuple(
                PeerSessionInfo(
                    agent_id=peer.agent.agent_id,
                    epoch=peer.agent.epoch,
                    engine_id=peer.engine_id,
                    coordinate=RankCoordinate.from_proto(peer.coordinate),
                    transport=peer.transport,
                    transport_reason=peer.transport_reason,
                    dialled=peer.dialled,
                    state=peer.state,
                    room_count=peer.room_count,
                )
                for peer in message.sessions
            ),
            transports=tuple(message.transports),
            lease_live=lease.live,
            lease_error=from_detail(lease.error) if lease.HasField("error") else None,
            ledger=dict(message.ledger),
            version=message.version,
            message=message,
        )


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A live rank of an engine: who holds the cell, and where peers dial it."""

    coordinate: RankCoordinate
    agent_id: str
    epoch: int
    endpoint: str
    ttl: float | None
    labels: dict[str, str]
    metrics_endpoint: str
    transports: tuple[str, ...]

    @classmethod
    def from_proto(cls, message: bootstrap_pb2.Rank) -> RankInfo:
        """From the message."""
        return cls(
            coordinate=RankCoordinate.from_proto(message.coordinate),
            agent_id=message.agent.agent_id,
            epoch=message.agent.epoch,
            endpoint=endpoint(message.endpoint),
            ttl=seconds(message.ttl) if message.HasField("ttl") else None,
            labels=dict(message.labels),
            metrics_endpoint=endpoint(message.metrics_endpoint),
            transports=tuple(message.transports),
        )


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine. `missing` names at most 64 of the `missing_count` cells without a live lease."""

    namespace: str
    engine_id: str
    role: Role | None
    shape: ParallelShape
    ready: bool
    live_count: int
    missing: tuple[RankCoordinate, ...]
    missing_count: int
    dp_policy: DpPolicy
    ranks: tuple[RankInfo, ...]
    message: bootstrap_pb2.Engine = field(repr=False)

    @classmethod
    def from_proto(cls, message: bootstrap_pb2.Engine) -> EngineInfo:
        """From the message, which is kept whole in `message` (profile included)."""
        policy, role = int(message.dp_policy), int(message.role)
        return cls(
            namespace=message.key.namespace,
            engine_id=message.key.engine_id,
            role=Role(role) if role in set(Role) else None,
            shape=ParallelShape.from_proto(message.shape),
            ready=message.ready,
            live_count=message.live_count,
            missing=tuple(RankCoordinate.from_proto(cell) for cell in message.missing),
            missing_count=message.missing_count,
            dp_policy=DpPolicy(policy) if policy in set(DpPolicy) else DpPolicy.UNSPECIFIED,
            ranks=tuple(RankInfo.from_proto(rank) for rank in message.ranks),
            message=message,
        )

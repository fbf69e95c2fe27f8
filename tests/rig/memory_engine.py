"""A third engine, in memory: the proof that an engine is a folder and a row."""

from scrapyd_dist.nodes import Node
from scrapyd_dist.store.ports.engine import Engine, Ports, StoreRequest

from .memory_batches import MemoryBatches
from .memory_crawls import MemoryCrawls
from .memory_data import MemoryConnection
from .memory_jobs import MemoryJobs
from .memory_strategies import MemoryStrategies
from .memory_throttle import MemoryThrottle


def _open_ports(request: StoreRequest) -> Ports:
    connection = MemoryConnection(request)
    return Ports(
        connection=connection,
        crawls=MemoryCrawls(connection),
        batches=MemoryBatches(connection),
        throttle=MemoryThrottle(connection),
        jobs=MemoryJobs(connection),
        strategies=MemoryStrategies(connection),
    )


def _why_unreached(where: str, node: Node) -> str:
    return f"the store {where} is in the memory of one process, and {node.name} runs others"


MEMORY_ENGINE = Engine(
    title="a store in memory",
    example="memory://name",
    schemes=frozenset({"memory"}),
    open_ports=_open_ports,
    why_unreached=_why_unreached,
)

"""A bounded cache by content: what was computed for a text once is not computed again."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Least recently used entries leave when the total of their costs passes `max_bytes`. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        """The value under `key`, now the most recently used; None where there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: V, num_bytes: int) -> None:
        """Stores a value. One that alone passes the bound is not kept."""
        with self._lock:
            if old := self._entries.pop(key, None):
                self.num_bytes -= old[1]
            if num_bytes > self.max_bytes:
                return
            self._entries[key] = value, num_bytes
            self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.num_bytes -= freed

    def __len__(self) -> int:
        return len(self._entries)

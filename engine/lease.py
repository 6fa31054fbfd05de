"""What one sequence holds of the KV pool."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.prefix import Namespace, Node


@dataclass(slots=True, eq=False)
class Lease:
    """What one sequence holds of the pool: blocks in its table, and a promise of more."""

    namespace: Namespace
    tokens: Sequence[int]
    """The sequence's own list of known tokens; it grows."""
    reserved: int
    """Blocks that were promised and not taken yet."""
    table: list[int] = field(default_factory=list)
    node: Node | None = None
    """The tree's node of the last filed block."""
    num_filed: int = 0
    """Leading blocks of the table that are in the tree."""
    num_shared: int = 0
    """Blocks that were found instead of computed, or given up for one that another sequence had filed."""
    unfiled: bool = False
    """A block's key was taken by other tokens, so this sequence files no more."""
    share_s: float = 0.0
    """Block-seconds, each divided by the block's holders; complete once released."""

    def check(self, block_size: int) -> None:
        """Prove that the filed part of the table is the tree's path for the tokens.

        Raises:
            RuntimeError: naming the block that is not.
        """
        node = self.node
        for index in range(self.num_filed - 1, -1, -1):
            tokens = tuple(self.tokens[index * block_size : (index + 1) * block_size])
            if node is None or node.block != self.table[index] or node.tokens != tokens:
                raise RuntimeError(f"block {index} of a table is not the tree's block for its tokens")
            node = node.parent
        if self.reserved < 0:
            raise RuntimeError(f"{-self.reserved} blocks more than promised were taken")

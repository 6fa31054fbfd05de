"""The prefix tree: which full KV blocks hold which tokens after which prefix, apart by namespace.

A block's place is (namespace, parent, its own tokens). Namespaces are tuples compared as a whole, so `("ab", "c")` and
`("a", "bc")` are as far apart as any two.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

Namespace = tuple[str, ...]
Tokens = tuple[int, ...]
NO_BLOCK = -1


def tokens_themselves(tokens: Tokens) -> Hashable:
    """The default key of a block among its siblings: its token ids."""
    return tokens


class Node:
    """One cached block, or (with `NO_BLOCK`) the root of a namespace."""

    __slots__ = ("block", "children", "namespace", "parent", "tokens")

    def __init__(self, namespace: Namespace, parent: "Node | None", tokens: Tokens, block: int) -> None:
        self.namespace = namespace
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.children: dict[Hashable, Node] = {}


class PrefixTree:
    """Full blocks only. Written by one thread; `find` may run in any other and is then advisory.

    Args:
        block_size: tokens a block holds.
        key: maps a block's tokens to its key among its siblings. Tokens are compared on every hit, so a bad key
            costs hits and never serves wrong content.
    """

    def __init__(self, block_size: int, key: Callable[[Tokens], Hashable] = tokens_themselves) -> None:
        self.block_size = block_size
        self._key = key
        self._roots: dict[Namespace, Node] = {}
        self._nodes: dict[int, Node] = {}
        self._sizes: dict[Namespace, int] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: Node) -> bool:
        return self._nodes.get(node.block) is node

    def has_block(self, block: int) -> bool:
        """Whether this block is filed."""
        return block in self._nodes

    def find(self, namespace: Namespace, token_ids: Sequence[int], after: Node | None, first: int) -> Iterator[Node]:
        """Nodes of the full blocks number `first`, `first + 1`, … of `token_ids`, as far as they are cached.

        `after` is the node of block `first - 1`, None for the namespace's root.
        """
        node = after or self._roots.get(namespace)
        end = (first + 1) * self.block_size
        while node is not None and end <= len(token_ids):
            node = self._child(node, tuple(token_ids[end - self.block_size : end]))
            if node is not None:
                yield node
            end += self.block_size

    def insert(self, namespace: Namespace, parent: Node | None, tokens: Tokens, block: int) -> Node | None:
        """The node for `tokens` after `parent`: the one that exists, else a new one that holds `block`.

        None if another block's tokens have the same key there; `block` then stays out of the tree.
        """
        parent = parent or self._roots.setdefault(namespace, Node(namespace, None, (), NO_BLOCK))
        key = self._key(tokens)
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = self._nodes[block] = Node(namespace, parent, tokens, block)
            self._sizes[namespace] = self._sizes.get(namespace, 0) + 1
        return node if node.tokens == tokens else None

    def remove(self, block: int) -> None:
        """Forget a leaf's block; a root goes with its last child.

        Raises:
            RuntimeError: the block has children, which would become unreachable.
        """
        node = self._nodes[block]
        if node.children or node.parent is None:
            raise RuntimeError(f"block {block} is no leaf: {len(node.children)} children")
        del self._nodes[block]
        del node.parent.children[self._key(node.tokens)]
        self._sizes[node.namespace] -= 1
        if not node.parent.children and node.parent.block == NO_BLOCK:
            del self._roots[node.namespace]
            del self._sizes[node.namespace]

    def num_blocks_by_namespace(self) -> dict[Namespace, int]:
        """Blocks filed in each namespace; a copy that any thread may ask for."""
        return self._sizes.copy()

    def node(self, block: int) -> Node:
        """The node that holds this block."""
        return self._nodes[block]

    def check(self) -> None:
        """Prove that the block index and what is reachable from the roots are the same.

        Raises:
            RuntimeError: naming what is wrong.
        """
        reachable: dict[int, Node] = {}
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.block == NO_BLOCK and not node.children:
                raise RuntimeError(f"empty root {node.namespace}")
            for key, child in node.children.items():
                if child.parent is not node or child.namespace != node.namespace or self._key(child.tokens) != key:
                    raise RuntimeError(f"block {child.block} is filed in the wrong place")
                if len(child.tokens) != self.block_size or child.block in reachable:
                    raise RuntimeError(f"block {child.block} is not full, or filed twice")
                reachable[child.block] = child
                stack.append(child)
        if Counter(node.namespace for node in reachable.values()) != self._sizes:
            raise RuntimeError(f"blocks by namespace are miscounted: {self._sizes}")
        if reachable != self._nodes:
            raise RuntimeError(f"block index {sorted(self._nodes)} differs from the tree {sorted(reachable)}")

    def _child(self, node: Node, tokens: Tokens) -> Node | None:
        child = node.children.get(self._key(tokens))
        return child if child is not None and child.tokens == tokens else None

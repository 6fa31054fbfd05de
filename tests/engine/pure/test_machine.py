"""Random histories: whatever is submitted, cancelled, expired or flushed, the engine stays consistent and right."""

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

PREFIXES = [bytes(range(n)) for n in (0, 4, 7, 8, 16, 21)]
TEAMS = {"": (1.0, None), "heavy": (4.0, None), "capped": (1.0, 0.5)}
"""Weight and KV share."""
KEYS = {"tokens": tuple, "four_bits": lambda tokens: sum(tokens) % 16, "constant": lambda tokens: 0}


class EngineMachine(RuleBasedStateMachine):
    """Rules act on a bench, which checks integrity after each; outputs are compared with solo runs."""

    make_bench: Any = None

    @initialize(
        num_blocks=st.integers(6, 24), step_tokens=st.integers(1, 24), max_running=st.integers(1, 9),
        key=st.sampled_from(sorted(KEYS)), eos=st.sampled_from([0.0, 0.1]), sharing=st.booleans(),
        overcommit=st.sampled_from([1.0, 1.0, 2.0, 16.0]),
    )  # fmt: skip
    def build(
        self,
        num_blocks: int,
        step_tokens: int,
        max_running: int,
        key: str,
        eos: float,
        sharing: bool,
        overcommit: float,
    ) -> None:
        self.limits = step_tokens, max_running
        self.bench = self.make_bench(
            num_blocks=num_blocks, block_size=4, step_tokens=step_tokens, max_running=max_running, key=KEYS[key],
            eos_probability=eos, prefix_sharing=sharing, max_queue_requests=6, step_s=1.0, overcommit=overcommit,
        )  # fmt: skip
        self.bench.before_run = self.check_batch
        self.overcommit = overcommit
        self.count = 0

    def check_batch(self, batch: Any) -> None:
        """No step is larger than allowed, nobody is in it twice, and no block is written that is shared or filed."""
        assert sum(len(work.token_ids) for work in batch) <= self.limits[0]
        assert len({work.seq_id for work in batch}) == len(batch) <= self.limits[1]
        capped = self.bench.core.stats().teams.get("capped")
        assert capped is None or capped.blocks_promised <= self.bench.num_blocks // 2
        pool, tree = self.bench.core.cache.pool, self.bench.core.cache._tree
        for work in batch:
            for index in range(work.start // 4, -(-(work.start + len(work.token_ids)) // 4)):
                assert pool.refs(work.block_table[index]) == 1
                assert not tree.has_block(work.block_table[index])

    @rule(
        prefix=st.sampled_from(PREFIXES), tail=st.binary(max_size=9), max_tokens=st.integers(1, 12),
        namespace=st.sampled_from([(), ("a",), ("ab", "c"), ("a", "bc")]), priority=st.integers(0, 2),
        lasting=st.sampled_from([None, None, 0.5, 3.5, 8.0]), phase=st.sampled_from(["queue", "first_token", "total"]),
        team=st.sampled_from(sorted(TEAMS)), objective=st.sampled_from(["interactive", "throughput"]),
    )  # fmt: skip
    def submit(
        self,
        prefix: bytes,
        tail: bytes,
        max_tokens: int,
        namespace: Any,
        priority: int,
        lasting: float | None,
        phase: str,
        team: str,
        objective: str,
    ) -> None:
        self.count += 1
        limits = {} if lasting is None else {phase: self.bench.now + lasting}
        weight, share = TEAMS[team]
        self.bench.add(
            f"r{self.count}", prefix + tail, max_tokens, namespace=namespace, priority=priority, team=team,
            weight=weight, kv_share=share, objective=objective, **limits,
        )  # fmt: skip

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        self.bench.step(times)

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        self.bench.cancel(f"r{data.draw(st.integers(1, self.count))}")

    @rule(seconds=st.integers(1, 9))
    def wait(self, seconds: int) -> None:
        self.bench.now += seconds

    @rule(namespace=st.sampled_from([None, (), ("a",)]))
    def flush(self, namespace: Any) -> None:
        before = self.bench.core.stats()
        freed = self.bench.core.flush(namespace)
        after = self.bench.core.stats()
        assert after.blocks_free - before.blocks_free == before.blocks_idle - after.blocks_idle == freed
        self.bench.core.check_integrity()

    @rule()
    def press(self) -> None:
        """A request for the whole pool evicts whatever is idle when its turn comes."""
        self.count += 1
        self.bench.add(f"r{self.count}", bytes(range(200, 204)), self.bench.num_blocks * 4 - 3)

    def teardown(self) -> None:
        """Everything ends, once, with the right tokens, and leaves nothing behind."""
        if not hasattr(self, "bench"):
            return
        self.bench.finish_all()
        for request_id in self.bench.requests:
            check_finished(self.bench, request_id)
        stats = self.bench.core.stats()
        assert not stats.teams
        assert self.overcommit > 1 or not stats.preemptions_total
        assert (stats.blocks_in_use, stats.num_running, stats.num_waiting, stats.waiting_tokens) == (0, 0, 0, 0)
        assert sum(stats.finished_total.values()) == len(self.bench.requests)


def check_finished(bench: Any, request_id: str) -> None:
    """One finish; the tokens are the solo run's, all of them if it ended by itself; usage adds up."""
    finish, tokens, solo = bench.finish(request_id), bench.tokens(request_id), bench.solo(request_id)
    usage = finish.usage
    assert tokens == solo[: len(tokens)]
    assert usage.output_tokens == len(tokens)
    assert finish.reason in {"length", "stop", "cancelled", "timeout", "rejected"}
    if finish.reason in {"length", "stop"}:
        assert tokens == solo
    if tokens:
        assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
        assert usage.computed_tokens >= 1


@pytest.fixture(autouse=True)
def _bench_class(bench: Any) -> None:
    EngineMachine.make_bench = bench


def test_random_histories() -> None:
    """Hypothesis looks for a history that breaks an invariant."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(EngineMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@pytest.mark.parametrize("seed", [1, 2])
def test_long_random_run(bench: Any, seed: int) -> None:
    """Ten thousand submits, steps, cancels, timeouts, preemptions and flushes over a small pool end once each."""
    rng = random.Random(seed)
    b = bench(
        num_blocks=24, block_size=4, step_tokens=20, max_running=8, eos_probability=0.05, step_s=0.01, overcommit=3.0,
        max_queue_requests=4,
    )  # fmt: skip
    for event in range(5000):
        action = rng.random()
        if action < 0.3:
            prompt = bytes(range(rng.choice([0, 6, 12, 19]))) + rng.randbytes(rng.randrange(1, 12))
            limits = {rng.choice(["queue", "total"]): b.now + rng.random()} if rng.random() < 0.1 else {}
            team = rng.choice(sorted(TEAMS))
            weight, share = TEAMS[team]
            b.add(
                f"r{event}", prompt, rng.randrange(1, 14), namespace=rng.choice([(), ("t",)]), team=team,
                weight=weight, kv_share=share, priority=rng.randrange(2), **limits,
            )  # fmt: skip
        elif action < 0.36 and b.requests:
            b.cancel(rng.choice(list(b.requests)))
        elif action < 0.37:
            b.core.flush(rng.choice([None, ("t",)]))
        else:
            b.step()
    b.finish_all()
    for request_id in b.requests:
        check_finished(b, request_id)
    stats = b.core.stats()
    assert min(stats.finished_total[reason] for reason in ("length", "stop", "cancelled", "timeout", "rejected")) > 0
    assert stats.preemptions_total > 20
    assert stats.cached_tokens_total > 1000
    assert stats.blocks_in_use == 0

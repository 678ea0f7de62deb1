"""Fairness: for any sequence of asking, releasing and giving up, nobody starves and no quota is exceeded."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dart_gym.cluster.pool.desktop_pool import Claim, Pool, next_claim, unlimited
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.sessions.slot import Slot

OWNERS = "abc"


def test_owners_take_turns_and_within_one_the_first_comes_first():
    claims = [Claim("a", 1), Claim("a", 2), Claim("a", 3), Claim("b", 4), Claim("c", 5)]
    served: dict[str, int] = {}
    order = []
    for turn in range(1, 6):
        claim = next_claim(claims, {}, served, unlimited)
        assert claim is not None
        claims.remove(claim)
        served[claim.owner] = turn
        order.append((claim.owner, claim.number))
    assert order == [("a", 1), ("b", 4), ("c", 5), ("a", 2), ("a", 3)]


def test_who_has_used_up_a_quota_does_not_hold_up_others():
    claims = [Claim("a", 1), Claim("b", 2)]
    quota = {"a": 1}.get
    assert next_claim(claims, {"a": 1}, {"b": 9}, quota) == Claim("b", 2)
    assert next_claim(claims[:1], {"a": 1}, {}, quota) is None


operations = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(OWNERS)),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("give up"), st.integers(0, 9)),
        st.tuples(st.just("quota"), st.sampled_from(OWNERS), st.one_of(st.none(), st.integers(0, 2))),
    ),
    max_size=40,
)


class Users:
    """Owners that ask for slots, and what must hold after each of their moves."""

    def __init__(self, size: int) -> None:
        self.quotas: dict[str, int | None] = {}
        self.pool = Pool(size, FakeDesktop, quota=self.quotas.get)
        self.asking: list[tuple[str, asyncio.Task[Slot]]] = []
        self.held: list[tuple[str, Slot]] = []
        self.passed_over: Counter[asyncio.Task[Slot]] = Counter()

    async def move(self, operation: tuple) -> None:
        match operation:
            case ("ask", owner):
                self.asking.append((owner, asyncio.create_task(self.pool.acquire(None, owner))))
            case ("release", index) if self.held:
                self.pool.release(self.held.pop(index % len(self.held))[1])
            case ("give up", index) if self.asking:
                owner, task = self.asking[index % len(self.asking)]
                task.cancel()
                await asyncio.wait({task})
            case ("quota", owner, limit):
                self.quotas[owner] = limit
                self.pool.serve_waiters()
        for _ in range(5):
            await asyncio.sleep(0)
        self.check()

    def check(self) -> None:
        served = [(owner, task) for owner, task in self.asking if task.done() and not task.cancelled()]
        first = {}
        for owner, task in self.asking:
            if not task.done():
                first.setdefault(owner, task)
        self.asking = [(owner, task) for owner, task in self.asking if not task.done()]
        for owner, task in served:
            self.held.append((owner, task.result()))
            have = sum(holder == owner for holder, _ in self.held)
            assert self.quotas.get(owner) is None or have <= self.quotas[owner]
        assert len({slot for _, slot in self.held}) == len(self.held) <= len(self.pool.slots)
        waiting = {owner for owner, _ in self.asking if self.allowed(owner)}
        if waiting:
            assert len(self.held) == len(self.pool.slots), "a slot is idle while somebody who may have it waits"
        for owner, task in first.items():
            if not self.allowed(owner):
                self.passed_over[task] = 0
                continue
            others = Counter(other for other, _ in served if other != owner)
            self.passed_over[task] += max(others.values(), default=0)
            assert self.passed_over[task] <= len(OWNERS), "an owner is passed over again and again"

    def allowed(self, owner: str) -> bool:
        limit = self.quotas.get(owner)
        return limit is None or sum(holder == owner for holder, _ in self.held) < limit


@given(size=st.integers(1, 3), moves=operations)
def test_any_sequence_is_fair(size, moves):
    async def play() -> None:
        users = Users(size)
        for operation in moves:
            await users.move(operation)
        users.quotas.clear()
        users.pool.serve_waiters()
        for _ in range(len(moves) + 1):  # in the end everybody is served
            await users.move(("release", 0))
        assert not users.asking and not users.held and users.pool.waiting == 0
        await users.pool.close()

    asyncio.run(play())


def test_the_message_says_whose_limit_it_is():
    pool = Pool(1, FakeDesktop, quota={"a": 0}.get)
    assert "the quota of 0 desktops is used up" in pool.why_waiting("a")
    assert "all 1 desktops stayed lent" in pool.why_waiting("b")

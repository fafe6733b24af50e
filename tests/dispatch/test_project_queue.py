"""A project's queue: by priority and position, held, after others, by what a session has."""

from __future__ import annotations

from postroom.dispatch.project_queue import ProjectQueue
from postroom.dispatch.run_queue import Capacity
from postroom.store.job_ids import JobId
from postroom.store.requests import Orders
from postroom.store.runs import Note
from postroom.store.scheduling import SchedulingOptions

OTHER = JobId("other", 0)


def queue(
    *options: SchedulingOptions, orders: Orders | None = None, ended: bool | None = None
) -> ProjectQueue:
    made = ProjectQueue(
        "r",
        orders or Orders(),
        scheduling=lambda taken: iter(options[taken.first : taken.stop]),
        ended_well=lambda job: ended,
    )
    made.extend([0], len(options))
    return made


def order(made: ProjectQueue, capacity: Capacity | None = None) -> list[int]:
    found = []
    while (taken := made.take(capacity=capacity)) is not None:
        assert taken.stop == taken.first + 1
        found.append(taken.first)
    return found


def letters(made: ProjectQueue, capacity: Capacity | None = None, agents: int = 2) -> list[range]:
    found = []
    while (taken := made.take(agents=agents, capacity=capacity)) is not None:
        found.append(range(taken.first, taken.stop))
    return found


def short(*options: SchedulingOptions, orders: Orders | None = None) -> ProjectQueue:
    """A queue whose jobs have taken a millisecond so far, and to which more are coming."""
    made = queue(*options, orders=orders)
    made.mean_s = 0.001
    made.grows = True
    return made


class TestShortJobs:
    PLAIN = SchedulingOptions()

    def test_they_share_a_letter_and_agents_share_the_last_of_them(self) -> None:
        made = short(*[self.PLAIN] * 100)
        made.grows = False
        assert letters(made)[:3] == [range(25), range(25, 44), range(44, 58)]

    def test_until_one_has_ended_and_when_they_take_long_each_has_its_own(self) -> None:
        made = queue(*[self.PLAIN] * 3)
        assert letters(made) == [range(n, n + 1) for n in range(3)]
        made.put_back(0, 3)
        made.mean_s = 0.02
        assert letters(made) == [range(n, n + 1) for n in range(3)]

    def test_a_letter_ends_where_another_job_goes_first(self) -> None:
        urgent = SchedulingOptions(priority=1)
        made = short(self.PLAIN, self.PLAIN, urgent, *[self.PLAIN] * 2)
        assert letters(made, agents=1) == [range(2, 3), range(2), range(3, 5)]
        # Between the two there may be a job of another project.
        assert letters(short(urgent, self.PLAIN), agents=1) == [range(1), range(1, 2)]
        held = Orders(held={JobId("r", 1): True}, positions={JobId("r", 3): -1.0})
        assert letters(short(*[self.PLAIN] * 5, orders=held), agents=1) == [
            range(3, 4), range(1), range(2, 3), range(4, 5)
        ]  # fmt: skip

    def test_what_is_decided_job_by_job_is_sent_alone(self) -> None:
        alone = [range(n, n + 1) for n in range(4)]
        assert letters(short(*[SchedulingOptions(group="g", group_failures=1)] * 4)) == alone
        assert letters(short(*[SchedulingOptions(shares=True)] * 4)) == alone
        assert letters(short(*[SchedulingOptions(lasts_s=1)] * 4), Capacity(left_s=9)) == alone
        assert letters(short(*[SchedulingOptions(lasts_s=1)] * 4), Capacity(lives_s=9)) == alone
        assert letters(short(*[self.PLAIN] * 4), Capacity(where="slurm")) == alone

    def test_another_attempt_is_sent_alone(self) -> None:
        made = short(*[self.PLAIN] * 4)
        made.note(Note("r", 1, 1, "lost", "0", reason="", at=0.0))
        assert letters(made, agents=1) == [range(1), range(1, 2), range(2, 4)]

    def test_what_comes_back_is_sent_again(self) -> None:
        made = short(*[self.PLAIN] * 4)
        taken = made.take(agents=2)
        assert taken is not None and (taken.first, taken.stop, made.waiting()) == (0, 2, 2)
        made.put_back(1, 2)
        assert letters(made, agents=1) == [range(1, 4)]


def test_by_priority_then_in_order() -> None:
    low, high = SchedulingOptions(priority=-1), SchedulingOptions(priority=5)
    assert order(queue(low, SchedulingOptions(), high, SchedulingOptions())) == [2, 1, 3, 0]


def test_orders_change_priority_and_position() -> None:
    orders = Orders(priorities={JobId("r", 2): 1}, positions={JobId("r", 1): -1.0})
    assert order(queue(*[SchedulingOptions()] * 3, orders=orders)) == [2, 1, 0]


def test_what_is_held_waits_until_it_is_released() -> None:
    orders = Orders()
    made = queue(SchedulingOptions(held=True), SchedulingOptions(), orders=orders)
    assert order(made) == [1]
    assert made.waiting() == 1
    orders.held[JobId("r", 0)] = False
    made.reconsider(0)
    assert order(made) == [0]


def test_a_job_begins_when_what_it_waits_for_has_ended_well() -> None:
    made = queue(SchedulingOptions(after=(OTHER,)), SchedulingOptions(after_any=(OTHER,)))
    assert order(made) == []
    assert made.waits_for() == {OTHER}
    made.dependency_ended(OTHER, True)
    assert order(made) == [0, 1]


def test_a_job_whose_dependency_failed_is_unreachable_unless_any_end_will_do() -> None:
    made = queue(SchedulingOptions(after=(OTHER,)), SchedulingOptions(after_any=(OTHER,)))
    made.dependency_ended(OTHER, False)
    assert order(made) == [1]
    assert made.unreachable == [(0, OTHER)]


def test_what_has_ended_before_is_not_waited_for() -> None:
    assert order(queue(SchedulingOptions(after=(OTHER,)), ended=True)) == [0]


def test_a_job_goes_only_to_a_session_that_has_what_it_asks_for() -> None:
    made = queue(SchedulingOptions(gpus=2), SchedulingOptions(memory_mib=100), SchedulingOptions())
    assert order(made, Capacity(gpus=1, memory_mib=50)) == [2]
    assert order(made, Capacity(gpus=2, memory_mib=50)) == [0]
    assert made.urgency(Capacity(gpus=1, memory_mib=50)) is None
    assert order(made, Capacity(gpus=1, memory_mib=100)) == [1]


def test_what_comes_back_waits_again_and_what_is_withdrawn_does_not() -> None:
    made = queue(*[SchedulingOptions()] * 4)
    assert order(made) == [0, 1, 2, 3]
    made.put_back(0, 4)
    assert made.withdraw({1, 2, 9}) == [(1, 3)]
    assert order(made) == [0, 3]


def test_of_a_group_only_so_many_are_out_at_once() -> None:
    limited = SchedulingOptions(group="g", group_limit=2)
    made = queue(*[limited] * 4, SchedulingOptions())
    assert order(made) == [0, 1, 4]
    made.put_back(0, 1)
    assert order(made) == [0]  # it came back, and goes again
    made.forget(1)
    assert order(made) == [2]


def test_jobs_that_are_out_count_for_a_master_that_has_just_started() -> None:
    limited = SchedulingOptions(group="g", group_limit=2)
    made = queue()
    made._read = lambda taken: iter([limited] * (taken.stop - taken.first))
    made.recover([0], 4, sent=[(1, 2)], covered=[(0, 1)])
    assert order(made) == [2]


def test_a_job_with_a_time_to_begin_waits_for_it() -> None:
    made = queue(SchedulingOptions(begin_at=100.0), SchedulingOptions(begin_at=50.0))
    assert order(made) == []
    made.begin_due(60.0)
    assert order(made) == [1]
    made.put_back(1, 2)
    made.begin_due(100.0)
    assert order(made) == [0, 1]


def test_a_session_whose_card_is_reserved_gets_only_what_fits_before() -> None:
    made = queue(
        SchedulingOptions(), SchedulingOptions(lasts_s=500.0), SchedulingOptions(lasts_s=50.0)
    )
    assert order(made, Capacity(left_s=100.0)) == [2]
    assert order(made, Capacity()) == [0, 1]


def test_a_job_goes_to_the_kind_of_card_that_it_requires() -> None:
    made = queue(SchedulingOptions(require="A100|24G"))
    assert order(made, Capacity(memory_mib=16_000, gpu_name="Tesla T4")) == []
    assert order(made, Capacity(memory_mib=24_200, gpu_name="RTX 4090")) == [0]


def test_jobs_that_share_a_gpu_have_agents_of_their_own_where_there_are_some() -> None:
    share = SchedulingOptions(memory_mib=8000, shares=True)
    made = queue(share, SchedulingOptions(), share)
    sharing = Capacity(memory_mib=24_000, only_shares=True)
    assert made.fitting_at_most(sharing) == 2
    assert order(made, Capacity(memory_mib=24_000, leaves_shares=True)) == [1]
    assert order(made, Capacity(memory_mib=4000, only_shares=True)) == []
    assert order(made, sharing) == [0, 2]
    assert order(queue(share), Capacity(memory_mib=24_000)) == [0], "an agent started by hand"


def test_after_its_failures_the_rest_of_a_group_is_named() -> None:
    made = queue(*[SchedulingOptions(group="g", group_failures=2)] * 4, SchedulingOptions())
    taken = [made.take(), made.take()]
    assert [one.first for one in taken if one] == [0, 1]
    assert made.failed(0) == []
    assert sorted(made.failed(1)) == [2, 3]
    assert made.failed(4) == []

"""Workers of short jobs, spread over the processors."""

from __future__ import annotations

import os
import threading

import pytest

from thinwire.train.processors import Processors

if not hasattr(os, "sched_getaffinity"):
    pytest.skip("this system does not say which processors a thread may use", allow_module_level=True)

HERE = os.sched_getaffinity(0)


def meet(processors: Processors, workers: int) -> tuple[list[set[int]], list[set[int]]]:
    """Where each of some threads may run, all of them within the block at once, and after it."""
    together, within, after = threading.Barrier(workers), list[set[int]](), list[set[int]]()

    def work() -> None:
        with processors.spread():
            together.wait()
            within.append(os.sched_getaffinity(0))
            together.wait()
        after.append(os.sched_getaffinity(0))

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return within, after


@pytest.mark.skipif(len(HERE) < 2, reason="one processor")
def test_workers_that_fill_the_machine_have_a_processor_each_and_give_it_back() -> None:
    processors = Processors(len(HERE))
    for _ in range(2):
        within, after = meet(processors, len(HERE))
        assert sorted(within, key=min) == [{cpu} for cpu in sorted(HERE)]
        assert after == [HERE] * len(HERE)
    within, _ = meet(processors, len(HERE) + 1)  # one more than there are: it goes where it likes
    assert within.count(HERE) == 1


@pytest.mark.parametrize("workers", [1, len(HERE) + 1])
def test_workers_that_do_not_fill_it_go_where_they_like(workers: int) -> None:
    within, _ = meet(Processors(workers), workers)
    assert within == [HERE] * workers


@pytest.mark.skipif(len(HERE) < 2, reason="one processor")
def test_a_thread_that_was_told_where_to_stay_since_stays_there() -> None:
    processors, own = Processors(len(HERE)), {min(HERE)}  # the largest is dealt first
    try:
        os.sched_setaffinity(0, own)
        with processors.spread():
            assert os.sched_getaffinity(0) == own
        assert os.sched_getaffinity(0) == own
    finally:
        os.sched_setaffinity(0, HERE)


@pytest.mark.skipif(len(HERE) < 2, reason="one processor")
def test_an_error_gives_the_processor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    processors = Processors(len(HERE))
    with pytest.raises(KeyError), processors.spread():
        raise KeyError
    assert os.sched_getaffinity(0) == HERE
    assert sorted(processors.free) == sorted(HERE)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: (_ for _ in ()).throw(OSError("taken away")))
    with processors.spread():
        assert os.sched_getaffinity(0) == HERE

"""The pool of compute threads: every part runs once, whoever calls, however many threads."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tandem_kernels.cpu.library import cpu_library

TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    library = cpu_library()
    assert library is not None
    before = library.tandem_num_threads()
    yield library
    library.tandem_set_num_threads(before)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("num_items", [0, 1, 2, 5, 6, 7, 8, 100_000])
def test_every_item_is_in_one_range(library: ctypes.CDLL, num_threads: int, num_items: int) -> None:
    library.tandem_set_num_threads(num_threads)
    items = np.arange(num_items)
    library.tandem_increment(items.ctypes.data, num_items)
    assert np.array_equal(items, np.arange(num_items) + 1)


def test_the_number_of_threads_changes_between_runs(library: ctypes.CDLL) -> None:
    items = np.zeros(50, dtype=np.int64)
    for run, num_threads in enumerate([1, 4, 2, 6, 1, 3] * 50, start=1):
        library.tandem_set_num_threads(num_threads)
        library.tandem_increment(items.ctypes.data, len(items))
        assert (items == run).all()


def test_callers_at_once_do_not_take_each_others_parts(library: ctypes.CDLL) -> None:
    library.tandem_set_num_threads(2)
    all_items = [np.zeros(64, dtype=np.int64) for _ in range(6)]

    def call_often(items: np.ndarray) -> None:
        for _ in range(500):
            library.tandem_increment(items.ctypes.data, len(items))

    callers = [threading.Thread(target=call_often, args=(items,)) for items in all_items]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((items == 500).all() for items in all_items)


def test_threads_that_fell_asleep_wake(library: ctypes.CDLL) -> None:
    library.tandem_set_num_threads(3)
    items = np.zeros(64, dtype=np.int64)
    for run in range(1, 20):
        library.tandem_increment(items.ctypes.data, len(items))
        np.sort(np.random.default_rng(run).random(100_000))  # longer than threads spin
        assert (items == run).all()


def run_parts(library: ctypes.CDLL, num_parts: int, task: Callable[[int], None]) -> None:
    """Calls `task` with every part; what it raises would be lost, so it must not."""
    call = TASK(lambda _, part: task(part))
    library.tandem_run_parts(num_parts, ctypes.cast(call, ctypes.c_void_p), None)


@pytest.mark.parametrize("held_up", [0, 3, 9])
def test_a_thread_that_is_held_up_holds_up_no_other_part(
    library: ctypes.CDLL, held_up: int
) -> None:
    library.tandem_set_num_threads(2)
    ended: list[int] = []
    all_others = threading.Event()

    def task(part: int) -> None:
        if part == held_up:
            all_others.wait(timeout=30)
        ended.append(part)
        if len(ended) == 9:
            all_others.set()

    run_parts(library, 10, task)
    assert sorted(ended) == list(range(10))
    assert ended[-1] == held_up


def test_a_part_of_a_part_runs_inline(library: ctypes.CDLL) -> None:
    library.tandem_set_num_threads(2)
    inner: list[tuple[int, int, int]] = []

    def task(part: int) -> None:
        thread = threading.get_ident()
        assert library.tandem_num_threads() == 1
        run_parts(library, 3, lambda i: inner.append((part, i, threading.get_ident() - thread)))

    run_parts(library, 4, task)
    assert sorted(inner) == [(part, i, 0) for part in range(4) for i in range(3)]
    assert library.tandem_num_threads() == 2


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_starts_threads_of_its_own(library: ctypes.CDLL) -> None:
    library.tandem_set_num_threads(2)
    items = np.zeros(64, dtype=np.int64)
    library.tandem_increment(items.ctypes.data, len(items))
    child = os.fork()
    if child == 0:
        library.tandem_increment(items.ctypes.data, len(items))
        os._exit(0 if (items == 2).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert library.tandem_num_threads() == 2

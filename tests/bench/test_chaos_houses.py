"""Which faults a house offers, before anything of it is started."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from bench.chaos.choice_of_house import HouseKind, HouseWanted, make_house
from bench.chaos.plan import FaultKind

GROUPS = {FaultKind.KILL_RANK, FaultKind.STOP_RANK}


def kinds(tmp_path: Path, kind: HouseKind, *, ranks: int, nodes: bool) -> set[FaultKind]:
    wanted = HouseWanted(
        kind=kind,
        model="tiny",
        redis_server="true",
        scratch=tmp_path,
        logs=tmp_path,
        seed=0,
        overrides=(),
        two_nodes=nodes,
        num_ranks=ranks,
    )
    house, _, _ = make_house(wanted)
    return set(house.targets())


def test_all_kinds_are_offered_by_one_house_or_the_other(tmp_path: Path) -> None:
    by_hand = kinds(tmp_path, "by-hand", ranks=2, nodes=True)
    ray = kinds(tmp_path, "ray", ranks=2, nodes=True)
    assert by_hand | ray == set(FaultKind)
    assert {FaultKind.KILL_RAYLET, FaultKind.STOP_GCS, FaultKind.CUT_NETWORK} <= ray


def test_single_ranks_are_hit_in_groups_only(tmp_path: Path) -> None:
    for kind in get_args(HouseKind):
        assert not kinds(tmp_path, kind, ranks=1, nodes=True) & GROUPS
        assert kinds(tmp_path, kind, ranks=2, nodes=False) >= GROUPS


def test_a_cable_is_cut_where_there_are_two_nodes(tmp_path: Path) -> None:
    for kind in get_args(HouseKind):
        assert FaultKind.CUT_NETWORK not in kinds(tmp_path, kind, ranks=1, nodes=False)


def test_of_each_role_one_group_by_hand_is_never_ended_nor_stopped(tmp_path: Path) -> None:
    """A group that waits for a stopped rank gives itself up, and memory is to be compared."""
    wanted = HouseWanted("by-hand", "tiny", "true", tmp_path, tmp_path, 0, (), num_ranks=2)
    house, _, _ = make_house(wanted)
    hit = {target for targets in house.targets().values() for target in targets}
    assert {"prefill-0", "decode-0", "router-0"} <= hit
    assert not hit & {"prefill-1", "decode-1"}

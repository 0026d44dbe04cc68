"""Measurements on disk: one line each, written as soon as it is made, so that a run can go on.

measurements.jsonl   | run's settings | measurement | measurement ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from core.errors import ConfigError

_FILE = "measurements.jsonl"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One workload, once, on one contender."""

    contender: str
    workload: str
    repeat: int
    figures: dict[str, float] = field(default_factory=dict)
    """By name; names end in their units."""
    problem: str | None = None
    """Why the figures are none; such a measurement is made again when the run goes on."""
    processes_mib: dict[str, float] = field(default_factory=dict)
    """Of `memory`: each process when all together took most."""
    start_processes_mib: dict[str, float] = field(default_factory=dict)
    """Of `memory`: each process right after the first answer."""
    took_s: float = 0.0

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.contender, self.workload, self.repeat)


class Results:
    """All measurements of a run, in memory and in its directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._made: dict[tuple[str, str, int], Measurement] = {}

    @classmethod
    def begin(cls, directory: Path, settings: Mapping[str, str], *, resume: bool) -> Results:
        """Opens the directory for a run with these settings.

        Raises ConfigError if it holds measurements and the run is not to go on with them, or if
        they were made with other settings.
        """
        results = cls(directory)
        if results._path.exists():
            if not resume:
                raise ConfigError(
                    f"{directory} holds measurements: --resume goes on, --out names another place"
                )
            results._read(settings)
        else:
            directory.mkdir(parents=True, exist_ok=True)
            results._path.write_text(json.dumps(dict(settings)) + "\n")
        return results

    def add(self, measurement: Measurement) -> None:
        self._made[measurement.key] = measurement
        line = TypeAdapter(Measurement).dump_json(measurement)
        with self._path.open("ab") as file:
            file.write(line + b"\n")

    def get(self, contender: str, workload: str, repeat: int) -> Measurement | None:
        """The last one, with or without a problem."""
        return self._made.get((contender, workload, repeat))

    def has(self, contender: str, workload: str, repeat: int) -> bool:
        """Whether it was measured, without a problem."""
        made = self.get(contender, workload, repeat)
        return made is not None and made.problem is None

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The last of each contender, workload and repeat."""
        return tuple(self._made.values())

    def _read(self, settings: Mapping[str, str]) -> None:
        first, *lines = self._path.read_text().splitlines()
        if json.loads(first) != dict(settings):
            raise ConfigError(f"{self._path} was made with other settings: {first}")
        parse = TypeAdapter(Measurement)
        for number, line in enumerate(lines, start=2):
            try:
                measurement = parse.validate_json(line)
            except ValidationError:
                # The line that was being written when the run was cut off; all others are whole
                if number - 1 < len(lines):
                    raise ConfigError(f"{self._path}, line {number} is no measurement") from None
                self._path.write_text("\n".join((first, *lines[:-1])) + "\n")
            else:
                self._made[measurement.key] = measurement

"""What a process has loaded by the time it serves is left alone by Python's collector."""

from __future__ import annotations

import subprocess
import sys

# A process of its own: what is frozen stays so.
SCRIPT = """
import gc
from core.loaded import keep_loaded

class Ring:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("freed", flush=True)

Ring()
keep_loaded()
loaded = gc.get_freeze_count()
print("kept", loaded > 1000, len(gc.get_objects()) < loaded / 100, flush=True)
Ring()
gc.collect()
"""


def test_garbage_of_the_start_is_freed_and_the_rest_no_longer_looked_through() -> None:
    command = [sys.executable, "-c", SCRIPT]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output.split("\n")[:3] == ["freed", "kept True True", "freed"]

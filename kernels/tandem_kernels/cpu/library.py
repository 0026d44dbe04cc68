"""The compiled kernels of this process. Calls through it release the GIL.

Each file of kernels declares its own functions, once, when it is given the library:

    library.tandem_double.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.tandem_double.restype = None
    library.tandem_double(x.data_ptr(), x.numel())
"""

from __future__ import annotations

import ctypes
import functools
import logging

from tandem_kernels.cpu.build import Builder, BuildError


@functools.cache
def cpu_library() -> ctypes.CDLL | None:
    """Loads the library, compiling it first if need be; None (and one warning) if that fails."""
    try:
        builder = Builder.of_this_machine()
    except BuildError as error:
        _warn(error)
        return None
    return load_library(builder)


def load_library(builder: Builder) -> ctypes.CDLL | None:
    """The library of `builder`, its pool of threads declared; None if there can't be one."""
    try:
        library = ctypes.CDLL(str(builder.library()))
    except (BuildError, OSError) as error:
        _warn(error)
        return None
    library.tandem_set_num_threads.argtypes = [ctypes.c_int]
    library.tandem_set_num_threads.restype = None
    library.tandem_num_threads.argtypes = []
    library.tandem_num_threads.restype = ctypes.c_int
    library.tandem_run_parts.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    library.tandem_run_parts.restype = None
    library.tandem_increment.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.tandem_increment.restype = None
    return library


def _warn(reason: Exception) -> None:
    logging.getLogger(__name__).warning("CPU kernels are plain torch, and slow: %s", reason)

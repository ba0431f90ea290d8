"""Builds the native kernels of ``iop._fast``; everything else is declared in pyproject.toml.

``IOP_SANITIZE=1`` builds them with AddressSanitizer and UBSan (``make asan``); ``IOP_KERNELS=0`` leaves them out, for
the Makefile, which builds them itself after the tools are installed.
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
SANITIZE = os.environ.get("IOP_SANITIZE") == "1"
COMPILE = ["-O1", "-g", "-fno-omit-frame-pointer", *SANITIZERS] if SANITIZE else ["-O3"]
LINK = SANITIZERS if SANITIZE else []
# Worker processes start by fork only on Linux; elsewhere each would run this file again.
JOBS = (os.cpu_count() or 1) if sys.platform == "linux" else 0

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": True,  # off only in named functions whose comment states the bound
    "wraparound": False,
    "initializedcheck": True,
    "cdivision": True,
    "embedsignature": False,
}

extensions = [
    Extension(
        "iop._fast." + path.stem,
        [str(path)],
        extra_compile_args=[*COMPILE, "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function"],
        extra_link_args=LINK,
    )
    for path in sorted(Path("src/iop/_fast").glob("*.pyx"))
    if os.environ.get("IOP_KERNELS") != "0"
]

setup(
    ext_modules=cythonize(extensions, compiler_directives=DIRECTIVES, nthreads=JOBS),
    options={"build_ext": {"parallel": JOBS}} if JOBS else {},
)

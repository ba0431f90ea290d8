"""Builds the native kernels of ``iop._fast``; everything else is declared in pyproject.toml.

``IOP_SANITIZE=1`` builds them with AddressSanitizer and UBSan (``make asan``).
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZE = os.environ.get("IOP_SANITIZE") == "1"
COMPILE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"] if SANITIZE else ["-O3"]
LINK = ["-fsanitize=address,undefined"] if SANITIZE else []

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
]

setup(ext_modules=cythonize(extensions, compiler_directives=DIRECTIVES, nthreads=0 if SANITIZE else 2))

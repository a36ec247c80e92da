"""Compiling a program with less effort than XLA's defaults, where that pays."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

# Compiling in several pieces at once costs more than it saves.
IN_ONE_PIECE: dict[str, Any] = {"xla_cpu_parallel_codegen_split_count": 1}
# For programs whose time goes to small matrix products in a library: they run nearly as fast.
CHEAPLY: dict[str, Any] = IN_ONE_PIECE | {"xla_backend_optimization_level": 1}
# For programs that run once: elementwise code a third slower, ready a third sooner.
FOR_ONE_RUN: dict[str, Any] = CHEAPLY | {"xla_cpu_use_fusion_emitters": False}


def compiled(options: dict[str, Any], **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`jax.jit` with options for the compiler, and without them where the compiler no longer knows one.

    Options come and go with XLA's versions; they change how long a program takes, never what it answers.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        program = jax.jit(function, compiler_options=options, **settings)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal program
            try:
                return program(*args, **kwargs)
            except jax.errors.JaxRuntimeError as error:
                if "No such compile option" not in str(error):
                    raise
                program = jax.jit(function, **settings)
                return program(*args, **kwargs)

        return call

    return decorate

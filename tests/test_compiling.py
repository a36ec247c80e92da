"""Options for the compiler are a help, never a need."""

import jax.numpy as jnp
import pytest

from missbgm.compiling import FOR_ONE_RUN, compiled


@pytest.mark.parametrize("options", [FOR_ONE_RUN, {"xla_an_option_of_another_time": True}])
def test_a_program_answers_whether_or_not_the_compiler_knows_its_options(options):
    calls = []

    @compiled(options, static_argnames="n")
    def scaled(x, *, n):
        """Scale."""
        calls.append(n)
        return n * x

    assert scaled(jnp.array(2.0), n=3) == 6
    traced = len(calls)
    assert scaled(jnp.array(5.0), n=3) == 15
    assert len(calls) == traced  # nothing is traced again
    assert scaled.__doc__ == "Scale."


def test_other_errors_are_not_swallowed():
    @compiled(FOR_ONE_RUN)
    def broken(x):
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        broken(jnp.array(1.0))

"""Chains for every row of a table: blocks, seeds, what is kept, moments, the plan for uncertain weights."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from by_hand import FACTOR
from missbgm.bgm.joint import Model, Terms
from missbgm.bgm.likelihood import Columns
from missbgm.bgm.networks import is_uncertain, layers_of
from missbgm.config import Config, Posterior
from missbgm.fit.alternate import Rates, refine
from missbgm.fit.alternate import Rows as Local
from missbgm.fit.start import Inverse, complete
from missbgm.sample import posterior
from missbgm.sample.gibbs import Trace
from missbgm.sample.posterior import Recorder, Rows, Sampled, block_rows, cut, draw_posterior, plan

Array = NDArray[Any]
KEY, MODEL = jax.random.key(0), FACTOR.model
# All runs make at most 50 sweeps, so that one compiled program serves them.
SETTINGS = Posterior(n_mcmc=20, burn_in=10, step_size=0.5, n_leapfrog=2)


def rows_of(n: int, seed: int = 0) -> Rows:
    z, x, observed = FACTOR.simulate(np.random.default_rng(seed), n)
    observed[0] = True
    observed[1] = False
    return Rows(z, x, observed, np.arange(n, dtype=np.uint32))


def draws(rows: Rows, settings: Posterior = SETTINGS, key: Any = KEY, **given: Any) -> Sampled:
    return draw_posterior(key, MODEL, rows, settings, 0.5, **given)


def by_cell(rows: Rows, sampled: Sampled) -> dict[tuple[int, int], Array]:
    """Draws of each missing cell, by the number of its row and its column."""
    index = np.argwhere(~rows.observed)
    return {(int(rows.numbers[i]), int(j)): sampled.values[..., at] for at, (i, j) in enumerate(index)}


@pytest.fixture(scope="module")
def rows() -> Rows:
    return rows_of(50)


@pytest.fixture(scope="module")
def sampled(rows: Rows) -> Sampled:
    return draws(rows)


# Blocks


@pytest.mark.parametrize(("n", "size"), [(1, 64), (64, 64), (65, 128), (200, 256), (256, 256), (9_999, 256)])
def test_blocks_are_quarters_for_short_tables_and_full_for_long_ones(n: int, size: int) -> None:
    assert block_rows(n) == size


def test_accelerators_get_longer_blocks_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert posterior.n_workers() >= 1
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert block_rows(100) == 4_096
    assert block_rows(10**6) == 16_384
    assert posterior.n_workers() == 1


@pytest.mark.parametrize("n", [3, 64, 100, 300, 512])
def test_a_table_is_cut_into_blocks_of_one_shape_that_hold_every_row_once(n: int) -> None:
    rows = rows_of(n)
    before = rows.observed.copy()
    blocks = cut(rows)
    assert {block.x.shape for block, _ in blocks} == {(block_rows(n), 4)}
    for field in Rows._fields:
        joined = np.concatenate([getattr(block, field)[:n_real] for block, n_real in blocks])
        np.testing.assert_array_equal(joined, getattr(rows, field))
    assert all(block.observed[n_real:].all() for block, n_real in blocks)
    np.testing.assert_array_equal(rows.observed, before)


def test_segments_are_few_lengths_within_a_bound_on_the_trace() -> None:
    lengths = [posterior.segment_length(n, 1_000) for n in (1, 50, 51, 2_000)]
    assert lengths == [10, 10, 50, 50]
    assert posterior.segment_length(2_000, 256 * 1_000) == 7
    assert posterior.segment_length(2_000, 10**9) == 1


# Draws


def test_draws_are_of_missing_cells_row_by_row(rows: Rows, sampled: Sampled) -> None:
    n_cells = (~rows.observed).sum()
    assert sampled.values.shape == (1, 20, n_cells)
    assert sampled.values.dtype == np.float32
    assert sampled.mean.shape == sampled.sd.shape == (n_cells,)
    assert np.isfinite(sampled.values).all()
    assert (sampled.values.std(axis=1) > 0).all()


def test_cells_are_where_their_rows_are() -> None:
    # One sweep of tiny steps leaves every cell near where it started, and no two start near each other.
    rows = rows_of(40)
    x = np.random.default_rng(0).permutation(160).reshape(40, 4).astype(np.float32) / 10
    still = draws(rows._replace(x=x), replace(SETTINGS, n_mcmc=1, burn_in=0, step_size=1e-4))
    np.testing.assert_allclose(still.values[0, 0], x[~rows.observed], atol=0.02)


def test_a_rows_draws_do_not_depend_on_which_other_rows_are_drawn(rows: Rows, sampled: Sampled) -> None:
    chosen = np.array([44, 1, 7, 30, 12])
    alone = by_cell(rows.taken(chosen), draws(rows.taken(chosen)))
    whole = by_cell(rows, sampled)
    assert alone
    for cell, values in alone.items():
        np.testing.assert_allclose(values, whole[cell], rtol=1e-4, atol=1e-4)


def test_nor_on_the_shape_of_its_block(rows: Rows, sampled: Sampled) -> None:
    more = rows_of(300, seed=5)
    joined = Rows(*(np.concatenate([a, b]) for a, b in zip(more, rows, strict=True)))
    joined = joined._replace(numbers=np.concatenate([more.numbers + 1_000, rows.numbers]))
    together = by_cell(joined, draws(joined))
    for cell, values in by_cell(rows, sampled).items():
        np.testing.assert_allclose(values, together[cell], rtol=1e-3, atol=1e-3)


def test_the_key_and_the_rows_number_decide(rows: Rows, sampled: Sampled) -> None:
    np.testing.assert_array_equal(draws(rows).values, sampled.values)
    others = (draws(rows, key=jax.random.key(1)), draws(rows._replace(numbers=rows.numbers + 100)))
    for other in others:
        assert (other.values != sampled.values).mean() > 0.99


def test_thinning_keeps_every_other_sweep(rows: Rows, sampled: Sampled) -> None:
    thinned = draws(rows, replace(SETTINGS, n_mcmc=10, thin=2))
    np.testing.assert_array_equal(thinned.values, sampled.values[:, 1::2])
    # Moments are of every sweep, kept or not.
    np.testing.assert_array_equal(thinned.mean, sampled.mean)
    np.testing.assert_array_equal(thinned.sd, sampled.sd)


def test_a_run_that_ends_within_a_segment_is_the_start_of_a_longer_one(rows: Rows, sampled: Sampled) -> None:
    shorter = draws(rows, replace(SETTINGS, n_mcmc=13))
    np.testing.assert_array_equal(shorter.values, sampled.values[:, :13])


def test_chains_are_independent_and_the_first_is_the_only_one_of_one(rows: Rows, sampled: Sampled) -> None:
    three = draws(rows, replace(SETTINGS, n_chains=3))
    assert three.values.shape[0] == 3
    np.testing.assert_array_equal(three.values[:1], sampled.values)
    for a, b in ((0, 1), (1, 2)):
        assert (three.values[a] != three.values[b]).mean() > 0.99


@pytest.mark.parametrize("n_chains", [1, 2])
def test_streaming_moments_are_those_of_the_draws(rows: Rows, n_chains: int) -> None:
    got = draws(rows, replace(SETTINGS, n_chains=n_chains))
    pooled = got.values.reshape(-1, got.values.shape[2]).astype(float)
    np.testing.assert_allclose(got.mean, pooled.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.sd, pooled.std(axis=0, ddof=1), rtol=1e-4)


def test_half_precision_stores_the_same_draws_rounded(rows: Rows, sampled: Sampled) -> None:
    half = draws(rows, replace(SETTINGS, dtype="float16"))
    assert half.values.dtype == np.float16
    np.testing.assert_array_equal(half.values, sampled.values.astype(np.float16))
    np.testing.assert_array_equal(half.mean, sampled.mean)


def test_one_draw_without_burn_in_has_no_spread(rows: Rows) -> None:
    one = draws(rows, replace(SETTINGS, n_mcmc=1, burn_in=0))
    np.testing.assert_allclose(one.mean, one.values[0, 0], rtol=1e-6)
    np.testing.assert_allclose(one.sd, 0, atol=1e-3)


def test_sweeps_are_counted_up_to_all_of_them(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posterior, "n_workers", lambda: 1)
    seen: list[tuple[int, int]] = []
    draws(rows, replace(SETTINGS, n_chains=2), on_sweeps=lambda done, of: seen.append((done, of)))
    assert seen == [(10 * i, 60) for i in range(1, 7)]


@pytest.mark.parametrize("model", [MODEL, None])
def test_without_a_missing_cell_there_is_nothing_to_draw(model: Model | None) -> None:
    rows = rows_of(10)
    rows.observed[:] = True
    got = draw_posterior(KEY, model, rows, SETTINGS, 0.5)
    assert got.values.shape == (1, 20, 0)
    assert got.mean.shape == got.sd.shape == (0,)
    assert not got.check.rhat
    assert got.check.stuck_rows == 0


# The check


def test_the_check_sees_the_terms_and_cells_evenly_spread(rows: Rows, sampled: Sampled) -> None:
    n_cells = sampled.values.shape[2]
    assert list(sampled.check.rhat) == [*Terms._fields, *(f"cell {i}" for i in range(n_cells))]
    expected = posterior.checked({"cell 3": sampled.values[:, :, 3].astype(float)}, np.ones(1), np.ones(1))
    assert sampled.check.rhat["cell 3"] == expected.rhat["cell 3"]
    assert 0 < sampled.check.z_acceptance <= 1
    assert 0 < sampled.check.x_acceptance <= 1


def test_of_many_cells_a_hundred_are_checked(rows: Rows) -> None:
    whole = rows._replace(observed=np.zeros_like(rows.observed))
    names = [name for name in draws(whole).check.ess if name.startswith("cell")]
    assert len(names) == posterior.CHECKED_CELLS
    assert (names[0], names[-1]) == ("cell 0", "cell 199")


def test_rows_that_never_move_are_counted_as_stuck(rows: Rows) -> None:
    settings = replace(SETTINGS, burn_in=0, step_size=1e4)
    incomplete = (~rows.observed.all(axis=1)).sum()
    assert draws(rows, settings).check.stuck_rows == incomplete


# The recorder


def trace_of(rng: np.random.Generator, sweeps: int, p: int, n: int) -> Trace:
    terms = Terms(*rng.standard_normal((3, sweeps, n)))
    return Trace(rng.standard_normal((sweeps, p, n)), terms, *rng.random((2, sweeps, n)))


def test_a_recorder_gathers_segments_as_if_they_were_one_run() -> None:
    rng = np.random.default_rng(0)
    block = cut(rows_of(5))[0][0]
    parts = [trace_of(rng, 6, 4, 64) for _ in range(3)]
    whole = jax.tree.map(lambda *a: np.concatenate(a), *parts)
    settings = Posterior(n_mcmc=4, thin=3)
    out = np.empty((4, (~block.observed).sum()))
    recorder = Recorder(block, 5, settings, out)
    for part, skipped, ended in zip(parts, (4, 0, 0), (6, 6, 4), strict=True):
        recorder.record(part, skipped, ended)
    used = slice(4, 16)
    row, column = np.nonzero(~block.observed)
    cells = whole.x[used][:, column, row]
    np.testing.assert_array_equal(out, cells[2::3])
    np.testing.assert_allclose(recorder.total, cells.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(recorder.squares, (cells**2).sum(axis=0), rtol=1e-12)
    expected = np.array([term[used][2::3, :5].sum(axis=1) for term in whole.terms])
    np.testing.assert_allclose(recorder.terms, expected, rtol=1e-12)
    rates = np.array([rate[used, :5].sum(axis=0) for rate in (whole.z_acceptance, whole.x_acceptance)])
    np.testing.assert_allclose(recorder.acceptance, rates, rtol=1e-12)
    assert recorder.n_used == 12


# Uncertain weights


@pytest.fixture(scope="module")
def uncertain() -> Model:
    rng = np.random.default_rng(0)
    columns = Columns.of_classes([0] * 4)
    return Model.create(rng, columns, z_dim=2, g_units=(), missingness_units=(), uncertain=True)


def test_fixed_weights_make_one_phase() -> None:
    (phase,) = plan(MODEL, KEY, SETTINGS)
    assert phase.model is MODEL
    assert (phase.discarded, phase.kept) == (10, 20)


@pytest.mark.parametrize(
    ("n_mcmc", "n_weight_draws", "kept"),
    [(10, 3, [3, 3, 4]), (9, 3, [3, 3, 3]), (2, 5, [1, 1]), (7, 1, [7])],
)
def test_uncertain_weights_are_redrawn_with_sweeps_to_settle(
    uncertain: Model, n_mcmc: int, n_weight_draws: int, kept: list[int]
) -> None:
    settings = Posterior(n_mcmc=n_mcmc, burn_in=10, n_weight_draws=n_weight_draws)
    phases = plan(uncertain, KEY, settings)
    n = len(kept)
    assert [phase.kept for phase in phases] == kept
    assert [phase.discarded for phase in phases] == [10, *[int(np.ceil(10 / n))] * (n - 1)]
    assert not any(is_uncertain(phase.model) for phase in phases)
    weights = [np.asarray(layers_of(phase.model)[0].weight).tobytes() for phase in phases]
    assert len(set(weights)) == n


def test_draws_of_weights_depend_on_the_key(uncertain: Model) -> None:
    first, again, other = (
        plan(uncertain, jax.random.key(seed), Posterior(n_weight_draws=1))[0].model for seed in (0, 0, 1)
    )
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(layers_of(first)[0].weight, layers_of(other)[0].weight)


def test_uncertain_weights_fill_every_draw(uncertain: Model, rows: Rows) -> None:
    settings = replace(SETTINGS, n_weight_draws=4)
    got = draw_posterior(KEY, uncertain, rows, settings, 0.5)
    assert np.isfinite(got.values).all()
    np.testing.assert_allclose(got.mean, got.values[0].mean(axis=0, dtype=float), rtol=1e-4, atol=1e-5)
    # Rows of one phase share their weights; the joint log density of the mechanism shows where they change.
    again = draw_posterior(KEY, uncertain, rows, settings, 0.5)
    np.testing.assert_array_equal(again.values, got.values)


# Modes of new rows

CONFIG = Config(lr_z=0.05, lr_x=0.05, beta=0.5, test_epochs=4, n_inner_steps=5)


@pytest.fixture(scope="module")
def inverse() -> Inverse:
    z, x, _ = FACTOR.simulate(np.random.default_rng(1), 200)
    return Inverse.learn(z, x)


def moved(rows: Rows, inverse: Inverse) -> Rows:
    return posterior.moved_to_mode(MODEL, inverse, rows, CONFIG)


def test_new_rows_are_completed_and_then_refined(rows: Rows, inverse: Inverse) -> None:
    got = moved(rows, inverse)
    observed = jnp.asarray(rows.observed.T)
    z, x = complete(MODEL, inverse, jnp.asarray(rows.x.T), observed)
    expected = refine(MODEL, Local.start(z, x), observed, Rates.of(CONFIG, 1), np.int32(20))
    np.testing.assert_allclose(got.z, expected.z.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.x, expected.x.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got.x[rows.observed], rows.x[rows.observed])
    np.testing.assert_array_equal(got.numbers, rows.numbers)


def test_modes_do_not_depend_on_other_rows_or_their_order(rows: Rows, inverse: Inverse) -> None:
    whole, order = moved(rows, inverse), np.random.default_rng(0).permutation(50)[:20]
    some = moved(rows.taken(order), inverse)
    np.testing.assert_allclose(some.z, whole.z[order], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(some.x, whole.x[order], rtol=1e-4, atol=1e-5)


def test_modes_forget_what_missing_cells_held(rows: Rows, inverse: Inverse) -> None:
    other = rows._replace(x=np.where(rows.observed, rows.x, np.float32(9)))
    np.testing.assert_array_equal(moved(other, inverse).x, moved(rows, inverse).x)


def test_modes_of_a_long_table_are_put_together_in_order(inverse: Inverse) -> None:
    long = rows_of(300)
    got = moved(long, inverse)
    assert got.z.shape == (300, 2)
    part = moved(long.taken(np.arange(260, 300)), inverse)
    np.testing.assert_allclose(got.x[260:], part.x, rtol=1e-4, atol=1e-5)

"""Did the chains mix? R-hat and effective sample size (Vehtari et al., 2021), with a verdict in words."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Series = NDArray[np.float64]  # chains by draws

RHAT_LIMIT = 1.05
ESS_LIMIT = 100.0
# Chains of one row are short, so that a few of many exceed the limit by chance.
HMC_RHAT_LIMIT, HMC_EXCEPTIONS = 1.2, 0.05
HMC_ADVICE = "Some of these chains did not mix well: raise collapse.n_proposals, or lower z_dim."


def _split(x: Series) -> Series:
    """Each chain cut into two halves, so that a drift within one chain shows."""
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, x.shape[1] - half :]])


def _normal_scores(x: Series) -> Series:
    ranks = stats.rankdata(x, axis=None).reshape(x.shape)
    return stats.norm.ppf((ranks - 0.375) / (x.size + 0.25))


def _plain_rhat(x: Series) -> float:
    n = x.shape[1]
    within = x.var(axis=1, ddof=1).mean()
    between = x.mean(axis=1).var(ddof=1)
    return float(np.sqrt((n - 1) / n + between / within)) if within > 0 else np.nan


def rhat(x: Series) -> float:
    """Rank-normalised split R-hat, the larger of that of the values and of their distance to the median."""
    halves = _split(np.asarray(x, dtype=np.float64))
    folded = np.abs(halves - np.median(halves))
    return float(np.fmax(_plain_rhat(_normal_scores(halves)), _plain_rhat(_normal_scores(folded))))


def _autocovariance(x: Series) -> Series:
    n = x.shape[1]
    transform = np.fft.rfft(x - x.mean(axis=1, keepdims=True), 2 * n, axis=1)
    return np.fft.irfft(np.abs(transform) ** 2, axis=1)[:, :n] / n


def ess(x: Series) -> float:
    """Effective sample size of the rank-normalised values, by Geyer's initial monotone sequence."""
    z = _normal_scores(_split(np.asarray(x, dtype=np.float64)))
    chains, n = z.shape
    covariance = _autocovariance(z).mean(axis=0)
    within = covariance[0] * n / (n - 1)
    variance = within * (n - 1) / n + z.mean(axis=1).var(ddof=1)
    if not variance > 0:
        return np.nan
    correlation = 1 - (within - covariance * n / (n - 1)) / variance
    correlation[0] = 1.0
    pairs = correlation[: n - n % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0)
    pairs = np.minimum.accumulate(pairs[: negative[0] if len(negative) else len(pairs)])
    time = max(2 * pairs.sum() - 1, 1 / np.log10(chains * n))
    return float(chains * n / time)


class Check(NamedTuple):
    """Diagnostics of some named series and what they amount to."""

    rhat: dict[str, float]
    ess: dict[str, float]
    z_acceptance: float
    x_acceptance: float
    stuck_rows: int

    @property
    def worst_rhat(self) -> float:
        return float(np.nanmax([*self.rhat.values(), -np.inf]))

    @property
    def least_ess(self) -> float:
        return float(np.nanmin([*self.ess.values(), np.inf]))

    @property
    def mixed(self) -> bool:
        return self.worst_rhat <= RHAT_LIMIT and self.least_ess >= ESS_LIMIT and self.stuck_rows == 0

    @property
    def doubtful(self) -> bool:
        """Whether the draws should be warned about."""
        return bool(self.rhat) and not self.mixed

    @property
    def verdict(self) -> str:
        """What to make of it, in a sentence or two."""
        if not self.rhat:
            return "Nothing to check: no missing cell was drawn."
        figures = f"largest R-hat {self.worst_rhat:.3f}, least effective sample size {self.least_ess:.0f}"
        if self.mixed:
            return f"The chains mixed ({figures})."
        advice = []
        if self.stuck_rows:
            advice.append(
                f"{self.stuck_rows} rows hardly ever accepted a move; lower posterior.step_size or raise "
                "posterior.burn_in."
            )
        if self.worst_rhat > RHAT_LIMIT or self.least_ess < ESS_LIMIT:
            advice.append("Raise posterior.burn_in and posterior.n_mcmc (or posterior.thin) and draw again.")
        return f"The chains did not mix well ({figures}). " + " ".join(advice)


def checked(series: dict[str, Series], z_acceptance: Series, x_acceptance: Series) -> Check:
    """Check named series (chains by draws) and the rows' acceptance rates."""
    usable = {name: x for name, x in series.items() if x.shape[1] >= 4}
    stuck = int(((z_acceptance < 0.05) | (x_acceptance < 0.05)).sum())
    return Check(
        {name: rhat(x) for name, x in usable.items()},
        {name: ess(x) for name, x in usable.items()},
        float(z_acceptance.mean()) if z_acceptance.size else np.nan,
        float(x_acceptance.mean()) if x_acceptance.size else np.nan,
        stuck,
    )


class Weighing(NamedTuple):
    """How rows were drawn: by weighted proposals, or by HMC where too few of them were effective."""

    share: NDArray[np.float64]  # effective, of each row's proposals under each model
    poor: float  # below this share a row is drawn by HMC
    hmc_rhat: list[float]  # the largest of each row so drawn

    @property
    def n_hmc(self) -> int:
        """How many times a row was drawn by HMC."""
        return len(self.hmc_rhat)

    @property
    def unmixed_share(self) -> float:
        """The share of the rows drawn by HMC whose R-hat exceeds the limit."""
        return float(np.mean(np.array(self.hmc_rhat) > HMC_RHAT_LIMIT)) if self.hmc_rhat else 0.0

    @property
    def mixed(self) -> bool:
        return self.unmixed_share <= HMC_EXCEPTIONS

    @property
    def doubtful(self) -> bool:
        """Whether the draws should be warned about."""
        return not self.mixed

    @property
    def verdict(self) -> str:
        """What to make of it, in a sentence or two."""
        if not len(self.share):
            return "Nothing to check: no missing cell was drawn."
        weighted = (
            f"Rows were drawn by weighted proposals (median effective share {np.median(self.share):.0%}, "
            f"least {self.share.min():.0%})"
        )
        if not self.hmc_rhat:
            return weighted + "."
        by_chains = (
            f"{weighted}, except {self.n_hmc} of {len(self.share)} with an effective share below "
            f"{self.poor:.0%}, drawn by HMC (R-hat above {HMC_RHAT_LIMIT:g} in {self.unmixed_share:.0%})."
        )
        return by_chains if self.mixed else f"{by_chains} {HMC_ADVICE}"

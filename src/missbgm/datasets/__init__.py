"""Tables to try the package on: simulated with a known posterior, public, and holes to make in them."""

from missbgm.datasets.ampute import ampute_mnar, hide
from missbgm.datasets.fetch import Dataset, load_dataset, standardize
from missbgm.datasets.gisette import gisette_like
from missbgm.datasets.simulate import OracleData, simulate_mnar_oracle_data

__all__ = [
    "Dataset",
    "OracleData",
    "ampute_mnar",
    "gisette_like",
    "hide",
    "load_dataset",
    "simulate_mnar_oracle_data",
    "standardize",
]

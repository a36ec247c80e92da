"""The example of the paper's software appendix, word for word; run it from the repository's root."""
# ruff: noqa: I001, PTH123, SIM115, UP015 -- the paper's words, not ours

# fmt: off
import yaml
from missbgm.models import MissBGM
from missbgm.datasets import simulate_mnar_oracle_data

params = yaml.safe_load(open("configs/MNAR_oracle.yaml", "r"))
data = simulate_mnar_oracle_data(
    n_samples=500,
    x_dim=50
)

# Instantiate the MissBGM model with the configuration
model = MissBGM(params, random_seed=42)

# Train the MissBGM model
model.fit(data=data["x_obs"], mask=data["mask"], x_true=data["x_full"])

# Get the MAP imputation
map_imputed = model.x_map_imputed_

# Make posterior predictions with uncertainty quantification
mcmc_imputed, intervals = model.predict(
    data=data["x_obs"],
    mask=data["mask"],
    x_true=data["x_full"],
    alpha=0.05
)
# fmt: on

# The rest is not the paper's: what came out, beside the best that is possible.
missing = data["mask"] == 0
truth = data["x_full"][missing]


def rmse(guess):
    return float(((guess - truth) ** 2).mean() ** 0.5)


print(f"Missing cells         {missing.sum()} ({data['actual_missing_rate']:.1%} outside the anchors)")
print(f"RMSE, MAP             {rmse(map_imputed[missing]):.3f}")
print(f"RMSE, posterior mean  {rmse(mcmc_imputed[missing]):.3f}")
print(f"RMSE, oracle          {rmse(data['oracle_mean']):.3f}")
print(f"RMSE, if ignorable    {rmse(data['ignorable_mean']):.3f}")
print("Intervals of 95 %     coverage {coverage:.3f}, width {width:.3f}".format(**model.evaluation_))
print(f"Chains                {model.check_.verdict}")

"""Makes arima.json and hmm.json: series, and what statsmodels and hmmlearn find in them.

    python3 -m venv env && env/bin/pip install statsmodels==0.15.0 hmmlearn==0.3.3
    env/bin/python sense/predict/testdata/make.py sense/predict/testdata

These two are needed for nothing else. It takes some minutes, since for each series every order up
to (3, d, 3) is fitted by exact maximum likelihood.
"""

import json
import math
import pathlib
import sys
import warnings

import numpy as np
from hmmlearn.hmm import GaussianHMM
from statsmodels.tsa.arima.model import ARIMA
from statsmodels.tsa.stattools import kpss

HORIZON = 8
SAMPLES = 256  # of a series for ARIMA
WINDOW = 128  # of a series for the hidden Markov model

# Coefficients of the autoregression and of the moving average, times differenced, and the mean of
# what is differenced.
MODELS = [
    ((), (), 0, 10),
    ((0.3,), (), 0, 10),
    ((0.6,), (), 0, 10),
    ((0.8,), (), 0, 20),
    ((-0.5,), (), 0, 10),
    ((0.5, 0.2), (), 0, 10),
    ((1.2, -0.5), (), 0, 20),
    ((0.4, -0.3, 0.2), (), 0, 10),
    ((), (0.5,), 0, 10),
    ((), (-0.6,), 0, 10),
    ((), (0.6, 0.3), 0, 10),
    ((0.5,), (0.4,), 0, 10),
    ((0.7,), (-0.3,), 0, 20),
    ((), (), 1, 0.0),
    ((0.4,), (), 1, 0.0),
    ((), (-0.5,), 1, 0.0),
    ((), (0.4,), 1, 0.5),
    ((0.3,), (0.3,), 1, 0.0),
    ((0.5,), (), 1, 0.3),
    ((0.4,), (), 2, 0.0),
]

# Means and standard deviations of three states, and the probability of staying in one.
STATES = [
    ((10, 20, 40), (1, 2, 3), 0.9),
    ((10, 14, 18), (1, 1, 1), 0.9),
    ((50, 50, 90), (2, 8, 4), 0.9),
    ((0, 100, 300), (5, 10, 20), 0.8),
    ((20, 80, 95), (4, 6, 2), 0.9),
]


def draw_arima(model, rng):
    """Returns a series of a model, whose first level is 100 if it is differenced."""
    ar, ma, d, mean = model
    noise = rng.standard_normal(SAMPLES + 200)
    y = np.zeros(len(noise))
    for t in range(3, len(y)):
        y[t] = noise[t]
        y[t] += sum(c * y[t - 1 - i] for i, c in enumerate(ar))
        y[t] += sum(c * noise[t - 1 - i] for i, c in enumerate(ma))
    series = mean + y[200:]
    for _ in range(d):
        series = 100 + np.cumsum(series)
    return series.round(6)


def kpss_statistic(series):
    """Returns the statistic of the KPSS test with the lags that the package takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kpss(series, nlags=int(4 * (len(series) / 100) ** 0.25))[0]


def times_differenced(series):
    """Returns how often KPSS tests at 5 % have a series differenced, at most twice."""
    for d in range(2):
        if kpss_statistic(np.diff(series, d)) <= 0.463:
            return d
    return 2


def fit(series, order, trend):
    """Returns statsmodels' fit of an order, by exact maximum likelihood."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ARIMA(series, order=order, trend=trend).fit()


def best_arima(series):
    """Returns statsmodels' fit with the least AICc of all orders, and its order."""
    d = times_differenced(series)
    trends = [["c"], ["n", "t"], ["n"]][d]
    orders = [((p, d, q), t) for p in range(4) for q in range(4) for t in trends]
    fits = [(fit(series, order, trend), order) for order, trend in orders]
    return min(fits, key=lambda f: f[0].aicc)


def make_arima(rng):
    """Returns the cases of arima.json."""
    cases = []
    for model in MODELS:
        series = draw_arima(model, rng)
        found, order = best_arima(series)
        forecast = found.get_forecast(HORIZON)
        cases.append(
            {
                "model": str(model),
                "kpss": kpss_statistic(series),
                "order": order,
                "mean": list(forecast.predicted_mean),
                "deviation": list(forecast.se_mean),
                "series": list(series),
            }
        )
        print(model, "fitted as", order, flush=True)
    return cases


def draw_states(states, rng):
    """Returns a series of a hidden Markov model."""
    means, deviations, stay = states
    state, series = 0, []
    for _ in range(WINDOW):
        if rng.random() > stay:
            state = (state + rng.integers(1, 3)) % 3
        series.append(means[state] + deviations[state] * rng.standard_normal())
    return np.array(series).round(6)


def start(series):
    """Returns a model at which Baum-Welch starts: states that stay, each with a third of the
    samples by size."""
    hmm = GaussianHMM(3, "diag", n_iter=200, tol=1e-6, init_params="", covars_prior=0)
    thirds = [np.sort(series)[i * WINDOW // 3 : (i + 1) * WINDOW // 3] for i in range(3)]
    hmm.startprob_ = np.full(3, 1 / 3)
    hmm.transmat_ = np.full((3, 3), 0.05) + 0.85 * np.eye(3)
    hmm.means_ = np.array([[t.mean()] for t in thirds])
    hmm.covars_ = np.array([[t.var() + 0.01 * series.var()] for t in thirds])
    return hmm


def make_hmm(rng):
    """Returns the cases of hmm.json: the log-likelihood under the model of start, and after
    Baum-Welch from there."""
    cases = []
    for i in range(20):
        series = draw_states(STATES[i % len(STATES)], rng)
        column = series.reshape(-1, 1)
        hmm = start(series)
        at_start = hmm.score(column)
        hmm.fit(column)
        cases.append({"start": at_start, "fitted": hmm.score(column), "series": list(series)})
        assert math.isfinite(cases[-1]["fitted"])
    return cases


def write(path, cases):
    """Writes cases as JSON, one a line."""
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    write(folder / "hmm.json", make_hmm(np.random.default_rng(2)))
    write(folder / "arima.json", make_arima(np.random.default_rng(1)))

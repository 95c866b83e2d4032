"""Flower's own DP strategy with a smoothed update; put ``strategy`` into your ServerApp."""

from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from dpfedls import LaplacianSmoothing
from dpfedls.adapters.flower import Denoised

private = DifferentialPrivacyServerSideFixedClipping(
    FedAvg(fraction_evaluate=0.0),
    noise_multiplier=1.0,
    clipping_norm=0.5,
    num_sampled_clients=4,
)
strategy = Denoised(private, LaplacianSmoothing(strength=1.0))
strategy.summary()

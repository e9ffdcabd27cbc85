"""Profiles for tests of strategies of layers."""

import numpy as np

from benchmarks.layers.profile import LayerProfile, VocabularyMemory

TOKENS = np.arange(1, 9) * 4096

LAYER_MS = (12.4057201385498, 28.454231262207003, 39.43479309082031, 52.60663909912111)
LAYER_MS += (70.75289154052746, 82.6971145629883, 106.13850097656245, 123.1998901367187)

VOCABULARY_MS = (31.97360305786134, 56.27244796752933, 86.6235107421875, 121.2523483276367)
VOCABULARY_MS += (141.90354614257797, 177.68662719726558, 197.4156311035157, 225.79444885253918)


def by_degree(whole: float, degrees: tuple[int, ...] = (1, 2, 4, 8)) -> dict[int, float]:
    """Megabytes that are spread evenly, as in Galvatron's figures of this model."""
    return {degree: whole / degree for degree in degrees}


def mock_profile(num_layers: int = 28) -> LayerProfile:
    """
    The model of Galvatron's own test of its search (``tests/utils/mock_configs.py``), 8,192 tokens.

    Times are interpolated as it does, a layer's by a parabola, the vocabulary's by a line; the latter is twice as much
    for a vocabulary spread over two GPUs, by the formula for a profile of a single size.
    """
    layer = np.polyval(np.polyfit(TOKENS, LAYER_MS, 2), 8192)
    vocabulary = np.polyval(np.polyfit(TOKENS, VOCABULARY_MS, 1), 8192)
    return LayerProfile(
        num_layers=num_layers,
        hidden_size=3584,
        seq_length=8192,
        layer_ms=(float(layer), 0.0),
        vocabulary_ms=(2 * float(vocabulary), 0.0),
        parameter_mb=973.771484375,
        activation_mb=by_degree(2088.28955078125),
        recomputed_mb=56.0,
        whole=VocabularyMemory(states=by_degree(16768.54296875), activations=by_degree(5487.8828125)),
        first=VocabularyMemory(states=by_degree(8351.5009765625), activations=by_degree(787.1483154296875)),
        last=VocabularyMemory(states=by_degree(8351.5556640625), activations=by_degree(5073.4478759765625)),
    )

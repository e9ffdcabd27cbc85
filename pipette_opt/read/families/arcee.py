"""Reader of Arcee's foundation models (AFM) in Hugging Face's ``config.json``."""

from typing import Any

from pipette_opt.read.family import family
from pipette_opt.read.hugging_face_common import activation, biases, common
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.read.hugging_face_positions import rotary_fields


@family("arcee", rms_norm_eps=1e-5)
def arcee(keys: Keys) -> dict[str, Any]:
    """Return the fields: Llama with squared ReLU, and no gate, in its MLPs (``ArceeConfig``)."""
    activation(keys, "hidden_act", "relu2", ("relu2",))
    return (
        common(keys)
        | rotary_fields(keys)
        | biases(keys)
        | {
            "activation_func": "squared_relu",
            "normalization": "RMSNorm",
            "norm_epsilon": keys.positive("rms_norm_eps"),
        }
    )

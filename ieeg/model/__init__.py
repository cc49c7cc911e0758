"""MVPFormer: configuration, network, weights of others, streaming and embeddings."""

from mvpa_ts._moved import hand_on

__getattr__ = hand_on(
    __name__,
    {
        "mvpa_ts.ieeg.model.configuration": "MVPFormerConfig mvpformer_m mvpformer_s mvpformer_tiny",
        "mvpa_ts.ieeg.model.mvpformer": "MVPFormer",
        "mvpa_ts.ieeg.model.pretrained": "HUB_SECONDS pretrained_config",
        "mvpa_ts.ieeg.model.wavelet": "WaveletEncoder",
    },
)

"""A model of a few thousand parameters for the fixtures' tokenizer: random weights, real classes, no download."""

from support.paths import FIXTURES


BASE = FIXTURES / "base_tiny"


def make_config(**fields):
    from sdiareward.configuration_sdiareward import SDiaRewardConfig

    return SDiaRewardConfig(
        audio_config={
            "num_mel_bins": 128,
            "d_model": 32,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "n_window": 10,
            "output_dim": 32,
        },
        text_config={
            "vocab_size": 704,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
            "pad_token_id": 640,
        },
        audio_token_index=643,
        audio_start_token_id=644,
        audio_end_token_id=645,
        image_token_index=652,
        video_token_index=653,
        **fields,
    )


def make_model(pooling_mode="mean", **fields):
    """Return a seeded model in evaluation mode with a random head."""
    import torch

    from sdiareward.modeling_sdiareward import SDiaRewardModel

    torch.manual_seed(0)
    model = SDiaRewardModel(make_config(pooling_mode=pooling_mode, **fields)).eval()
    return _shake(model, 0.1)


def _shake(model, spread):
    import torch

    with torch.no_grad():
        for parameter in (each for each in model.parameters() if each.requires_grad):
            parameter.add_(torch.randn(parameter.shape) * spread)
    return model


def make_processor(**fields):
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

    return SDiaRewardProcessor.from_backbone(BASE, **fields)


def save_adapters(adapted, processor, folder, spread=0.1):
    """Save a model with adapters, moved away from zero; return it in evaluation mode."""
    import torch

    from sdiareward.checkpoint_io.adapters import write_adapter_files

    torch.manual_seed(1)
    _shake(adapted, spread).save_pretrained(str(folder))
    write_adapter_files(adapted, processor, folder)
    return adapted.eval()


def save_checkpoint(folder):
    make_model().save_pretrained(folder)
    make_processor().save_pretrained(folder)
    return folder

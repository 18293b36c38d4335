"""Every test that transformers runs on each of its models and processors, on ours; a skipped one has its reason."""

import contextlib
import unittest
from unittest import mock

import pytest
import torch
from support import tiny_model
from support.transformers_tests import RECORDINGS, load_common_tests
from transformers import AutoTokenizer, WhisperFeatureExtractor

from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


common = load_common_tests("test_modeling_common")
processing_common = load_common_tests("test_processing_common")
# Half a minute together.
pytestmark = pytest.mark.slow

REFUSED_INCOMPLETE = "a checkpoint that lacks tensors is refused, not completed with random ones"


class ModelTester:
    """What the common tests ask for: a configuration, inputs of 3 dialogues, and their sizes."""

    batch_size, seq_length = 3, 24
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 2
    is_training = True
    attn_implementation = None
    has_audio = True

    def get_config(self):
        # With the pooling that has parameters.
        config = tiny_model.make_config(pooling_mode="attention")
        if self.attn_implementation is not None:
            config._attn_implementation = self.attn_implementation
        return config

    def prepare_config_and_inputs_for_common(self):
        config = self.get_config()
        torch.manual_seed(0)
        input_ids = torch.randint(0, 600, (self.batch_size, self.seq_length))
        # Of 40 frames the audio tower makes ten vectors.
        if self.has_audio:
            input_ids[:, 2:12] = config.audio_token_id
        return config, {
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids),
            "input_features": torch.randn(self.batch_size, 128, 40),
            "feature_attention_mask": torch.ones(self.batch_size, 40, dtype=torch.long),
        }


class CommonModelTest(common.ModelTesterMixin, unittest.TestCase):
    all_model_classes = (SDiaRewardModel,)
    _is_composite = True
    # The library's audio tower holds a token that it does not use.
    test_all_params_have_gradient = False

    def setUp(self):
        self.model_tester = ModelTester()
        # These tests pass the tokens without the audio, which is refused.
        self.model_tester.has_audio = "eager_matches_sdpa" not in self._testMethodName

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        return {**inputs, "labels": torch.zeros(self.model_tester.batch_size)} if return_labels else inputs

    @contextlib.contextmanager
    def eager(self):
        """Attention weights are requested: under SDPA that is refused, not answered with None."""
        self.model_tester.attn_implementation = "eager"
        yield

    def test_model_outputs_equivalence(self):
        with self.eager():
            super().test_model_outputs_equivalence()

    def test_capture_outputs_decorator(self):
        with self.eager():
            super().test_capture_outputs_decorator()

    @unittest.skip("of the library alone: the older name of its option dtype")
    def test_bc_torch_dtype(self):
        pass

    @unittest.skip("attention weights under SDPA are refused")
    def test_eager_matches_sdpa_inference_24_fp32_pad_left_output_attentions(self):
        pass

    @unittest.skip(REFUSED_INCOMPLETE)
    def test_correct_missing_keys(self):
        pass

    @unittest.skip(REFUSED_INCOMPLETE)
    def test_model_weights_reload_no_missing_tied_weights(self):
        pass

    @unittest.skip("tensors are saved under their names in memory; the mapping only reads other layouts")
    def test_reverse_loading_mapping(self):
        pass


# In the place of recordings on the Hub.
processing_common.MODALITY_INPUT_DATA["audio"] = RECORDINGS


class CommonProcessorTest(processing_common.ProcessorTesterMixin, unittest.TestCase):
    processor_class = SDiaRewardProcessor

    @classmethod
    def setUpClass(cls):
        # As a class of the library: saving a class with code of its own adds a field, and these tests compare fields.
        own_code = mock.patch.object(SDiaRewardProcessor, "_auto_class", None)
        own_code.start()
        cls.addClassCleanup(own_code.stop)
        super().setUpClass()

    @classmethod
    def _setup_tokenizer(cls):
        return AutoTokenizer.from_pretrained(tiny_model.BASE)

    @classmethod
    def _setup_feature_extractor(cls):
        return WhisperFeatureExtractor.from_pretrained(tiny_model.BASE)

    @unittest.skip("the feature extractor alone pads to 300 s; mel features are computed at true length")
    def test_subprocessor_defaults_3_audio(self):
        pass

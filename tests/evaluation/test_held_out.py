from sdiareward.evaluation.held_out import by_held_out, find_left_out_sources, render_held_out
from sdiareward.evaluation.summary import ALL_LEFT_OUT


def label(number, synthesizer, source):
    about = {"pair_id": f"pair-{number}", "criterion": "modality", "subset": "scripted", "group_id": None}
    return {**about, "synthesizer": synthesizer, "source": source}


def scores(margins):
    return {f"pair-{number}": {"chosen": margin, "rejected": 0.0} for number, margin in enumerate(margins)}


def test_held_out_synthesizers_are_crossed_with_sources():
    places = [("new", "queen"), ("new", "queen"), ("new", "heard"), ("newer", "queen"), ("known", "queen")]
    labels = [label(number, *place) for number, place in enumerate(places)]
    by_scorer = {"model": scores([1, -1, 1, 1, -1])}
    everything, sources = ALL_LEFT_OUT, find_left_out_sources(labels, {"heard"})
    assert sources == ["queen"] and find_left_out_sources(labels, None) is None
    found = {"by_held_out": by_held_out(labels, by_scorer, ["new", "newer"], sources, {"num_bootstrap": 20})}
    rows = {(r["synthesizer"], r["source"]): (r["num_pairs"], r["model"]["accuracy"]) for r in found["by_held_out"]}
    assert rows == {
        ("new", "heard"): (1, 1.0),
        ("new", "queen"): (2, 0.5),
        ("new", everything): (2, 0.5),
        ("newer", "queen"): (1, 1.0),
        ("newer", everything): (1, 1.0),
        (everything, "heard"): (1, 1.0),
        (everything, "queen"): (3, 2 / 3),
        (everything, everything): (3, 2 / 3),
    }
    table = render_held_out({**found, "left_out_sources": sources, "accuracies": ["model"]})
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert lines[0][3:] == ["heard", "queen (held out)", "all held out of training"]
    bounds = found["by_held_out"][-1]["model"]["interval"]
    assert lines[-1][1:3] == ["all held out of training", "model"]
    assert lines[-1][5] == f"66.67 ({100 * bounds[0]:.1f}-{100 * bounds[1]:.1f}), n 3, 3"
    newer = next(line for line in lines if line[1] == "newer")
    assert newer[3] == "-" and newer[4].endswith(" (no interval), n 1, 1")
    # Without knowledge of the training there is no table.
    assert by_held_out(labels, by_scorer, None, None, {}) == []
    assert render_held_out({"by_held_out": [], "accuracies": ["model"]}) == ""

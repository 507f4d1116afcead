"""Policies that are written in Python: what they may say, and how their process answers."""

import json
import pathlib
import subprocess
import sys

import pytest

import shoal
from shoal import policies

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/auto"
OBSERVED = {
    "step": 9,
    "epoch": 0,
    "size": 2,
    "seconds": 1.5,
    "setting": {"number": 0, "batch": 64},
    "first_batch": 64,
    "levers": {"batch": {"from": 64, "to": 128}},
    "rate": {"low": 1, "mid": 2, "high": 3},
    "noise": {"scale": 500, "low": 400, "high": 600},
    "split": {"Data": 0, "Compute": 1, "Exposed": 0, "Optimizer": 0, "Slack": [0, 0.5]},
}


def serve(path, *requests):
    """The lines that the process of the policy in a file answers to requests."""
    done = subprocess.run(
        [sys.executable, "-m", "shoal._policy_program", "serve", str(path)],
        input="".join(json.dumps(r) + "\n" for r in requests),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_the_example_is_served():
    """The policy of the example says what it is, and doubles the batch as far as it may."""
    request = {"tick": 3, "observation": OBSERVED, "state": None}
    large = dict(OBSERVED, setting={"number": 1, "batch": 128})
    answers, errors = serve(
        EXAMPLE / "policy.py", request, {"tick": 4, "observation": large, "state": 5}
    )
    assert answers == [
        {"protocol": 1, "name": "when_noisy", "levers": ["batch"]},
        {"tick": 3, "change": {"batch": 128}, "because": "the noise scale is 500", "state": None},
        {"tick": 4, "change": None, "because": "", "state": 5},
    ]
    assert not errors


def test_the_example_decides_in_virtual_time(binary, tmp_path):
    """The file of the example plays in shoal sim as it is, and comes to the same bytes again."""
    scenario = tmp_path / "scenario.txt"
    scenario.write_text(
        "hosts 4 cable 1Gbit\ncompute 30ms + 0.2ms/sample\ndata 20000 batch 128 range 32-512\n"
        "noise 3000\nrun 200 steps\nexpect batch = 512\nexpect reverted = 0\n"
    )
    command = [str(binary), "sim", str(scenario), "--json", "--python", sys.executable]
    command += ["--policy", str(EXAMPLE / "policy.py")]
    one, two = (subprocess.run(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    assert one.returncode == 0 and one.stdout == two.stdout
    changes = json.loads(one.stdout)["changes"]
    assert {change["policy"] for change in changes} == {"when_noisy"}


def test_a_policy_that_fails_goes_on(tmp_path):
    """An exception is an answer, what the policy prints is none, and the next request is served."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import shoal\n"
        "@shoal.policy(levers=['batch'])\n"
        "def odd(o, state):\n"
        "    print('thinking')\n"
        "    state = (state or 0) + 1\n"
        "    if state == 2: return shoal.change(rate=3, because='no lever of it')\n"
        "    if state == 3: return 7\n"
        "    return shoal.change(batch=1 // (o.step - 9), because='x')\n"
    )
    requests = [{"tick": n, "observation": OBSERVED, "state": n - 1} for n in (1, 2, 3)]
    answers, errors = serve(file, *requests)
    assert [a.get("error", "") for a in answers[1:]] == [
        "ZeroDivisionError: integer division or modulo by zero",
        "ValueError: odd decides about batch, and changes rate",
        "TypeError: odd returned int: return shoal.change(…) or None",
    ]
    assert "thinking" in errors


def test_a_policy_imports_what_lies_beside_it(tmp_path):
    """A module in the folder of the file is found, whatever the working directory is."""
    (tmp_path / "beside_it.py").write_text("LEVERS = ['batch']\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "import beside_it, shoal\n"
        "@shoal.policy(levers=beside_it.LEVERS)\n"
        "def still(o, state): pass\n"
    )
    assert serve(file) == ([{"protocol": 1, "name": "still", "levers": ["batch"]}], "")


def test_cases_that_are_none(tmp_path):
    """A line that is no observation is named as such, and a file without one has tested nothing."""

    def test(text):
        """The exit code of shoal policy test with these cases, and what it prints."""
        cases = tmp_path / "cases.txt"
        cases.write_text(text, "latin-1")
        done = subprocess.run(
            [sys.executable, "-m", "shoal._policy_program", "test", EXAMPLE / "policy.py", cases],
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.returncode, done.stdout

    code, said = test('# none\n{"nonsense": 1}\n{\n' + json.dumps(OBSERVED) + "\n")
    assert code == 1 and "line 2 is no observation: KeyError" in said, said
    assert "line 3 is no observation: JSONDecodeError" in said and "line 4: batch=128" in said
    assert "line 1 is no observation: JSONDecodeError" in test("\xff\xfe\n")[1]
    assert test("# none\n") == (
        1,
        "the file of cases has no observation: give it one a line, as JSON\n",
    )


def test_a_state_is_tried_as_json(tmp_path):
    """A policy that is tried gets its state back as it does beside a job, through JSON, and fails
    where JSON has no such state.
    """
    file, cases = tmp_path / "mine.py", tmp_path / "cases.txt"
    cases.write_text(2 * (json.dumps(OBSERVED) + "\n"))
    for state, said in (
        ("(1, 2)", "state is [1, 2]"),
        ("{7: 8}", "state is {'7': 8}"),
        ("{9}", "line 1: TypeError: Object of type set is not JSON serializable"),
        ("float('nan')", "line 1: ValueError"),
    ):
        file.write_text(
            "import shoal\n"
            "@shoal.policy(levers=['batch'])\n"
            "def mine(o, state):\n"
            f"    return shoal.change(f'state is {{state}}', state={state}, batch=128)\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "shoal._policy_program", "test", str(file), str(cases)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert said in done.stdout, done.stdout
        assert done.returncode == (1 if "Error" in said else 0), done.stdout


def test_what_is_no_change_is_refused():
    """A change without a reason, of nothing, of an unknown lever, or to no number is an error."""
    for values, words in (
        ({"batch": 2, "because": ""}, "needs a reason"),
        ({"because": "x"}, "change nothing by returning None"),
        ({"because": "x", "colour": 2}, "there is no lever 'colour'"),
        ({"because": "x", "batch": 2.5}, "no int above 0"),
        ({"because": "x", "batch": True}, "no int above 0"),
        ({"because": "x", "rate": float("nan")}, "no float above 0"),
        ({"because": "x", "batch": -1}, "no int above 0"),
    ):
        with pytest.raises(ValueError, match=words):
            shoal.change(**values)
    for levers in ([], "batch", ["colour"]):
        with pytest.raises(ValueError, match="give a list of some of batch"):
            shoal.policy(levers=levers)


def test_closed_and_unknown_is_none():
    """What is not known is None: the range of a closed lever, the rate, the noise."""
    fields = {k: v for k, v in OBSERVED.items() if k not in ("rate", "noise")}
    o = policies.parse_observation(dict(fields, levers={}, split={}))
    assert (o.batch_range, o.rate, o.noise, o.split.slack) == (None, None, None, ())
    assert (o.size_range, o.setting.size) == (None, 0)
    assert o.saves is None and not o.can_save
    o = policies.parse_observation(OBSERVED)
    assert (o.batch_range, o.rate.mid, o.noise.scale) == ((64, 128), 2, 500)
    o = policies.parse_observation(
        dict(
            OBSERVED,
            setting={"number": 1, "batch": 64, "shares": [3, 1], "size": 2},
            levers={"size": {"from": 1, "to": 4}, "save": True},
            split=dict(OBSERVED["split"], Seconds=2),
            machines=[{"host": "h2", "levels": "-004", "usage": {"cpu": 0.97}}],
            saves={"cost": 0.5, "writing": 2},
        )
    )
    assert (o.can_save, o.saves.cost, o.saves.writing) == (True, 0.5, 2)
    assert shoal.change("they cost little", save=100).values == {"save": 100}
    assert (o.setting.shares, o.split.seconds) == ((3, 1), 2)
    assert (o.setting.size, o.size_range, o.batch_range) == (2, (1, 4), None)
    assert shoal.change(size=4, because="it is slow").values == {"size": 4}
    assert (o.machines[0].host, o.machines[0].usage["cpu"]) == ("h2", 0.97)
    assert shoal.change("rank 1 is slow", shares=[3, 1]).values == {"shares": [3, 1]}
    with pytest.raises(ValueError, match="no list of whole numbers"):
        shoal.change("rank 1 is slow", shares=[3, -1])


def test_how_workers_synchronise_is_seen_and_changed():
    """In rounds, where the program leaves that to the job."""
    place = {"number": 0, "batch": 64, "round": 4, "sync": "local"}
    seen = policies.parse_observation(dict(OBSERVED, setting=place, levers={"sync": True}))
    assert (seen.setting.round, seen.setting.sync, seen.can_sync) == (4, "local", True)
    seen = policies.parse_observation(OBSERVED)
    assert (seen.setting.round, seen.setting.sync, seen.can_sync) == (1, "", False)
    assert shoal.change(because="x", sync="sma", round=2).values == {"sync": "sma", "round": 2}
    with pytest.raises(ValueError, match="is no text"):
        shoal.change(because="x", sync=2)


def test_a_file_has_one_policy(tmp_path):
    """A file without a policy, or with two, is refused with its name and what to write."""
    file = tmp_path / "none.py"
    file.write_text("import shoal\n")
    answers, errors = serve(file)
    assert not answers and "none.py has 0 policies: decorate one function" in errors

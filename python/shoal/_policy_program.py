"""The process of a policy: `python3 -m shoal._policy_program serve FILE`, which shoal run starts,
and `test FILE CASES`, which shoal policy test starts.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import traceback
from typing import Any, Dict, NoReturn, Optional, Sequence, TextIO

from .policies import Policy, answer, decorated, parse_observation

PROTOCOL = 1


def _load(path: str) -> Policy:
    """The only policy of a file, which is run as a script is: it finds the modules beside it. Ends
    the process where there is another number of policies.
    """
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    runpy.run_path(path)
    if len(decorated) != 1:
        sys.exit(
            f"{path} has {len(decorated)} policies: decorate one function with"
            " @shoal.policy(levers=[…])"
        )
    return decorated[0]


def _encode(answered: Dict[str, Any]) -> str:
    """An answer as JSON. Raises TypeError or ValueError where a state is none that JSON has."""
    return json.dumps(answered, allow_nan=False)


def _serve(rule: Policy, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more. A policy that raises leaves things as they are: the
    answer has the error in place of a change, and the traceback goes to stderr.
    """

    def write(line: Dict[str, Any]) -> None:
        """Write an object as a line, at once."""
        answers.write(_encode(line) + "\n")
        answers.flush()

    write({"protocol": PROTOCOL, "name": rule.name, "levers": rule.levers})
    for line in requests:
        request = json.loads(line)
        try:
            write(answer(rule, request))
        except Exception as error:  # the next request may go better
            traceback.print_exc()
            write({"tick": request["tick"], "error": f"{type(error).__name__}: {error}"[:500]})


def _test(rule: Policy, cases: TextIO) -> int:
    """Ask a policy about each line of a file, an observation in JSON, and print what it wants.
    Return 1 where a line is no observation, the policy has failed, or there is none; else 0.
    """
    asked = failed = 0
    state = None
    for number, line in enumerate(cases, 1):
        if not line.strip() or line.startswith("#"):
            continue
        asked += 1
        try:
            observed = json.loads(line)
            parse_observation(observed)
        except Exception as error:
            failed += 1
            print(
                f"line {number} is no observation: {type(error).__name__}: {error}; one is the"
                " object that docs/formats/policy.md shows, on one line"
            )
            continue
        try:
            request = {"tick": number, "observation": observed, "state": state}
            found = json.loads(_encode(answer(rule, request)))  # what a launcher reads
        except Exception as error:
            failed += 1
            print(f"line {number}: {type(error).__name__}: {error}")
            continue
        state = found["state"]
        wanted = found["change"]
        parts = ",".join(f"{name}={value}" for name, value in (wanted or {}).items())
        print(f"line {number}: {parts or 'leave it'}" + f", {found['because']}" * bool(wanted))
    if not asked:
        print("the file of cases has no observation: give it one a line, as JSON")
    return 1 if failed or not asked else 0


def main(words: Optional[Sequence[str]] = None) -> NoReturn:
    """Serve or test a policy, as the words say; None = those of the command line."""
    parser = argparse.ArgumentParser(
        prog="shoal policy", description="Run a policy, or try it."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="answer the requests of shoal run --policy FILE")
    serve.add_argument("file", help="the file with the policy")
    test = commands.add_parser("test", help="ask the policy about observations, one a line")
    test.add_argument("file", help="the file with the policy")
    test.add_argument("cases", help="the file with observations; docs/formats/policy.md has one")
    options = parser.parse_args(words)
    # What a policy prints must not stand among the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    rule = _load(options.file)
    if options.command == "serve":
        _serve(rule, sys.stdin, answers)
        sys.exit(0)
    sys.stdout = answers
    # a line that is no text is no observation either, and is said to be none
    with open(options.cases, encoding="utf-8", errors="replace") as cases:
        sys.exit(_test(rule, cases))


if __name__ == "__main__":
    main()
